"""Views of features, in place of views of images: drawn from a cache, or made in feature space.

Knows nothing of images, backbones or methods.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.batch import kind_of
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.mapped import place_in_file
from selftrain.data.features.rows import as_tensor
from selftrain.errors import UserError
from selftrain.neighbours import nearest_rows


class FeatureViews:
    """Views drawn from a cache of features: each time a sample is used, one of its stored views of the given kind."""

    def __init__(self, features: NDArray[Any] | JoinedFeatures, names: Sequence[str], rows: NDArray[Any]):
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


NEIGHBOURS = 8


@dataclass(frozen=True)
class FeatureSpaceViews:
    """Views of features with one stored view per sample: strong views by dropout, noise and mixing with a neighbour."""

    values: Tensor
    """(n, dim) the features"""
    spread: Tensor
    """(dim,) their standard deviation"""
    near: Tensor | None
    """(n, neighbours) the rows that a sample may be mixed with"""
    noise: float
    dropout: float
    mixup: float

    @classmethod
    def compute(
        cls, values: NDArray[Any], rows: NDArray[Any], *, noise: float, dropout: float, mixup: float
    ) -> FeatureSpaceViews:
        """Return the views of these rows, once their neighbours are found."""
        some = torch.from_numpy(np.ascontiguousarray(values[rows], dtype=np.float32))
        spread = some.std(dim=0) if len(rows) > 1 else torch.zeros(values.shape[1])
        near = nearest_rows(some, NEIGHBOURS).rows if mixup and len(rows) > 1 else None
        return cls(some, spread, near, noise, dropout, mixup)

    def __len__(self) -> int:
        return len(self.values)

    def make(
        self, rows: NDArray[Any], names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        return {name: self._one(rows, kind_of(name), rng, mine) for name in names}

    def _one(self, rows: NDArray[Any], kind: str, rng: np.random.Generator, mine: slice) -> Tensor:
        n, dim = len(rows), self.values.shape[1]
        x = self.values[torch.from_numpy(rows[mine])]
        if kind != "strong":
            return x
        if self.near is not None:
            which = rng.integers(0, self.near.shape[1], n)[mine]
            share = torch.from_numpy(rng.uniform(0, self.mixup, (n, 1)).astype(np.float32)[mine])
            x = torch.lerp(x, self.values[self.near[rows[mine], which]], share)
        if self.noise:
            x = x + self.noise * self.spread * torch.from_numpy(rng.standard_normal((n, dim), np.float32)[mine])
        if self.dropout:
            kept = torch.from_numpy(rng.random((n, dim), np.float32)[mine] >= self.dropout)
            x = x * kept / (1 - self.dropout)
        return x
