"""Nearest neighbours: the labels of the nearest labeled images, weighted by similarity.

Knows nothing of unlabeled images, apart from the centre of all features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from selftrain.config.options import Count, Positive
from selftrain.methods.base import Grid
from selftrain.methods.fitted import FittedMethod, FittedPredictor, SoftNeighbours, Solution


@dataclass(frozen=True, kw_only=True)
class KNN(FittedMethod):
    """p_k ~ sum of exp(cos(x, x_i)/T) over the labeled images i of class k."""

    name: ClassVar[str] = "knn"
    title: ClassVar[str] = "kNN"
    reference: ClassVar[str] = "Wu et al., CVPR 2018"
    grid: ClassVar[Grid] = {"T": (0.03, 0.07, 0.2), "k": (0, 1, 5)}

    T: Positive = 0.07
    """temperature of the similarities"""
    k: Count = 0
    """neighbours that vote; 0: all labeled images"""

    def empty_predictor(self) -> FittedPredictor:
        return SoftNeighbours(self.T, self.k)

    def solve(self, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Solution:
        return Solution({"known": x, "answers": F.one_hot(y, classes)})
