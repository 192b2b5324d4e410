"""Self-trained logistic regression: in rounds, the surest unlabeled images of each class become labeled.

Knows nothing of networks: it sees features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.config.options import AtLeast, Count, NonNegative, Positive
from selftrain.methods.base import Grid
from selftrain.methods.fitted import FittedMethod, FittedPredictor, LinearPredictor, Solution
from selftrain.methods.folds import choose_c, fit_logistic
from selftrain.methods.functional import PseudoLabels

Array = NDArray[Any]


def surest(p: Array, each: int) -> Array:
    """Return the rows of the most confident predictions of each class, at most ``each`` per class."""
    predicted, confidence = p.argmax(axis=1), p.max(axis=1)
    rows = [np.flatnonzero(predicted == k) for k in range(p.shape[1])]
    return np.sort(np.concatenate([mine[np.argsort(-confidence[mine], kind="stable")[:each]] for mine in rows]))


@dataclass(frozen=True, kw_only=True)
class SelfLogistic(FittedMethod):
    """Round r: logistic regression on the labels and on the surest predictions of round r - 1."""

    name: ClassVar[str] = "self_logistic"
    title: ClassVar[str] = "Self-trained logistic regression"
    reference: ClassVar[str] = "Yarowsky, ACL 1995"
    grid: ClassVar[Grid] = {"first": (5, 10, 20), "w_labeled": (1.0, 5.0, 20.0)}
    needs_pool: ClassVar[bool] = True

    C: NonNegative = 0.0
    """inverse strength of the penalty; 0: 1, 10 or 100, chosen by folds over the labels"""
    first: Annotated[int, AtLeast(1)] = 5
    """images per class that the first round adds to the labels; each further round chooses twice as many"""
    rounds_added: Count = 3
    """rounds with added images"""
    w_labeled: Positive = 5.0
    """weight of a true label; that of an added label is 1"""

    def empty_predictor(self) -> FittedPredictor:
        return LinearPredictor()

    def solve(self, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Solution:
        known, labels, others = x.cpu().double().numpy(), y.cpu().numpy(), pool.cpu().double().numpy()
        C = self.C or choose_c(known, labels, classes)
        model, p, added = fit_logistic(known, labels, classes, C), None, np.empty(0, np.int64)
        for round_ in range(self.rounds_added):
            p = model.probabilities(others)
            added = surest(p, self.first * 2**round_)
            weight = np.concatenate([np.full(len(labels), self.w_labeled), np.ones(len(added))])
            rows, targets = np.concatenate([known, others[added]]), np.concatenate([labels, p[added].argmax(axis=1)])
            model = fit_logistic(rows, targets, classes, C, weight)
        predicted = (model.probabilities(others) if p is None else p).argmax(axis=1)
        keep = np.isin(np.arange(len(others)), added)
        pseudo = PseudoLabels(torch.from_numpy(predicted).to(y), torch.from_numpy(keep).to(y.device))
        return Solution({"weight": torch.from_numpy(model.weight), "bias": torch.from_numpy(model.bias)}, pseudo)
