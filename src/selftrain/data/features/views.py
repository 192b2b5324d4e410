"""Views of features, in place of views of images: drawn from a cache, or made in feature space.

Knows nothing of images, backbones or methods.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from selftrain.batch import kind_of
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.mapped import place_in_file
from selftrain.data.features.rows import as_tensor
from selftrain.data.features.stored import StoredFeatures
from selftrain.errors import UserError


class FeatureViews:
    """Views drawn from a cache of features: each time a sample is used, one of its stored views of the given kind."""

    def __init__(
        self, features: NDArray[Any] | JoinedFeatures | StoredFeatures, names: Sequence[str], rows: NDArray[Any]
    ):
        self.features = VectorFile.behind(features)
        self.rows = rows
        self.places = {
            kind: np.array([i for i, name in enumerate(names) if kind_of(name) == kind])
            for kind in ("clean", "weak", "strong")
        }
        if not len(self.places["weak"]):
            self.places["weak"] = self.places["clean"]

    def __len__(self) -> int:
        return len(self.rows)

    def make(
        self, rows: NDArray[Any], names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        drawn: dict[str, NDArray[Any]] = {}  # for each kind, a random order of its views per sample
        views = {}
        for name in names:
            kind = kind_of(name)
            places = self.places[kind]
            number = int(name.partition("_")[2] or 1) - 1
            if kind not in drawn:
                drawn[kind] = np.argsort(rng.random((len(rows), len(places))), axis=1)
            # A second view of a kind differs from the first if at least two are stored.
            chosen = places[drawn[kind][:, number % len(places)]]
            views[name] = self._gather(self.rows[rows[mine]], chosen[mine])
        return views

    def _gather(self, rows: NDArray[Any], places: NDArray[Any]) -> Tensor:
        return as_tensor(self.features[rows, places])


class VectorFile:
    """An array (n, views, dim) in a file, indexed by rows and views, and read one vector at a time.

    It is not mapped into memory: each page of a huge mapped file costs a page fault and a read-ahead of many times the
    vector's size, and counts towards the process until the kernel reclaims it.
    """

    def __init__(self, name: str, offset: int, shape: tuple[int, int], dtype: np.dtype[Any]):
        self.name, self.offset, self.shape, self.dtype = name, offset, shape, dtype
        self.descriptor = os.open(name, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    @classmethod
    def behind(cls, array: Any) -> Any:
        """Return the file of a memory-mapped array, or of each joined one; any other array is returned unchanged."""
        if isinstance(array, JoinedFeatures):
            return JoinedFeatures([cls.behind(part) for part in array.parts], array.part_of, array.row_of, array.shape)
        place = place_in_file(array) if hasattr(os, "preadv") else None
        return array if place is None else cls(place.name, place.offset, array.shape[1:], array.dtype)

    def __reduce__(self) -> Any:  # other processes open the file themselves
        return VectorFile, (self.name, self.offset, self.shape, self.dtype)

    def __getitem__(self, key: tuple[NDArray[Any], NDArray[Any]]) -> NDArray[Any]:
        rows, places = key
        views, dim = self.shape
        nbytes = dim * self.dtype.itemsize
        found = np.empty((len(rows), dim), self.dtype)
        into = memoryview(found.data).cast("B")
        for i, start in enumerate((self.offset + (rows * views + places) * nbytes).tolist()):
            if os.preadv(self.descriptor, [into[i * nbytes : (i + 1) * nbytes]], start) != nbytes:
                raise UserError(f"{self.name}: was truncated while in use. Run the same command again.")
        return found


NEIGHBOURS, CANDIDATES = 8, 4096
"""nearest rows that a sample may be mixed with, and rows among which they are searched"""
SPREAD_ROWS = 20_000
"""rows from which the standard deviation is computed if there are more"""


@dataclass
class FeatureSpaceViews:
    """Views of features with one stored view per sample: strong views by dropout, noise and mixing with a neighbour.

    Vectors are read when their batch comes: an array of any size, also one in a file, is not copied.
    """

    features: Any
    """(n, 1, dim), indexed by rows and views"""
    dim: int
    rows: NDArray[Any]
    """the rows of the features to which these views belong"""
    noise: float
    dropout: float
    mixup: float

    @classmethod
    def compute(
        cls, values: NDArray[Any], rows: NDArray[Any], *, noise: float, dropout: float, mixup: float
    ) -> FeatureSpaceViews:
        """Return the views of these rows of an array (n, dim)."""
        features = VectorFile.behind(values[:, None])
        return cls(features, values.shape[1], rows, noise, dropout, mixup if len(rows) > 1 else 0.0)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def spread(self) -> NDArray[Any]:
        """The standard deviation of each feature."""
        if len(self.rows) < 2:
            return np.zeros(self.dim, np.float32)
        some = torch.from_numpy(self._gather(some_rows(len(self.rows), SPREAD_ROWS)))
        return some.std(dim=0).numpy()

    @cached_property
    def candidates(self) -> tuple[NDArray[Any], Tensor]:
        """Rows that others may be mixed with, and their unit vectors (dim, candidates)."""
        rows = some_rows(len(self.rows), CANDIDATES)
        return rows, normalize(torch.from_numpy(self._gather(rows)), dim=1).T.contiguous()

    def near(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the nearest candidates of these rows (n, neighbours); a row is not its own neighbour."""
        candidates, keys = self.candidates
        likeness = normalize(torch.from_numpy(self._gather(rows)), dim=1) @ keys
        likeness[torch.from_numpy(rows[:, None] == candidates)] = -2
        places = likeness.topk(min(NEIGHBOURS, len(candidates) - 1), dim=1).indices.numpy()
        found: NDArray[Any] = candidates[places]
        return found

    def make(
        self, rows: NDArray[Any], names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        return {name: torch.from_numpy(self._one(rows, kind_of(name), rng, mine)) for name in names}

    def _gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        rows = self.rows[rows]
        found: NDArray[Any] = self.features[rows, np.zeros_like(rows)]
        return found.astype(np.float32, copy=False)

    def _one(self, rows: NDArray[Any], kind: str, rng: np.random.Generator, mine: slice) -> NDArray[Any]:
        x = self._gather(rows[mine])
        if kind != "strong":
            return x
        n = len(rows)
        if self.mixup:
            near = self.near(rows[mine])
            which = (near.shape[1] * rng.random(n))[mine].astype(np.int64)
            share = rng.uniform(0, self.mixup, (n, 1)).astype(np.float32)[mine]
            x += share * (self._gather(near[np.arange(len(near)), which]) - x)
        if self.noise or self.dropout:
            # 16 random bits for the noise and 16 for the dropout of each number
            bits = rng.integers(0, 1 << 32, (n, self.dim), np.uint32)[mine].view(np.uint16)
            if self.noise:
                x += gaussian(bits[:, ::2]) * (self.noise * self.spread)
            if self.dropout:
                x *= np.float32(1 / (1 - self.dropout))
                x *= bits[:, 1::2] >= round(self.dropout * (1 << 16))
        return x


def some_rows(n: int, most: int) -> NDArray[Any]:
    """Return all rows 0..n-1, or ``most`` of them, in order, that are always the same."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def gaussian(bits: NDArray[Any]) -> NDArray[Any]:
    """Return Gaussian numbers from 16 random bits each, which is enough for noise and much faster than drawing them."""
    found: NDArray[Any] = _quantiles()[bits]
    return found


@lru_cache(maxsize=1)
def _quantiles() -> NDArray[Any]:
    """Return the quantiles of the normal distribution in the middle of 65,536 equal shares."""
    levels = (torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16)
    found: NDArray[Any] = torch.special.ndtri(levels).float().numpy()
    return found
