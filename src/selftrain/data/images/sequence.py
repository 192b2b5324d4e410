"""Sequences of named images that are image files: on their own, inside larger files, or several sequences joined.

Knows nothing of labels, classes, splits, tensors or training.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from selftrain.data.images.content import Digests, digest, digests, file_mark, unknown
from selftrain.data.images.decode import UnreadableImage, opened, read_image
from selftrain.data.images.pixel_budget import decoding
from selftrain.errors import UserError
from selftrain.regular_files import open_regular

SAMPLE = 4096  # bytes at the start, in the middle and at the end of a file that its stamp includes


class Images(ABC):
    """A sequence of images, each with a unique name."""

    names: Sequence[str]
    """One name per image: for files, the POSIX path relative to the root."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} images)"

    @abstractmethod
    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        """Return image ``i`` as ``"RGB"`` or ``"L"``; ``min_side`` as in ``read_image``."""

    @abstractmethod
    def subset(self, indices: ArrayLike) -> Images:
        """Return the images at ``indices`` (integers, or one boolean per image), in that order."""

    @abstractmethod
    def check(self, i: int, full: bool = True) -> None:
        """Raise ``UnreadableImage`` if image ``i`` cannot be read; ``full=False`` looks only at its header."""

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        """Yield bytes that change when an image is added, removed, renamed or edited; caches are keyed by them.

        Without ``times`` a copy of a file has the same stamp as the file.
        """
        raise TypeError(f"no fingerprint of {type(self).__name__}")

    @property
    def home(self) -> str:
        """Where the images are kept, for lists of what is stored about them; empty if they are in memory only."""
        return ""

    def content(self, i: int) -> bytes:
        """Return 16 bytes that are equal for copies of image ``i``; empty if it cannot be read."""
        raise TypeError(f"no content of {type(self).__name__}")

    def look(self, i: int) -> tuple[bytes, bool]:
        """Return the content of image ``i``, and whether it can be decoded."""
        try:
            self.check(i)
        except UnreadableImage:
            return self.content(i), False
        return self.content(i), True

    def marks(self) -> Digests:
        """Return numbers that change when an image may have changed, without reading it; zeros where none are known."""
        return unknown(len(self))

    def _positions(self, indices: ArrayLike) -> NDArray[np.int64]:
        positions = np.asarray(indices)
        if positions.dtype == bool:
            if positions.shape != (len(self),):
                raise IndexError(f"a mask of shape {positions.shape} does not fit {len(self)} images")
            return np.flatnonzero(positions)
        return positions.astype(np.int64).reshape(-1)


class EncodedImages(Images):
    """Images stored as image files, on their own or inside larger files, and decoded on demand."""

    @abstractmethod
    def source(self, i: int) -> str | bytes:
        """Return the path of the image file of image ``i``, or its bytes."""

    def where(self, i: int) -> str:
        """Return the name of image ``i`` in errors."""
        return self.names[i]

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        return read_image(self.source(i), mode, min_side, self.where(i))

    def content(self, i: int) -> bytes:
        try:
            return _content(self.source(i))
        except UnreadableImage:
            return b""

    def check(self, i: int, full: bool = True) -> None:
        _check(self.source(i), self.where(i), full)

    def look(self, i: int) -> tuple[bytes, bool]:
        content = b""
        try:
            source = self.source(i)  # once: it may be an object in a store
            content = _content(source)
            _check(source, self.where(i))
        except UnreadableImage:
            return content, False
        return content, True


def _content(source: str | bytes) -> bytes:
    if isinstance(source, bytes):
        return digest(source)
    try:
        with open_regular(source) as file:
            return digest(file.read())
    except OSError:
        return b""


def _check(source: str | bytes, where: str, full: bool = True) -> None:
    with opened(source, where) as image:
        if full:
            # At 1/8 scale a JPEG is still read to its last byte, but most of the arithmetic is left out.
            image.draft(None, (1, 1))
            with decoding(image):
                image.load()


