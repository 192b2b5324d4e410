"""A collection of vectors by image content: append-only files with checksums, shared by processes, safe to kill.

Knows nothing of images or backbones. What all vectors of a collection depend on names its folder; each vector belongs
to the content of an image and to a view of it.

A collection has one or more segments, each written by one process at a time. ``<segment>.rows`` has the numbers, and
``<segment>.index`` a block per piece: its first row, the checksum of its numbers, its views and its contents. A piece
counts only if its block is whole and the checksum fits, so what a kill or damage leaves behind is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from selftrain.data.blocks import append_block, read_blocks
from selftrain.data.features.stored import FILE_BITS, StoredFeatures
from selftrain.data.features.verified import fingerprint, is_verified, remember
from selftrain.data.images.content import Digests, Lookup
from selftrain.errors import UserError
from selftrain.files import cannot_write, write_json

ABOUT, VIEWS, FORMAT = "about.json", "views.log", 2
NAME = 24  # hexadecimal digits of the hash in the name of a collection's folder
PIECE = struct.Struct("<QIII")  # first row, images, views, checksum of the numbers
VERIFIED_IN_FULL = 1 << 28  # bytes; of more, a sample is verified if all were since the files may have changed
LARGEST_SEGMENT = 1 << 32  # bytes; a larger one is not added to
WRITE_AGAIN = "Choose another folder with SELFTRAIN_CACHE."


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a segment: ``len(contents)`` images with the same views."""

    segment: Path
    first: int
    views: bytes
    """8 bytes per view"""
    checksum: int
    contents: Digests

    @property
    def vectors(self) -> int:
        return len(self.contents) * len(self.views) // 8


