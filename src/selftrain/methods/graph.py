"""A graph of nearest neighbours over labeled and unlabeled images, and methods that spread labels along it.

Knows nothing of how labels are spread: each method defines ``spread``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from selftrain.config.options import AtLeast, Positive
from selftrain.methods.fitted import (
    FittedMethod,
    FittedPredictor,
    SoftNeighbours,
    Solution,
    principal_directions,
    project,
)
from selftrain.methods.functional import PseudoLabels
from selftrain.neighbours import Nearest, candidate_rows, nearest_rows

Array = NDArray[Any]
CHUNK = 4096
"""images that are prepared at once"""


def adjacency(near: Nearest, power: float) -> Any:
    """Return the sparse matrix A + A^T, where a_ij = max(cos(x_i, x_j), 0)^power if j is a neighbour of i."""
    from scipy import sparse

    n, k = near.rows.shape
    values = near.likeness.double().clamp(min=0).pow(power).cpu().numpy()
    columns = near.rows.cpu().numpy()
    A = sparse.csr_matrix((values.ravel(), columns.ravel(), k * np.arange(n + 1)), shape=(n, n))
    return (A + A.T).tocsr()


def shares(scores: Array) -> Array:
    """Return rows of scores as probabilities; a row that no label has reached becomes uniform."""
    scores = np.maximum(scores, 0)
    total = scores.sum(axis=1, keepdims=True)
    p: Array = np.where(total > 0, scores / np.where(total > 0, total, 1), 1 / scores.shape[1])
    return p


class Graph(NamedTuple):
    """Images, labeled ones first, and the nearest images of each."""

    near: Nearest
    features: Tensor
    """(n, d) in the directions in which they are compared"""
    kept: Tensor
    """rows that may be neighbours"""
    basis: Tensor


@dataclass(frozen=True, kw_only=True)
class GraphMethod(FittedMethod):
    """Labels spread along a graph of all images; a new image asks its nearest images in the graph."""

    needs_pool: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    """neighbours of each image in the graph"""
    T: Positive = 0.07
    """temperature of the similarities between a new image and its k nearest images in the graph"""
    components: Annotated[int, AtLeast(0)] = 256
    """principal components of the features in which images are compared: faster, and a smaller model; 0: all"""

    def spread(self, near: Nearest, y: Array, classes: int) -> Array:
        """Return the probabilities (n, K) of all images in the graph; the first ones are labeled, with labels y."""
        raise NotImplementedError

    def empty_predictor(self) -> FittedPredictor:
        return SoftNeighbours(self.T, self.k)

    def left_out(self, near: Nearest, y: Array, classes: int) -> Array:
        """Return the probabilities (n, K) of the labeled images, each as if its own label were not known."""
        raise NotImplementedError

    def solve(self, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Solution:
        everything, kept, basis = self._reduced(torch.cat([x, pool]), len(x))
        return self._solve(Graph(nearest_rows(everything, self.k, len(x)), everything, kept, basis), y, classes)

    def fit_and_leave_out(self, predictor: FittedPredictor, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Array:
        """Fit a predictor as ``fit_predictor`` does, and return what ``left_out`` does, from the same graph."""
        everything = torch.cat([x, pool]).float()
        parts = torch.split(everything, CHUNK)
        for part in parts:  # prepared in place, as predictors do it: copies of all features would be large
            part.copy_(F.normalize(part, dim=1))
        centre = everything.mean(dim=0)
        predictor.hold({"centre": centre})
        for part in parts:
            part.copy_(F.normalize(part - centre, dim=1))
        del part, parts
        everything, kept, basis = self._reduced(everything, len(x))
        graph = Graph(nearest_rows(everything, self.k, first=len(x)), everything, kept, basis)
        predictor.hold(self._solve(graph, y, classes).state)
        return self.left_out(graph.near, y.cpu().numpy(), classes)

    def _reduced(self, everything: Tensor, labeled: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return prepared features in fewer directions, the rows that may be neighbours, and the directions."""
        kept = candidate_rows(len(everything), first=labeled).to(everything.device)
        some = everything if len(kept) == len(everything) else everything[kept]
        basis = principal_directions(some, self.components)
        return project(everything, basis), kept, basis

    def _solve(self, graph: Graph, y: Tensor, classes: int) -> Solution:
        p = torch.from_numpy(self.spread(graph.near, y.cpu().numpy(), classes)).to(graph.features)
        labels = p[len(y) :].argmax(dim=1)
        pseudo = PseudoLabels(labels, torch.ones_like(labels, dtype=torch.bool))
        known, answers = graph.features[graph.kept], p[graph.kept]
        return Solution({"known": known, "answers": answers, "basis": graph.basis}, pseudo)
