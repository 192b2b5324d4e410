"""Features of several parts of a pool, each in an array of its own, indexed as if they were one array.

Knows nothing of images, caches or backbones. Nothing is copied until rows are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class JoinedFeatures:
    """Arrays (n_i, views, dim) as one array (n, views, dim), whose rows may lie in the parts in any order."""

    def __init__(
        self, parts: Sequence[Any], part_of: NDArray[np.int64], row_of: NDArray[np.int64], shape: tuple[int, ...]
    ):
        self.parts, self.part_of, self.row_of, self.shape = list(parts), part_of, row_of, shape

    @classmethod
    def of(cls, parts: Sequence[tuple[NDArray[Any], NDArray[np.int64]]]) -> JoinedFeatures:
        """Join arrays, each with the positions of its rows in the whole."""
        n = sum(len(places) for _, places in parts)
        part_of, row_of = np.empty((2, n), np.int64)
        for k, (_, places) in enumerate(parts):
            part_of[places], row_of[places] = k, np.arange(len(places))
        return cls([array for array, _ in parts], part_of, row_of, (n, *parts[0][0].shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.parts[0].dtype
        return dtype

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return rows (several, by a slice or by positions), or one view of each row: ``features[rows, views]``."""
        rows, places = key if isinstance(key, tuple) else (key, None)
        part_of, row_of = self.part_of[rows], self.row_of[rows]
        tail = self.shape[1:] if places is None else self.shape[2:]
        found = np.empty((len(part_of), *tail), self.dtype)
        for k, part in enumerate(self.parts):
            mine = np.flatnonzero(part_of == k)
            if len(mine):
                found[mine] = part[row_of[mine]] if places is None else part[row_of[mine], places[mine]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)
