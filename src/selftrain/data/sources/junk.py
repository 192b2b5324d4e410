"""Folders of images of no class, which are added to the unlabeled pool (``data.junk_from``).

Knows nothing of how many of them a pool takes.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from selftrain.config.settings import junk_folders, junk_name
from selftrain.data.corpus import Corpus
from selftrain.data.features.rows import FeatureRows
from selftrain.data.images import FileImages, Images, JoinedImages, SearchNotes, find_images
from selftrain.data.sources.file_parts import Checker, FilePart, real_paths, relative_name, without_test_images
from selftrain.data.sources.folders import no_image
from selftrain.errors import UserError
from selftrain.files import expanded

PREFIX = "junk:"


def canonical(junk_from: str, root: str | None) -> str:
    """Return the folders as paths that mean the same anywhere: relative to ``root`` if inside it, else absolute."""
    found = []
    for folder in junk_folders(junk_from):
        path = Path(root or "", expanded(folder)).absolute()
        inside = None if root is None else relative_name(path, Path(root))
        found.append(str(path) if inside is None else inside)
    return ",".join(found)


def add_junk(corpus: Corpus, junk_from: str | None, root: str | None, checker: Checker) -> Corpus:
    """Return the corpus with all images of the folders, named ``junk:...``; its test images are left out."""
    folders = junk_folders(junk_from or "")
    if not folders:
        raise UserError("`data.junk`: needs `data.junk_from`, one or more folders of images of no class.")
    if isinstance(corpus.images, FeatureRows):
        raise UserError("`data.junk`: features have no pixels, so images of no class cannot be added to them.")
    tested = corpus.test
    tests = real_paths(tested.root, tested.names) if isinstance(tested, FileImages) else {}
    trained, seen = _paths(corpus.images), set[str]()
    for folder in folders:
        path = Path(os.path.abspath(Path(root or "", folder)))
        if not path.is_dir():
            raise UserError(f"`data.junk_from` {path}: there is no such folder; give folders of images of no class.")
        part = without_test_images(_part(path), tests)
        if not part.names:
            raise UserError(f"`data.junk_from` {no_image(path)}")
        images, _, skipped = checker.keep_readable([part], corpus.classes)[0]
        here = _paths(images)
        for others, what in ((trained, "a training image"), (seen, "in another of the folders")):
            if both := here & others:
                raise UserError(f"`data.junk_from` {path}: {min(both)} is also {what}; give folders of other images.")
        seen |= here
        short, cut = f"{PREFIX}{junk_name(folder)}/", len(path.name) + 1
        corpus = corpus.with_junk(
            images,
            [short + name[cut:] for name in images.names],
            tuple(short + name[cut:] for name in skipped),
            (part.notes.remark,) if part.notes.remark else (),
        )
    if len(set(corpus.images.names)) < len(corpus.images):
        raise UserError(f"`data.junk_from={junk_from}`: two of the folders have the same name; rename one of them.")
    return corpus


def _part(folder: Path) -> FilePart:
    """Return the images of a folder, named relative to its parent.

    The folder ``train`` of a dataset then has the same fingerprint as the dataset itself, and shares its features.
    """
    names = find_images(folder, notes := SearchNotes())
    prefix = f"{folder.name}/"
    linked = set(names) if folder.is_symlink() else notes.linked
    notes = SearchNotes({prefix + name for name in linked}, notes.unsupported)
    return FilePart(folder.parent, [prefix + name for name in names], np.full(len(names), -1, np.int64), {}, notes)


def _paths(images: Images) -> set[str]:
    """Return the paths of those images that are files, with the links of their root resolved."""
    if isinstance(images, JoinedImages):
        return set().union(*map(_paths, images.parts))
    if not isinstance(images, FileImages):
        return set()
    root = os.path.realpath(images.root)
    return {os.path.join(root, name) for name in images.names}
