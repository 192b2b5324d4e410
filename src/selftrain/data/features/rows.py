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
from selftrain.data.images import Images
from selftrain.errors import UserError


class FeatureRows(Images):
    """Feature vectors: (n, dim), or (n, views, dim) with the clean view first and strong views after it."""

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
            raise UserError(f"features: {len(bad)} of {len(values)} rows are not finite, the first is row {bad[0]}.")
        self.values = values
        self.names = (
            list(names) if names is not None else [f"{i:0{len(str(len(values)))}d}" for i in range(len(values))]
        )

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
        yield self.values.tobytes()

    def subset(self, indices: Any) -> FeatureRows:
        rows = self._positions(indices)
        return FeatureRows(self.values[rows], [self.names[i] for i in rows])


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
