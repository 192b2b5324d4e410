"""Logistic regression on features: the baseline that most people would try first.

Knows nothing of unlabeled images, apart from the centre of all features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selftrain.config.options import NonNegative
from selftrain.methods.base import Grid
from selftrain.methods.fitted import FittedMethod, FittedPredictor, LinearPredictor, Solution
from selftrain.methods.folds import choose_c, fit_logistic


@dataclass(frozen=True, kw_only=True)
class Logistic(FittedMethod):
    """min_W  1/2 |W|^2 + C sum_i H(y_i, softmax(W x_i + b))."""

    name: ClassVar[str] = "logistic"
    title: ClassVar[str] = "Logistic regression"
    reference: ClassVar[str] = "Cox, JRSS B 1958"
    grid: ClassVar[Grid] = {"C": (1.0, 10.0, 100.0)}

    C: NonNegative = 0.0
    """inverse strength of the penalty; 0: 1, 10 or 100, chosen by folds over the labels"""

    def empty_predictor(self) -> FittedPredictor:
        return LinearPredictor()

    def solve(self, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Solution:
        rows, labels = x.cpu().double().numpy(), y.cpu().numpy()
        found = fit_logistic(rows, labels, classes, self.C or choose_c(rows, labels, classes))
        return Solution({"weight": torch.from_numpy(found.weight), "bias": torch.from_numpy(found.bias)})
