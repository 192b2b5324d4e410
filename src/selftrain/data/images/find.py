"""Find image files under a folder, by suffix.

Knows nothing of what the files contain, nor of classes or layouts.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from selftrain.data.images.decode import HAS_AVIF
from selftrain.errors import UserError

IMAGE_SUFFIXES: tuple[str, ...] = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".jpe", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
    *((".avif",) if HAS_AVIF else ()),
)
"""Suffixes of supported image files, in lower case."""

MOST_VISITS = 4
"""how often a folder is listed, counting the links to it: folders that link to each other have endlessly many paths"""

UNSUPPORTED_SUFFIXES: tuple[str, ...] = (
    *(".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"),
    *(() if HAS_AVIF else (".avif",)),
)
"""Suffixes of images in formats that cannot be read: they are ignored, and the user is told."""


def suffix_list() -> str:
    """Return the supported suffixes for an error message: ``png jpg jpeg ...``."""
    return " ".join(suffix[1:] for suffix in IMAGE_SUFFIXES)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name belongs to the operating system and not to the user."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")


@dataclass
class SearchNotes:
    """Facts about a search for images that the list of names does not show."""

    linked: set[str] = field(default_factory=set)
    """images that are symbolic links or lie behind one: the same file may also be present under another name"""
    unsupported: Counter[str] = field(default_factory=Counter)
    """ignored images in unsupported formats, counted by suffix"""

    @property
    def remark(self) -> str | None:
        """A sentence for the user about ignored images; None if there are none."""
        if not self.unsupported:
            return None
        kinds = ", ".join(f"{n} {suffix}" for suffix, n in sorted(self.unsupported.items()))
        return f"ignored images in unsupported formats ({kinds}); convert them to JPEG or PNG"


def find_images(root: str | os.PathLike[str], notes: SearchNotes | None = None) -> list[str]:
    """Return every image under ``root``, at any depth, as sorted POSIX paths relative to it.

    Files are selected by suffix, in upper or lower case. Hidden files and folders are left out. Links to folders are
    followed, but not in circles, and no folder is visited more than a few times. A dangling link with an image suffix
    is listed, so that reading it reports it as broken. ``notes`` is filled in.
    """
    top = os.fspath(root)
    notes = SearchNotes() if notes is None else notes
    found: list[str] = []
    visits: Counter[tuple[int, int]] = Counter()
    pending: list[tuple[str, tuple[tuple[int, int], ...], bool]] = [("", (), False)]
    links: list[tuple[str, tuple[tuple[int, int], ...], bool]] = []
    while pending or links:
        if not pending:  # after all folders that are not reached through links, in an order that is always the same
            links.sort(reverse=True)
        prefix, parents, linked = (pending or links).pop()
        folder = os.path.join(top, prefix)
        try:
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            if identity in parents or (linked and visits[identity] >= MOST_VISITS):
                continue  # a link back to one of this folder's parents, or one of very many links
            visits[identity] += 1
            with os.scandir(folder) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if _is_folder(entry):
                        link = entry.is_symlink()
                        place = (f"{prefix}{entry.name}/", (*parents, identity), linked or link)
                        (links if link else pending).append(place)
                        continue
                    name = entry.name.lower()
                    if name.endswith(IMAGE_SUFFIXES) and (entry.is_symlink() or entry.is_file()):
                        found.append(prefix + entry.name)
                        if linked or entry.is_symlink():
                            notes.linked.add(prefix + entry.name)
                    elif name.endswith(UNSUPPORTED_SUFFIXES):
                        notes.unsupported[os.path.splitext(name)[1]] += 1
        except OSError as error:
            raise UserError(cannot_list(folder, error)) from error
    found.sort()
    return found


def cannot_list(folder: str | os.PathLike[str], error: OSError) -> str:
    """Return the error message for a folder that cannot be listed."""
    return f"{os.fspath(folder)}: the folder cannot be listed ({(error.strerror or str(error)).lower()})."


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
