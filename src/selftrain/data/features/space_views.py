"""Views of features that are made in feature space: strong views by dropout, noise and mixing with a neighbour.

Knows nothing of images, backbones or methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.batch import kind_of
from selftrain.data.features.views import VectorFile
from selftrain.neighbours import CANDIDATES, Search, candidate_rows, nearest_rows

NEIGHBOURS = 8
LARGEST_IN_MEMORY = 1 << 28
"""bytes of a memory map, as float32, that are read into memory; a larger one is read row by row"""


class Vectors(Protocol):
    """Rows of numbers, in memory or in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor) -> Tensor: ...


class VectorsInFile:
    """Some rows of a memory map, read when they are asked for."""

    def __init__(self, values: NDArray[Any], rows: NDArray[np.int64]):
        self.file, self.rows = VectorFile.behind(values[:, None]), rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        found = self.rows[rows.numpy()]
        return torch.from_numpy(self.file[found, np.zeros_like(found)]).float()


def _vectors(values: NDArray[Any], rows: NDArray[np.int64]) -> Vectors:
    """Return these rows as float32, without a copy where that is possible."""
    if isinstance(values, np.memmap) and 4 * len(rows) * values.shape[1] > LARGEST_IN_MEMORY:
        return VectorsInFile(values, rows)
    whole = len(rows) == len(values) and np.array_equal(rows, np.arange(len(values)))
    if whole and values.dtype == np.float32 and values.flags.c_contiguous and values.flags.writeable:
        return torch.from_numpy(np.asarray(values))
    return torch.from_numpy(np.ascontiguousarray(values[rows], dtype=np.float32))


class FeatureSpaceViews:
    """Views of features with one stored view per sample.

    A strong view is mixed with one of the nearest rows. They are found when the first strong view is asked for; of more
    rows than are compared with each other, when a row is drawn.

    Parameters
    ----------
    values
        (n, dim) features of all samples, in memory or memory-mapped.
    rows
        The samples that have views.
    noise, dropout, mixup
        As the settings ``data.feature_noise``, ``data.feature_dropout`` and ``data.feature_mixup`` say.
    """

    def __init__(
        self, values: NDArray[Any], rows: NDArray[np.int64], *, noise: float, dropout: float, mixup: float
    ) -> None:
        self.values, self.dim = _vectors(values, rows), values.shape[1]
        self.noise, self.dropout, self.mixup = noise, dropout, mixup

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def spread(self) -> Tensor:
        """(dim,) the standard deviation of the features; of those in a file, that of a sample."""
        if len(self) < 2:
            return torch.zeros(self.dim)
        some = self.values if isinstance(self.values, Tensor) else self.values[candidate_rows(len(self))]
        return some.std(dim=0)

    @cached_property
    def _near(self) -> Tensor:
        return nearest_rows(self.values[torch.arange(len(self))], NEIGHBOURS).rows

    @cached_property
    def _search(self) -> Search:
        candidates = candidate_rows(len(self))
        return Search(candidates, self.values[candidates])

    def neighbours(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the rows that each of these rows, with the values x, may be mixed with."""
        return self._near[rows] if len(self) <= CANDIDATES else self._search(rows, x, NEIGHBOURS)

    def make(
        self, rows: NDArray[Any], names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        return {name: self._one(rows, kind_of(name), rng, mine) for name in names}

    def _one(self, rows: NDArray[Any], kind: str, rng: np.random.Generator, mine: slice) -> Tensor:
        n, some = len(rows), torch.from_numpy(rows[mine])
        x = self.values[some]
        if kind != "strong":
            return x
        if self.mixup and len(self) > 1:
            near = self.neighbours(some, x)
            which = torch.from_numpy(rng.integers(0, near.shape[1], n)[mine])
            share = torch.from_numpy(rng.uniform(0, self.mixup, (n, 1)).astype(np.float32)[mine])
            x = torch.lerp(x, self.values[near.gather(1, which[:, None])[:, 0]], share)
        if self.noise:
            x = x + self.noise * self.spread * torch.from_numpy(rng.standard_normal((n, self.dim), np.float32)[mine])
        if self.dropout:
            kept = torch.from_numpy(rng.random((n, self.dim), np.float32)[mine] >= self.dropout)
            x = x * kept / (1 - self.dropout)
        return x
