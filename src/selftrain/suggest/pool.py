"""The features of a pool as suggestions compare them: unit, centred, in the directions in which they vary most.

Knows nothing of images, labels or models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from selftrain.methods.fitted import project, unit_centred
from selftrain.neighbours import nearest_rows

Array = NDArray[Any]
COMPONENTS = 64
NEIGHBOURS = 20
BASIS_ROWS = 20_000
"""rows from which the directions are computed; of more, every n-th"""
BLOCK = 4096
"""rows that are prepared at once: a second copy of all features would be the largest part of a process's memory"""


@dataclass(frozen=True, eq=False)
class Pool:
    """A pool of images as vectors that can be compared."""

    features: Array
    """(n, d) of any scale, as they were given"""
    centre: Tensor
    """(d,) mean of the unit features"""
    z: Array
    """(n, at most 64) unit, centred features in fewer directions, of unit length"""
    near: Array
    """(n, at most 20) the rows of the nearest images"""
    likeness: Array
    """(n, at most 20) their cosines"""

    @classmethod
    def of(cls, features: Array) -> Pool:
        """Prepare features (n, d) of any scale; they are not copied if they are floats of 16 or 32 bits."""
        values = np.asarray(features)
        values = values if values.dtype in (np.float16, np.float32) else values.astype(np.float32)
        n, d = values.shape
        total = torch.zeros(d, dtype=torch.float64)
        for part in _parts(values):
            total += F.normalize(part, dim=1).sum(dim=0, dtype=torch.float64)
        centre = (total / n).float() if n > 1 else torch.zeros(d)
        basis = torch.from_numpy(_directions(values[:: max(1, n // BASIS_ROWS)], centre))
        z = torch.empty(n, basis.shape[1] if len(basis) else d)
        for k, part in enumerate(_parts(values)):
            z[k * BLOCK : (k + 1) * BLOCK] = project(unit_centred(part, centre), basis)
        near = nearest_rows(z, NEIGHBOURS) if n > 1 else None
        none = np.zeros((n, 0))
        return cls(
            values,
            centre,
            z.numpy(),
            none.astype(np.int64) if near is None else near.rows.numpy(),
            none if near is None else near.likeness.numpy(),
        )

    def unit(self, rows: Any) -> Array:
        """Return the unit, centred features (len(rows), d) of some rows."""
        found: Array = unit_centred(torch.from_numpy(self.features[rows]), self.centre).numpy()
        return found

    def units(self) -> Iterator[Array]:
        """Yield the unit, centred features of all rows in their order, in blocks."""
        return (self.unit(slice(start, start + BLOCK)) for start in range(0, len(self), BLOCK))

    def __len__(self) -> int:
        return len(self.z)

    @property
    def density(self) -> Array:
        """How like its nearest images each image is, with a mean of 1."""
        if not self.likeness.shape[1]:
            return np.ones(len(self))
        mean = self.likeness.mean(axis=1).clip(min=1e-3)
        density: Array = mean / mean.mean()
        return density


def _parts(values: Array) -> Iterator[Tensor]:
    return (torch.from_numpy(values[start : start + BLOCK]).float() for start in range(0, len(values), BLOCK))


def _directions(values: Array, centre: Tensor) -> Array:
    """Return the directions (d, at most 64) in which the rows vary most; empty if there are no more dimensions.

    Double precision, because a handful of images leaves most eigenvalues at zero, where single precision fails.
    """
    n, d = values.shape
    if d <= COMPONENTS or n <= COMPONENTS:
        return np.zeros(0, np.float32)
    wide = (unit_centred(part, centre).double().numpy() for part in _parts(values))
    if n >= d:
        square = np.zeros((d, d))
        for part in wide:
            square += part.T @ part
        found: Array = np.linalg.eigh(square)[1][:, -COMPONENTS:].astype(np.float32)
        return found
    x = np.concatenate(list(wide))
    values, rows = np.linalg.eigh(x @ x.T)  # the same directions from a smaller matrix
    scale = np.sqrt(np.maximum(values[-COMPONENTS:], 1e-12))
    from_rows: Array = (x.T @ (rows[:, -COMPONENTS:] / scale)).astype(np.float32)
    return from_rows