@dataclass
class Collection:
    """Vectors of ``width`` numbers that depend on ``about``, in a folder of ``root`` named by its hash."""

    root: Path
    about: dict[str, Any]
    width: int
    dtype: np.dtype[Any]
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        whole = {**self.about, "width": self.width, "dtype": str(self.dtype), "format": FORMAT}
        self.key = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        self.folder = self.root / self.key[:NAME]
        self._whole = whole

    @property
    def row(self) -> int:
        """Bytes of a vector."""
        return self.width * self.dtype.itemsize

    @classmethod
    def at(cls, folder: Path) -> Collection | None:
        """Return the collection in a folder; None if there is none that can be understood."""
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            parts = {name: about.pop(name) for name in ("width", "dtype", "format")}
            found = cls(folder.parent, about, int(parts["width"]), np.dtype(parts["dtype"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return found if parts["format"] == FORMAT and found.folder.name == folder.name else None

    def open(self) -> bool:
        """Make sure that the folder is there; return whether it can be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.folder, os.W_OK)
            if writable and not (self.folder / ABOUT).exists():
                write_json(self.folder / ABOUT, self._whole)
        except OSError as error:
            raise UserError(f"cache {self.root}: cannot be written ({error.strerror}). {WRITE_AGAIN}") from None
        if writable:
            os.utime(self.folder / ABOUT)  # the time of the last use
        return writable

    def segments(self) -> list[Path]:
        """Return the rows files of all segments."""
        return sorted(self.folder.glob("*.rows"))

    def pieces(self) -> list[Piece]:
        """Return every piece whose block is whole and whose rows are there."""
        found = []
        for segment in self.segments():
            try:
                size = segment.stat().st_size
            except OSError:
                continue  # deleted in the meantime
            for block in read_blocks(segment.with_suffix(".index")):
                piece = _parsed(segment, block)
                if piece is not None and (piece.first + piece.vectors) * self.row <= size:
                    found.append(piece)
        return found

    def find(self, contents: Digests, views: Sequence[bytes]) -> tuple[list[Path], NDArray[np.int64]]:
        """Return the files of the collection, and the place (n, views) of each vector in them; -1 if it is missing.

        Checksums of the pieces that are needed are compared; of many that nobody can have changed since the last time,
        only those of a sample.
        """
        pieces = self.pieces()
        while True:
            files, places, used = self._found(pieces, contents, views)
            damaged = self._damaged([pieces[k] for k in used])
            if not damaged:
                return files, places
            pieces = [piece for piece in pieces if id(piece) not in damaged]

    def _found(
        self, pieces: list[Piece], contents: Digests, views: Sequence[bytes]
    ) -> tuple[list[Path], NDArray[np.int64], list[int]]:
        files = sorted({piece.segment for piece in pieces})
        number = {file: k for k, file in enumerate(files)}
        places = np.full((len(contents), len(views)), -1, np.int64)
        used: set[int] = set()
        for kept in sorted({piece.views for piece in pieces}):
            of = [kept[i : i + 8] for i in range(0, len(kept), 8)]
            if not set(of) & set(views):
                continue
            mine = [k for k, piece in enumerate(pieces) if piece.views == kept]
            counts = np.array([len(pieces[k].contents) for k in mine])
            owner = np.repeat(np.arange(len(mine)), counts)
            starts = np.array([(number[pieces[k].segment] << FILE_BITS) + pieces[k].first for k in mine])
            inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            where = Lookup(np.concatenate([pieces[k].contents for k in mine])).find(contents)
            hit = where >= 0
            first = starts[owner[where[hit]]] + inside[where[hit]] * len(of)
            for j, view in enumerate(views):
                if view in of:
                    missing = places[hit, j] < 0
                    rows = np.flatnonzero(hit)[missing]
                    places[rows, j] = first[missing] + of.index(view)
                    used |= {mine[k] for k in np.unique(owner[where[rows]]).tolist()}
        return files, places, sorted(used)

    def _damaged(self, pieces: list[Piece]) -> set[int]:
        """Return the ids of pieces whose numbers do not fit their checksum."""
        state = None
        if sum(piece.vectors for piece in pieces) * self.row > VERIFIED_IN_FULL:
            state = fingerprint([(piece.segment, piece.first) for piece in pieces])
            if is_verified(self.folder, state):
                pieces = [*pieces[:8], *pieces[-8:], *pieces[:: max(1, len(pieces) // 64)]]
                state = None
        found = {id(piece) for piece in pieces if not self.is_whole(piece)}
        if not found:
            remember(self.folder, state)
        return found

    def is_whole(self, piece: Piece) -> bool:
        """Return whether the numbers of a piece fit its checksum."""
        try:
            with piece.segment.open("rb") as file:
                file.seek(piece.first * self.row)
                return zlib.crc32(file.read(piece.vectors * self.row)) == piece.checksum
        except OSError:
            return False

    def stored(self, files: list[Path], places: NDArray[np.int64]) -> StoredFeatures:
        return StoredFeatures(files, places, self.width, self.dtype)

    def name_views(self, views: dict[bytes, dict[str, Any]]) -> None:
        """Write down what the numbers of views stand for, for those who list the collection."""
        new = {view.hex(): spec for view, spec in views.items() if view.hex() not in self.view_specs()}
        if new:
            append_block(self.folder / VIEWS, json.dumps(new, sort_keys=True).encode())

    def view_specs(self) -> dict[str, dict[str, Any]]:
        """Return what each view depends on, by its number in hexadecimal digits."""
        known: dict[str, dict[str, Any]] = {}
        for block in read_blocks(self.folder / VIEWS):
            known |= json.loads(block)
        return known

    def check_space(self, vectors: int) -> None:
        """Raise a UserError if the disk is too small for so many more vectors; now and not hours later."""
        size, free = vectors * self.row, shutil.disk_usage(self.folder).free
        if size > free:
            raise UserError(
                f"cache {self.root}: needs {size / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free. Free space "
                f"('selftrain cache --clear'), or choose another folder with SELFTRAIN_CACHE or `data.cache`."
            )


def _parsed(segment: Path, block: bytes) -> Piece | None:
    if len(block) < PIECE.size:
        return None
    first, images, views, checksum = PIECE.unpack_from(block)
    start = PIECE.size + 8 * views
    if not views or len(block) != start + 16 * images:
        return None
    contents = np.frombuffer(block, "<u8", offset=start).reshape(-1, 2)
    return Piece(segment, first, block[PIECE.size : start], checksum, contents)


class Writer:
    """Adds pieces to a segment that no other process writes: one that is there, or a new one."""

    def __init__(self, collection: Collection):
        self.collection = collection
        self.lock: FileLock | None = None
        self.segment = Path()

    def __enter__(self) -> Writer:
        for segment in self.collection.segments():
            if segment.stat().st_size < LARGEST_SEGMENT and self._locks(segment):
                return self
        self._locks(self.collection.folder / f"{secrets.token_hex(6)}.rows")
        return self

    def _locks(self, segment: Path) -> bool:
        lock = FileLock(segment.with_suffix(".lock"))
        self.segment = segment
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except (OSError, NotImplementedError):  # some network filesystems do not support locking
            return not segment.exists()
        self.lock = lock
        return True

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.release()

    def add(self, contents: Digests, views: Sequence[bytes], values: NDArray[Any]) -> None:
        """Add the vectors (n, views, width) of images."""
        numbers = np.ascontiguousarray(values, self.collection.dtype)
        if numbers.shape != (len(contents), len(views), self.collection.width):
            raise ValueError(f"expected {len(contents)} images with {len(views)} views, got {numbers.shape}")
        data, row = numbers.tobytes(), self.collection.row
        try:
            with self.segment.open("ab") as file:
                first = -(-file.tell() // row)  # after a kill, the file may end inside a row
                file.write(bytes(first * row - file.tell()) + data)
        except OSError as error:
            raise cannot_write(self.segment, error) from None
        head = PIECE.pack(first, len(contents), len(views), zlib.crc32(data))
        block = head + b"".join(views) + np.ascontiguousarray(contents, "<u8").tobytes()
        append_block(self.segment.with_suffix(".index"), block)


def view_id(spec: dict[str, Any]) -> bytes:
    """Return the number of a view: 8 bytes of the hash of everything that it depends on, apart from the image."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).digest()[:8]
