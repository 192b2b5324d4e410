"""Diffusion: labels diffuse along a graph of neighbours until they are in balance.

Knows nothing of the features: it sees the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from selftrain.config.options import AtLeast, Below, Positive
from selftrain.methods.base import Grid
from selftrain.methods.folds import assign_folds
from selftrain.methods.graph import GraphMethod, adjacency, shares
from selftrain.neighbours import Nearest

Array = NDArray[Any]
ITERATIONS = 20
MOST_FOLDS = 8
"""labels per class up to which each label is left out by itself; more are left out in so many folds"""


def normalised(A: Any) -> Any:
    """Return D^-1/2 A D^-1/2, where D holds the sums of the rows of A; a row without edges stays empty."""
    from scipy import sparse

    degree = np.asarray(A.sum(axis=1)).ravel()
    D = sparse.diags(np.divide(1, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0))
    return (D @ A @ D).tocsr()


def diffuse(W: Any, Y: Array, alpha: float) -> Array:
    """Return the F that solves (I - alpha W) F = Y, by conjugate gradients."""
    from scipy import sparse
    from scipy.sparse.linalg import cg

    system = (sparse.identity(W.shape[0], format="csr") - alpha * W).tocsr()
    return np.stack([cg(system, column, maxiter=ITERATIONS)[0] for column in Y.T], axis=1)


@dataclass(frozen=True, kw_only=True)
class Diffusion(GraphMethod):
    """(I - alpha W) F = Y with Y_ik = 1/n_k for the n_k labeled images of class k, which keep their labels."""

    name: ClassVar[str] = "diffusion"
    title: ClassVar[str] = "Graph diffusion"
    reference: ClassVar[str] = "Iscen et al., CVPR 2019"
    grid: ClassVar[Grid] = {"alpha": (0.5, 0.8, 0.95), "k": (5, 10, 20, 50)}

    alpha: Annotated[float, AtLeast(0), Below(1)] = 0.8
    """how far labels diffuse (0.99 in the paper, which spoils small pools)"""
    gamma: Positive = 3.0
    """power of the similarities that weigh the edges"""

    def spread(self, near: Nearest, y: Array, classes: int) -> Array:
        Y = np.zeros((len(near.rows), classes))
        Y[np.arange(len(y)), y] = 1 / np.bincount(y, minlength=classes)[y]
        p = shares(diffuse(normalised(adjacency(near, self.gamma)), Y, self.alpha))
        p[: len(y)] = Y[: len(y)] > 0
        return p

    def left_out(self, near: Nearest, y: Array, classes: int) -> Array:
        W, n = normalised(adjacency(near, self.gamma)), len(y)
        if n > MOST_FOLDS * classes:
            return self._without_folds(W, y, classes)
        # F is linear in Y, so the answers of the labeled images to one another hold every label that is left out
        own = np.zeros((W.shape[0], n))
        own[np.arange(n), np.arange(n)] = 1
        to_label = diffuse(W, own, self.alpha)[:n]
        np.fill_diagonal(to_label, 0)
        count = np.bincount(y, minlength=classes)
        scores = to_label @ (np.eye(classes)[y] / np.maximum(count, 1))
        scores[np.arange(n), y] *= count[y] / np.maximum(count[y] - 1, 1)
        return shares(scores)

    def _without_folds(self, W: Any, y: Array, classes: int) -> Array:
        p = np.full((len(y), classes), 1 / classes)
        fold = assign_folds(y, MOST_FOLDS)
        for i in range(MOST_FOLDS):
            kept, left = np.flatnonzero(fold != i), np.flatnonzero(fold == i)
            Y = np.zeros((W.shape[0], classes))
            Y[kept, y[kept]] = 1 / np.bincount(y[kept], minlength=classes)[y[kept]]
            p[left] = shares(diffuse(W, Y, self.alpha)[left])
        return p
