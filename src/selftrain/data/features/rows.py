"""Feature vectors that the user brings, in place of images.

Knows nothing of backbones, caches or training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.mapped import place_in_file
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
    """Feature vectors: (n, dim), or (n, views, dim) with the clean view first and strong views after it.

    They keep the type of their numbers, and a memory map stays on disk: batches become float32 when they are read.
    """

    def __init__(self, array: Any, names: Sequence[str] | None = None, *, checked: bool = False):
        """``checked``: all numbers are known to be finite."""
        values = array if isinstance(array, np.memmap) else np.asarray(array)
        if values.ndim == 2:
            values = values[:, None]
        if values.ndim != 3 or 0 in values.shape[1:] or values.dtype.kind not in "biuf":
            raise UserError(
                f"features: expected numbers of shape (n, dim) or (n, views, dim), got {values.dtype} of shape "
                f"{np.shape(array)}."
            )
        if not values.dtype.isnative or values.dtype.itemsize > 8:  # torch has no such numbers
            values = values.astype(np.float32)
        bad: list[int] = [] if checked else not_finite(values)
        if len(bad):
            raise UserError(f"features: {len(bad)} of {len(values)} rows are not finite, the first is row {bad[0]}.")
        self.values = values
        self.names = RowNames(len(values)) if names is None else list(names)

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
        yield from (part.astype(np.float32, copy=False).tobytes() for _, part in chunks(self.values))

    def subset(self, indices: Any) -> FeatureRows:
        rows = self._positions(indices)
        return FeatureRows(self.values[rows], [self.names[i] for i in rows.tolist()], checked=True)


def chunks(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
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
        with np.errstate(over="ignore"):
            finite = np.isfinite(part.astype(np.float32, copy=False)).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            bad += (start + np.flatnonzero(~finite)).tolist()
    return bad


def feature_rows(features: Any, dim: int) -> FeatureRows:
    """Return features for a model that takes ``dim`` numbers per row: an array, or the path of a ``.npy`` file."""
    rows = FeatureRows(_read_array(Path(features), dim) if isinstance(features, (str, os.PathLike)) else features)
    if rows.dim != dim:
        raise UserError(f"features: this model takes {dim} numbers per row, not {rows.dim}.")
    return rows


def _read_array(path: Path, dim: int) -> NDArray[Any]:
    """Return the rows of a ``.npy`` file."""
    if path.suffix != ".npy":
        raise UserError(f"{path}: this model was trained on features; give a .npy file with {dim} numbers per row.")
    try:
        if is_zipfile(path):
            raise UserError(f"{path}: this is an .npz file with several arrays; save one array with numpy.save.")
        rows: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except ValueError as error:
        raise UserError(f"{path}: not an array written by numpy.save ({error}).") from None
    return rows


def feature_batches(features: NDArray[Any] | JoinedFeatures, batch: int) -> Iterator[Tensor]:
    """Yield the clean view of every row, in order, in batches."""
    for start in range(0, len(features), batch):
        yield torch.from_numpy(np.array(_clean(features, start, start + batch))).float()


def _clean(features: NDArray[Any] | JoinedFeatures, start: int, stop: int) -> NDArray[Any]:
    if isinstance(features, JoinedFeatures):
        rows = np.arange(start, min(stop, len(features)))
        return features[rows, np.zeros_like(rows)]
    return features[start:stop, 0]