class FileImages(EncodedImages):
    """Image files under one folder, read on demand. Holds only their names."""

    def __init__(self, root: str | os.PathLike[str], names: Sequence[str]) -> None:
        self.root = os.path.abspath(root)
        self.names = list(names)

    def path(self, i: int) -> str:
        """Return the absolute path of image ``i``."""
        return os.path.join(self.root, self.names[i])

    def source(self, i: int) -> str:
        return self.path(i)

    def where(self, i: int) -> str:
        return self.path(i)

    def subset(self, indices: ArrayLike) -> FileImages:
        return FileImages(self.root, [self.names[i] for i in self._positions(indices).tolist()])

    @property
    def home(self) -> str:
        return self.root

    def marks(self) -> Digests:
        return digests([file_mark(self.path(i)) for i in range(len(self))])

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        for i, name in enumerate(self.names):
            yield name.encode("utf-8", "surrogateescape") + file_stamp(self.path(i), times)

    def __getstate__(self) -> tuple[str, int, str]:
        # One long string instead of millions of short ones: a loader worker starts faster.
        return self.root, len(self.names), "\0".join(self.names)

    def __setstate__(self, state: tuple[str, int, str]) -> None:
        self.root, count, joined = state
        self.names = joined.split("\0") if count else []


class JoinedImages(Images):
    """Several sequences of images of any kind, one after the other."""

    def __init__(self, parts: Sequence[Images], names: Sequence[str] | None = None) -> None:
        self.parts = list(parts)
        self.part_of = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        self.row_of = np.concatenate([np.arange(len(part)) for part in self.parts])
        self.names = [name for part in self.parts for name in part.names] if names is None else list(names)

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        part: Images = self.parts[self.part_of[i]]
        return part.load(int(self.row_of[i]), mode, min_side)

    def check(self, i: int, full: bool = True) -> None:
        self.parts[self.part_of[i]].check(int(self.row_of[i]), full)

    def content(self, i: int) -> bytes:
        part: Images = self.parts[self.part_of[i]]
        return part.content(int(self.row_of[i]))

    def subset(self, indices: ArrayLike) -> JoinedImages:
        positions = self._positions(indices)
        chosen = JoinedImages.__new__(JoinedImages)
        chosen.parts = self.parts
        chosen.part_of, chosen.row_of = self.part_of[positions], self.row_of[positions]
        chosen.names = [self.names[i] for i in positions.tolist()]
        return chosen

    def __getstate__(self) -> dict[str, object]:
        # Only the images of this sequence: a part may have millions of others.
        parts, rows = [], self.row_of.copy()
        for k, part in enumerate(self.parts):
            mine = self.part_of == k
            used, rows[mine] = np.unique(self.row_of[mine], return_inverse=True)
            parts.append(part if len(used) == len(part) else part.subset(used))
        return {**self.__dict__, "parts": parts, "row_of": rows}

    def pieces(self) -> Iterator[tuple[Images, NDArray[np.int64]]]:
        """Yield the images of each part that is not joined itself, with their positions in this sequence."""
        for k, part in enumerate(self.parts):
            places = np.flatnonzero(self.part_of == k)
            rows = self.row_of[places]
            whole = np.array_equal(rows, np.arange(len(part)))
            some = part if whole else part.subset(rows)
            if isinstance(some, JoinedImages):
                yield from ((piece, places[inside]) for piece, inside in some.pieces())
            elif len(some):
                yield some, places

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        for k, part in enumerate(self.parts):
            rows = self.row_of[self.part_of == k]
            yield from part.subset(rows).stamps(times)
        yield self.part_of.tobytes()


def fingerprint(images: Images, times: bool = True) -> str:
    """Return a hash that changes when an image is added, removed, renamed or edited."""
    digest = hashlib.sha256()
    for stamp in images.stamps(times):
        digest.update(stamp)
    return digest.hexdigest()


def file_stamp(path: str, times: bool = True) -> bytes:
    """Return bytes that change when a file is edited or replaced: a hash of its size, its time and some content."""
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            digest = hashlib.sha256(f"\0{found.st_size}\0{found.st_mtime_ns if times else ''}\0".encode())
            for place in (0, found.st_size // 2, max(0, found.st_size - SAMPLE)):
                file.seek(place)
                digest.update(file.read(SAMPLE))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}).") from None
    return digest.digest()
