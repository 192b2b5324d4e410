"""Look after stored features: list them by folder and backbone, verify, shrink and delete them.

Knows nothing of images, beyond which contents each folder had when it was last read.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from selftrain.data.features.collection import ABOUT, NAME, VIEWS, Collection, Piece, Writer
from selftrain.data.features.store import FEATURES
from selftrain.data.features.verified import LOG as VERIFIED
from selftrain.data.images.content import Lookup
from selftrain.data.images.memory import Memory
from selftrain.errors import UserError

OLD = ("array.bin", "pieces.bin", "lock")
"""files of caches from before features were stored by content"""


@dataclass(frozen=True)
class CacheInfo:
    """A collection of features, or what an older version has left."""

    folder: Path
    about: dict[str, Any]
    """empty if it is damaged"""
    images: int
    views: tuple[str, ...]
    vectors: int
    bytes: int
    days: float
    """since it was last used"""
    old: bool = False
    """of an older version, no longer read"""
    homes: dict[str, int] = field(default_factory=dict)
    """images in each folder that it was used with; an image may be in several"""

    def is_named(self, name: str | None) -> bool:
        """Return whether the name of the folder or of the backbone starts with these letters."""
        return name is None or self.folder.name.startswith(name) or str(self.about.get("backbone")).startswith(name)


def list_caches(root: Path, *, homes: bool = False) -> list[CacheInfo]:
    """Return the collections in the cache folder ``root``, the most recently used first."""
    known = list(Memory(root).homes()) if homes else []
    found = []
    for folder in _folders(root):
        with suppress(OSError):  # deleted in the meantime
            found.append(_info(folder, known))
    return sorted(found, key=lambda info: info.days)


def _folders(root: Path) -> Iterator[Path]:
    try:
        folders = sorted((root / FEATURES).iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cache {root}: cannot be read ({error.strerror}).") from None
    for folder in folders:
        if re.fullmatch(f"[0-9a-f]{{{NAME}}}", folder.name) and _ours(folder):
            yield folder


def _ours(folder: Path) -> list[Path]:
    """Return the files of a cache that selftrain has written."""
    names = {ABOUT, VIEWS, VERIFIED, *OLD}
    written = re.compile(r"[0-9a-f]{12}\.(rows|index|lock)|list-[0-9a-f]{12}\.lock")
    try:
        return [file for file in folder.iterdir() if file.name in names or written.fullmatch(file.name)]
    except OSError:
        return []


def _info(folder: Path, known: list[tuple[str, Any]]) -> CacheInfo:
    size = sum(file.stat().st_size for file in _ours(folder))
    about_file = folder / ABOUT
    days = (time.time() - (about_file if about_file.exists() else folder).stat().st_mtime) / 86400
    collection = Collection.at(folder)
    if collection is None:
        return CacheInfo(folder, _old_about(folder), 0, (), 0, size, days, old=(folder / OLD[0]).exists())
    pieces, specs = collection.pieces(), collection.view_specs()
    names = [specs.get(view, {}).get("view", "?") for view in _views(pieces)]
    contents = np.concatenate([np.empty((0, 2), np.uint64), *(piece.contents for piece in pieces)])
    lookup = Lookup(contents)
    counts = {home: int((lookup.find(those) >= 0).sum()) for home, those in known}
    images = len(np.unique(contents, axis=0))
    used = {home: n for home, n in counts.items() if n}
    vectors = sum(piece.vectors for piece in pieces)
    return CacheInfo(folder, collection.about, images, tuple(dict.fromkeys(names)), vectors, size, days, homes=used)


def _views(pieces: list[Piece]) -> list[str]:
    kept = dict.fromkeys(piece.views for piece in pieces)
    return list(dict.fromkeys(some[i : i + 8].hex() for some in kept for i in range(0, len(some), 8)))


def _old_about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and isinstance(about.get("shape"), list) else {}


def verify_cache(info: CacheInfo) -> tuple[int, int]:
    """Compare every checksum of a collection; return the number of whole pieces and of damaged ones."""
    collection = Collection.at(info.folder)
    if collection is None:
        return 0, 0
    whole = [collection.is_whole(piece) for piece in collection.pieces()]
    return sum(whole), len(whole) - sum(whole)


def shrink_cache(root: Path, info: CacheInfo) -> int:
    """Rewrite a collection without what is of no use any more, and return the bytes that this freed.

    That is what kills have left behind, damaged pieces, vectors that are there twice, those of images that were only
    found in folders that no longer exist, and caches of older versions. Segments that a process is writing stay as
    they are.
    """
    collection = Collection.at(info.folder)
    if collection is None:
        return info.bytes if info.old and _delete(info.folder) else 0
    gone = _gone(root)
    before = sum(file.stat().st_size for file in _ours(info.folder))
    locked = list(_lock_segments(collection))
    try:
        segments = {segment for segment, _ in locked}
        pieces = [piece for piece in collection.pieces() if piece.segment in segments]
        _rewrite(collection, [piece for piece in pieces if collection.is_whole(piece)], gone)
        for segment in segments:
            segment.unlink(missing_ok=True)
            segment.with_suffix(".index").unlink(missing_ok=True)
    finally:
        for segment, lock in locked:
            lock.release()
            segment.with_suffix(".lock").unlink(missing_ok=True)
    for lock_file in info.folder.glob("*.lock"):
        if not lock_file.with_suffix(".rows").exists() and not lock_file.name.startswith("list-"):
            lock_file.unlink(missing_ok=True)
    return before - sum(file.stat().st_size for file in _ours(info.folder))


def _lock_segments(collection: Collection) -> Iterator[tuple[Path, FileLock]]:
    for segment in collection.segments():
        lock = FileLock(segment.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError, NotImplementedError):
            continue
        yield segment, lock


def _rewrite(collection: Collection, pieces: list[Piece], gone: Lookup) -> None:
    """Write the vectors of these pieces to a new segment, each once."""
    seen: set[tuple[bytes, bytes]] = set()
    writer = Writer(collection)
    writer.segment = collection.folder / f"{secrets.token_hex(6)}.rows"
    for piece in pieces:
        views = len(piece.views) // 8
        keep = gone.find(piece.contents) < 0
        keys = [(row.tobytes(), piece.views) for row in piece.contents]
        keep &= np.array([key not in seen for key in keys])
        seen |= set(keys)
        if keep.any():
            with piece.segment.open("rb") as file:
                file.seek(piece.first * collection.row)
                data = file.read(piece.vectors * collection.row)
            values = np.frombuffer(data, collection.dtype).reshape(-1, views, collection.width)
            each = [piece.views[i : i + 8] for i in range(0, len(piece.views), 8)]
            writer.add(piece.contents[keep], each, values[keep])


def _gone(root: Path) -> Lookup:
    """Return contents that were only found in folders that no longer exist."""
    there, gone = [np.empty((0, 2), np.uint64)], [np.empty((0, 2), np.uint64)]
    for home, contents in Memory(root).homes():
        (there if os.path.exists(home) or not os.path.isabs(home) else gone).append(contents)
    lost = np.concatenate(gone)
    return Lookup(lost[Lookup(np.concatenate(there)).find(lost) < 0])


def clear_caches(root: Path, name: str | None = None) -> tuple[list[CacheInfo], list[CacheInfo]]:
    """Delete all collections, or those whose name or backbone starts with ``name``.

    Returns the deleted ones, and those that were kept because a process fills them or because they cannot be written.
    """
    gone: list[CacheInfo] = []
    left: list[CacheInfo] = []
    for info in list_caches(root):
        if info.is_named(name):
            (gone if _delete(info.folder) else left).append(info)
    if name is None:
        Memory(root).forget()
    return gone, left


def _delete(folder: Path) -> bool:
    """Delete the files of a cache unless a process is writing to it; files of other programs stay."""
    locks: list[FileLock] = []
    files = _ours(folder)
    try:
        for file in files:
            if file.suffix == ".lock" or file.name == "lock":
                lock = FileLock(file)
                lock.acquire(timeout=0)
                locks.append(lock)
        for file in sorted(files, key=lambda file: file.name != ABOUT):
            file.unlink(missing_ok=True)
    except (Timeout, OSError):
        return False
    finally:
        for lock in locks:
            lock.release()
            with suppress(OSError):
                os.unlink(lock.lock_file)
    with suppress(OSError):
        folder.rmdir()
    return True
