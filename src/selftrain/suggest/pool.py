"""The features of a pool as suggestions compare them: unit, centred, in the directions in which they vary most.

Knows nothing of images, labels or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from selftrain.methods.fitted import project, unit_centred
from selftrain.neighbours import nearest_rows

Array = NDArray[Any]
COMPONENTS = 64
NEIGHBOURS = 20
BASIS_ROWS = 20_000
"""rows from which the directions are computed; of more, every n-th"""


@dataclass(frozen=True, eq=False)
class Pool:
    """A pool of images as vectors that can be compared."""

    x: Array
    """(n, d) unit, centred features"""
    z: Array
    """(n, at most 64) the same in fewer directions, of unit length"""
    near: Array
    """(n, at most 20) the rows of the nearest images"""
    likeness: Array
    """(n, at most 20) their cosines"""

    @classmethod
    def of(cls, features: Array) -> Pool:
        """Prepare features (n, d) of any scale."""
        raw = torch.from_numpy(np.asarray(features, np.float32))
        x = unit_centred(raw, F.normalize(raw, dim=1).mean(dim=0)) if len(raw) > 1 else F.normalize(raw, dim=1)
        z = project(x, torch.from_numpy(_directions(x[:: max(1, len(x) // BASIS_ROWS)].numpy())))
        near = nearest_rows(z, NEIGHBOURS) if len(z) > 1 else None
        none = np.zeros((len(z), 0))
        return cls(
            x.numpy(),
            z.numpy(),
            none.astype(np.int64) if near is None else near.rows.numpy(),
            none if near is None else near.likeness.numpy(),
        )

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


def _directions(x: Array) -> Array:
    """Return the directions (d, at most 64) in which the rows vary most; empty if there are no more dimensions.

    Double precision, because a handful of images leaves most eigenvalues at zero, where single precision fails.
    """
    n, d = x.shape
    if d <= COMPONENTS or n <= COMPONENTS:
        return np.zeros(0, np.float32)
    wide = x.astype(np.float64)
    if n >= d:
        found: Array = np.linalg.eigh(wide.T @ wide)[1][:, -COMPONENTS:].astype(np.float32)
        return found
    values, rows = np.linalg.eigh(wide @ wide.T)  # the same directions from a smaller matrix
    scale = np.sqrt(np.maximum(values[-COMPONENTS:], 1e-12))
    from_rows: Array = (wide.T @ (rows[:, -COMPONENTS:] / scale)).astype(np.float32)
    return from_rows
