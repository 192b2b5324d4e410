"""Feature vectors that the user brings, in place of images.

Knows nothing of backbones, caches or training. A memory map stays one: its numbers are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.mapped import place_in_file
from selftrain.data.features.origin import Origin
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images import Images
from selftrain.errors import UserError

CHUNK = 1 << 24
"""bytes of an array that are looked at together"""


class RowNames(Sequence[str]):
    """The numbers of rows as their names, all of the same width; made when they are asked for."""

    def __init__(self, rows: int):
        self.rows, self.width = range(rows), len(str(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return [self._name(k) for k in self.rows[i]] if isinstance(i, slice) else self._name(self.rows[i])

    def _name(self, k: int) -> str:
        return f"{k:0{self.width}d}"


class FeatureRows(Images):
    """Feature vectors: (n, dim), or (n, views, dim) with the clean view first and, unless named, strong ones after it.

    Parameters
    ----------
    array
        Real numbers of any type, which they keep; a memory map stays on disk. Batches are float32.
    names
        One per row; by default the row numbers, padded with zeros so that they sort.
    checked
        All numbers are known to be finite.
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
        checked: bool = False,
        views: Sequence[str] | None = None,
        origin: Origin | None = None,
        what: str = "features",
    ):
        values = array if isinstance(array, np.memmap) else np.asarray(array)
        if values.ndim == 2:
            values = values[:, None]
        if values.ndim != 3 or 0 in values.shape[1:] or values.dtype.kind not in "biuf":
            raise UserError(
                f"{what}: expected numbers of shape (n, dim) or (n, views, dim), got {values.dtype} of shape "
                f"{np.shape(array)}."
            )
        bad: list[int] = [] if checked else not_finite(values)
        if bad:
            raise UserError(f"{what}: {len(bad)} of {len(values)} rows are not finite, the first is row {bad[0]}.")
        self.values = values
        self.names = RowNames(len(values)) if names is None else list(names)
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
        yield from (as_floats(part).tobytes() for _, part in chunks(self.values))

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
    usual = array.dtype in (np.float16, np.float32, np.float64)  # torch converts these much faster than NumPy
    return torch.from_numpy(array if usual else as_floats(array)).float()


def chunks(values: NDArray[Any] | JoinedFeatures) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the rows of an array in parts of a few megabytes, each with the number of its first row.

    A memory map is read from its file: mapped pages would count towards the process until the kernel reclaims them.
    """
    place = place_in_file(values)
    numbers = max(1, int(np.prod(values.shape[1:])))
    nbytes = numbers * values.dtype.itemsize
    step = max(1, CHUNK // nbytes)
    for start in range(0, len(values), step):
        rows = min(step, len(values) - start)
        if place is None:
            yield start, values[start : start + rows]
        else:
            part = np.fromfile(place.name, values.dtype, rows * numbers, offset=place.offset + start * nbytes)
            yield start, part.reshape(rows, *values.shape[1:])


def not_finite(values: NDArray[Any]) -> list[int]:
    """Return the rows with a number that is not finite in float32."""
    bad: list[int] = []
    if values.dtype.kind != "f":
        return bad
    for start, part in chunks(values):
        finite = np.isfinite(as_floats(part)).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            bad += (start + np.flatnonzero(~finite)).tolist()
    return bad


def _picked(values: NDArray[Any] | JoinedFeatures, rows: NDArray[np.int64]) -> NDArray[Any] | JoinedFeatures:
    """Return these rows; many rows of a memory map are not copied."""
    if isinstance(values, JoinedFeatures):
        return JoinedFeatures(values.parts, values.part_of[rows], values.row_of[rows], (len(rows), *values.shape[1:]))
    size = len(rows) * values.shape[1] * values.shape[2] * values.dtype.itemsize
    if not isinstance(values, np.memmap) or size <= CHUNK:
        return np.array(values[rows])
    return JoinedFeatures([values], np.zeros(len(rows), np.int64), rows, (len(rows), *values.shape[1:]))


def feature_batches(features: NDArray[Any] | JoinedFeatures | StoredFeatures, batch: int) -> Iterator[Tensor]:
    """Yield the clean view of every row, in order, in batches."""
    for start in range(0, len(features), batch):
        yield as_tensor(np.array(_clean(features, start, start + batch)))


def _clean(features: NDArray[Any] | JoinedFeatures | StoredFeatures, start: int, stop: int) -> NDArray[Any]:
    if isinstance(features, (JoinedFeatures, StoredFeatures)):
        rows = np.arange(start, min(stop, len(features)))
        return features[rows, np.zeros_like(rows)]
    return features[start:stop, 0]
