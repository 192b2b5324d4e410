"""Views of frozen features: a backbone runs once over weak, strong and clean views of every picture, and that is kept.

Knows nothing of methods, nor which backbone it is: it is given a function from pixels to features and a name for it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selftrain.batch import kind_of
from selftrain.console import Reporter
from selftrain.data.features.store import cached_array
from selftrain.data.images import Images, fingerprint
from selftrain.data.views.image_views import ImageViews
from selftrain.errors import UserError

PIECE = 16  # pictures to a piece of the cache: what a kill can cost

Encode = Callable[[Tensor], Tensor]
"""uint8 pictures (B, C, side, side) -> features (B, dim); safe to call from several threads"""


def view_names(weak: int, strong: int) -> tuple[str, ...]:
    """The views kept of each picture, in their order in the cache."""
    return (
        "clean",
        *(f"weak_{i + 1}" for i in range(weak)),
        *(f"strong_{i + 1}" for i in range(strong)),
    )


def extract_features(
    views: ImageViews,
    names: Sequence[str],
    encode: Encode,
    *,
    dim: int,
    about: dict[str, Any],
    root: Any,
    seed: int = 0,
    dtype: str = "float16",
    threads: int = 1,
    batch: int = 64,
    reporter: Reporter | None = None,
) -> np.ndarray:
    """Features (n, views, dim) of every picture, from the cache where they are there already.

    ``about`` says what they depend on besides the pictures: backbone, weights, size, augmentation.
    """

    def compute(start: int, stop: int) -> np.ndarray:
        rng = np.random.default_rng([seed, start])
        pictures = views.make(np.arange(start, stop), names, rng)
        together = torch.stack([pictures[name] for name in names], dim=1).flatten(0, 1)
        features = torch.cat([encode(part) for part in together.split(batch)])
        return features.view(stop - start, len(names), dim).numpy()

    return cached_array(
        root,
        {**about, "views": list(names), "seed": seed, "images": fingerprint(views.images)},
        (len(views), len(names), dim),
        dtype,
        compute,
        piece=PIECE,
        threads=threads,
        reporter=reporter,
        what="extracting features",
        unit="images",
    )


class FeatureViews:
    """Views drawn from a cache of features: each time a sample comes up, one of its kept views of the asked kind."""

    def __init__(self, features: np.ndarray, names: Sequence[str], rows: np.ndarray):
        self.features = VectorFile.behind(features)
        self.rows = rows
        self.places = {
            kind: np.array([i for i, name in enumerate(names) if kind_of(name) == kind])
            for kind in ("clean", "weak", "strong")
        }

    def __len__(self) -> int:
        return len(self.rows)

    def make(
        self, rows: np.ndarray, names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        drawn: dict[str, np.ndarray] = {}  # for each kind, an order of its views for every sample
        views = {}
        for name in names:
            kind = kind_of(name)
            places = self.places[kind]
            number = int(name.partition("_")[2] or 1) - 1
            if kind not in drawn:
                drawn[kind] = np.argsort(rng.random((len(rows), len(places))), axis=1)
            # a second view of a kind differs from the first, as long as there are enough of them
            chosen = places[drawn[kind][:, number % len(places)]]
            views[name] = self._gather(self.rows[rows[mine]], chosen[mine])
        return views

    def _gather(self, rows: np.ndarray, places: np.ndarray) -> Tensor:
        return torch.from_numpy(self.features[rows, places]).float()  # torch is much quicker than NumPy in this


class VectorFile:
    """An array (n, views, dim) that lies in a file, indexed by rows and views, and read a vector at a time.

    Not mapped into memory: each page of a huge mapped file costs a fault and a read-ahead of many times what is wanted,
    and counts as ours until the kernel takes it back.
    """

    def __init__(self, name: str, offset: int, shape: tuple[int, int], dtype: np.dtype[Any]):
        self.name, self.offset, self.shape, self.dtype = name, offset, shape, dtype
        self.descriptor = os.open(name, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    @classmethod
    def behind(cls, array: np.ndarray) -> Any:
        """The file of a memory-mapped array; any other array itself."""
        if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and hasattr(os, "preadv"):
            return cls(str(array.filename), array.offset, array.shape[1:], array.dtype)
        return array

    def __reduce__(self) -> Any:  # other processes open it for themselves
        return VectorFile, (self.name, self.offset, self.shape, self.dtype)

    def __getitem__(self, key: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        rows, places = key
        views, dim = self.shape
        nbytes = dim * self.dtype.itemsize
        found = np.empty((len(rows), dim), self.dtype)
        into = memoryview(found.data).cast("B")
        for i, start in enumerate((self.offset + (rows * views + places) * nbytes).tolist()):
            if os.preadv(self.descriptor, [into[i * nbytes : (i + 1) * nbytes]], start) != nbytes:
                raise UserError(f"{self.name}: was cut short while in use. Run the same command again.")
        return found


def feature_batches(features: np.ndarray, batch: int) -> Iterator[Tensor]:
    """The clean view of every row, in order, in batches."""
    for start in range(0, len(features), batch):
        yield torch.from_numpy(np.array(features[start : start + batch, 0])).float()


class FeatureRows(Images):
    """Feature vectors that the user brings, in the place of pictures: (n, dim), or (n, views, dim) with the clean view
    first and strong ones after it."""

    def __init__(self, array: Any, names: Sequence[str] | None = None):
        values = np.asarray(array)
        if values.ndim == 2:
            values = values[:, None]
        if values.ndim != 3 or 0 in values.shape[1:] or not np.issubdtype(values.dtype, np.number):
            raise UserError(
                f"features: expected numbers of shape (n, dim) or (n, views, dim), got {values.dtype} of shape "
                f"{np.shape(array)}."
            )
        values = values.astype(np.float32, copy=False)
        bad = np.flatnonzero(~np.isfinite(values).all(axis=(1, 2)))
        if len(bad):
            raise UserError(f"features: row {bad[0]} is not finite; {len(bad)} of {len(values)} rows are so.")
        self.values = values
        self.names = (
            list(names) if names is not None else [f"{i:0{len(str(len(values)))}d}" for i in range(len(values))]
        )

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Any:
        raise UserError("features have no pixels: they train in the frozen regime only.")

    def check(self, i: int, full: bool = True) -> None:
        pass  # checked when it was made

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield repr(self.values.shape).encode()
        yield self.values.tobytes()

    def subset(self, indices: Any) -> FeatureRows:
        rows = self._positions(indices)
        return FeatureRows(self.values[rows], [self.names[i] for i in rows])


class FeatureSpaceViews:
    """Views of features of which there is but one: strong views by dropout, noise and a step towards a neighbour.

    The neighbours of a row are its nearest by cosine among a sample of the rows, so that many rows stay affordable.
    """

    NEIGHBOURS, CANDIDATES = 8, 20_000

    def __init__(self, values: np.ndarray, rows: np.ndarray, *, noise: float, dropout: float, mixup: float):
        self.values = torch.from_numpy(np.ascontiguousarray(values[rows], dtype=np.float32))
        self.noise, self.dropout, self.mixup = noise, dropout, mixup
        self.spread = self.values.std(dim=0) if len(rows) > 1 else torch.zeros(values.shape[1])
        self.near = self._neighbours() if mixup and len(rows) > 1 else None

    def __len__(self) -> int:
        return len(self.values)

    def _neighbours(self) -> Tensor:
        unit = torch.nn.functional.normalize(self.values, dim=1)
        rng = np.random.default_rng(0)
        n = len(unit)
        pool = np.arange(n) if n <= self.CANDIDATES else np.sort(rng.choice(n, self.CANDIDATES, replace=False))
        candidates = torch.from_numpy(pool)
        k = min(self.NEIGHBOURS, len(pool) - 1)
        near = torch.empty(n, k, dtype=torch.int64)
        for start in range(0, n, 1024):
            rows = torch.arange(start, min(start + 1024, n))
            likeness = unit[rows] @ unit[candidates].T
            likeness[rows[:, None] == candidates[None]] = -2  # nobody is their own neighbour
            near[rows] = candidates[likeness.topk(k, dim=1).indices]
        return near

    def make(
        self, rows: np.ndarray, names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        return {name: self._one(rows, kind_of(name), rng, mine) for name in names}

    def _one(self, rows: np.ndarray, kind: str, rng: np.random.Generator, mine: slice) -> Tensor:
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
