"""Stored vectors of images, (n, views, width), read from the files of a collection when they are asked for.

Knows nothing of images or backbones: it is told in which file and at which row each vector is.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.errors import UserError

FILE_BITS = 40
"""A place is a number: that of a file, times 2^40, plus the number of a row in it."""
ROW = (1 << FILE_BITS) - 1


class StoredFeatures:
    """An array (n, views, width) whose vectors lie in files; indexed by rows, or by rows and views.

    Files are not mapped into memory: each page of a huge mapped file costs a page fault and a read-ahead of many times
    the vector's size, and counts towards the process until the kernel reclaims it.
    """

    def __init__(self, files: Sequence[Path], places: NDArray[np.int64], width: int, dtype: Any):
        self.files, self.width, self.dtype = list(files), width, np.dtype(dtype)
        n, views = places.shape
        self.shape = (n, views, width)
        steps = places[0] - places[0, 0] if n else np.arange(views)
        regular = bool((places == places[:, :1] + steps).all())
        self.steps = steps if regular else None
        self.places = places[:, :1].copy() if regular else places
        """the place of each vector or, if the views of each image lie alike, of each image's first one"""
        self.descriptors: list[int] = []
        weakref.finalize(self, _close, self.descriptors)
        for file in self.files:
            self.descriptors.append(os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0)))
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self.descriptors[-1], 0, 0, os.POSIX_FADV_RANDOM)

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def ndim(self) -> int:
        return 3

    def __reduce__(self) -> Any:  # other processes open the files themselves
        every = self._places(np.arange(len(self))[:, None], np.arange(self.shape[1]))
        return StoredFeatures, (self.files, every, self.width, self.dtype)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return rows (several, by a slice or by positions), or one view of each row: ``features[rows, views]``."""
        if isinstance(key, tuple):
            rows, views = (np.asarray(part) for part in key)
            found = self._read(self._places(rows, views).reshape(-1), 1)
            return found.reshape(*np.broadcast_shapes(rows.shape, views.shape), self.width)
        rows = np.arange(len(self))[key]
        together = self.steps is not None and np.array_equal(self.steps, np.arange(self.shape[1]))
        if together:
            return self._read(self.places[rows, 0].reshape(-1), self.shape[1]).reshape(*rows.shape, *self.shape[1:])
        places = self._places(rows[..., None], np.arange(self.shape[1]))
        return self._read(places.reshape(-1), 1).reshape(*rows.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)

    def _places(self, rows: NDArray[Any], views: NDArray[Any]) -> NDArray[np.int64]:
        found: NDArray[np.int64]
        found = self.places[rows, views] if self.steps is None else self.places[rows, 0] + self.steps[views]
        return found

    def _read(self, places: NDArray[np.int64], vectors: int) -> NDArray[Any]:
        """Return this many vectors from each place on."""
        size = self.width * self.dtype.itemsize
        found = np.empty((len(places), vectors * self.width), self.dtype)
        into = memoryview(found.reshape(-1).view(np.uint8).data)
        nbytes = vectors * size
        which, starts = places >> FILE_BITS, (places & ROW) * size
        for i, (file, start) in enumerate(zip(which.tolist(), starts.tolist(), strict=True)):
            if _read_at(self.descriptors[file], into[i * nbytes : (i + 1) * nbytes], start) != nbytes:
                raise UserError(f"{self.files[file]}: was truncated while in use. Run the same command again.")
        return found


def _read_at(descriptor: int, into: memoryview, start: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [into], start)
    os.lseek(descriptor, start, os.SEEK_SET)
    data = os.read(descriptor, len(into))
    into[: len(data)] = data
    return len(data)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
