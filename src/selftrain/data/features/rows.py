"""Feature vectors that the user brings, in place of images.

Knows nothing of backbones, caches or training. A memory map stays one: its numbers are read when they are asked for.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.origin import Origin
from selftrain.data.images import Images
from selftrain.errors import UserError

CHUNK = 1 << 24
"""bytes that are read at once"""
KEPT_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
"""number formats of arrays in memory that are not copied"""


class FeatureRows(Images):
    """Feature vectors: (n, dim), or (n, views, dim) with the clean view first and, unless named, strong ones after it.

    Parameters
    ----------
    array
        Real numbers of any format; those in memory become float32, unless they are float16.
    names
        One per row; by default the row numbers, padded with zeros so that they sort.
    views
        The names of the views.
    origin
        The backbone that made the features, if it is known.
    what
        The beginning of error messages.
    """

    values: NDArray[Any] | JoinedFeatures
    """(n, views, dim)"""

    def __init__(
        self,
        array: Any,
        names: Sequence[str] | None = None,
        *,
        views: Sequence[str] | None = None,
        origin: Origin | None = None,
        what: str = "features",
    ):
        values = array if isinstance(array, np.memmap) else np.asarray(array)
        if values.ndim == 2:
            values = _with_views(values)
        if values.ndim != 3 or 0 in values.shape[1:] or values.dtype.kind not in "fiub":
            raise UserError(
                f"{what}: expected numbers of shape (n, dim) or (n, views, dim), got {values.dtype} of shape "
                f"{np.shape(array)}."
            )
        if not isinstance(values, np.memmap) and values.dtype not in KEPT_DTYPES:
            with np.errstate(over="ignore"):  # infinite numbers are found below
                values = values.astype(np.float32)
        _check_finite(values, what)
        self.values = values
        self.names = (
            list(names) if names is not None else [f"{i:0{len(str(len(values)))}d}" for i in range(len(values))]
        )
        self.views = tuple(views or ("clean", *(f"strong_{i}" for i in range(1, values.shape[1]))))
        self.origin = origin

    @property
    def dim(self) -> int:
        """The length of a feature vector."""
        return int(self.values.shape[2])

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Any:
        raise UserError("features have no pixels: they train in the frozen regime only.")

    def check(self, i: int, full: bool = True) -> None:
        pass  # checked by the constructor

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield repr(self.values.shape).encode()
        for start, stop in _chunks(self.values):
            yield as_floats(self.values[start:stop]).tobytes()

    def subset(self, indices: Any) -> FeatureRows:
        rows = self._positions(indices)
        part = FeatureRows.__new__(FeatureRows)
        part.values = _picked(self.values, rows)
        part.names = [self.names[i] for i in rows.tolist()]
        part.views, part.origin = self.views, self.origin
        return part


def as_floats(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return real numbers of any format as float32."""
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float32)


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return real numbers of any format as a float32 tensor."""
    usual = array.dtype in (*KEPT_DTYPES, np.dtype(np.float64))  # torch converts these much faster than NumPy
    return torch.from_numpy(array if usual else as_floats(array)).float()


class CleanView:
    """The clean view of stored features as an array (n, dim) that is read when rows are asked for."""

    def __init__(self, values: NDArray[Any] | JoinedFeatures):
        self.values = values
        self.shape = (values.shape[0], values.shape[2])

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        found = np.empty((len(rows), self.shape[1]), np.float32)
        step = max(1, CHUNK // (4 * self.shape[1]))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            found[start : start + step] = as_floats(self.values[some, np.zeros_like(some)])
        return found


def _with_views(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array (n, dim) as (n, 1, dim); one that is the whole of a memory map becomes another such map."""
    n, dim = values.shape
    if isinstance(values, np.memmap) and isinstance(values.base, mmap.mmap) and values.flags.c_contiguous:
        return np.memmap(values.filename, values.dtype, mode="r", offset=values.offset, shape=(n, 1, dim))
    return values[:, None]


def _chunks(values: NDArray[Any] | JoinedFeatures) -> Iterator[tuple[int, int]]:
    rows = max(1, CHUNK // (values.shape[1] * values.shape[2] * values.dtype.itemsize))
    return ((start, min(start + rows, len(values))) for start in range(0, len(values), rows))


def _check_finite(values: NDArray[Any], what: str) -> None:
    """Raise a UserError that says how many rows are not finite as float32, and which is the first."""
    if values.dtype.kind != "f":
        return
    bad, first = 0, -1
    for start, stop in _chunks(values):
        finite = np.isfinite(as_floats(_from_disk(values, start, stop)))
        if not finite.all():
            rows = np.flatnonzero(~finite.all(axis=(1, 2)))
            first = start + int(rows[0]) if first < 0 else first
            bad += len(rows)
    if bad:
        raise UserError(f"{what}: {bad} of {len(values)} rows are not finite, the first is row {first}.")


def _from_disk(values: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Return some rows; those of a memory map without mapping its pages, which would count towards the process."""
    if isinstance(values, np.memmap) and isinstance(values.base, mmap.mmap) and values.flags.c_contiguous:
        row = values.shape[1] * values.shape[2]
        offset = values.offset + start * row * values.dtype.itemsize
        read = np.fromfile(values.filename, values.dtype, (stop - start) * row, offset=offset)
        if len(read) == (stop - start) * row:
            return read.reshape(stop - start, *values.shape[1:])
    return values[start:stop]


def _picked(values: NDArray[Any] | JoinedFeatures, rows: NDArray[np.int64]) -> NDArray[Any] | JoinedFeatures:
    """Return these rows; many rows of a memory map are not copied."""
    if isinstance(values, JoinedFeatures):
        return JoinedFeatures(values.parts, values.part_of[rows], values.row_of[rows], (len(rows), *values.shape[1:]))
    size = len(rows) * values.shape[1] * values.shape[2] * values.dtype.itemsize
    if not isinstance(values, np.memmap) or size <= CHUNK:
        return np.array(values[rows])
    return JoinedFeatures([values], np.zeros(len(rows), np.int64), rows, (len(rows), *values.shape[1:]))


def feature_batches(features: NDArray[Any] | JoinedFeatures, batch: int) -> Iterator[Tensor]:
    """Yield the clean view of every row, in order, in batches."""
    for start in range(0, len(features), batch):
        yield as_tensor(np.array(_clean(features, start, start + batch)))


def _clean(features: NDArray[Any] | JoinedFeatures, start: int, stop: int) -> NDArray[Any]:
    if isinstance(features, JoinedFeatures):
        rows = np.arange(start, min(stop, len(features)))
        return features[rows, np.zeros_like(rows)]
    return features[start:stop, 0]
