"""Prototypes: the nearest class mean in feature space.

Knows nothing of unlabeled images, apart from the centre of all features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from selftrain.config.options import Positive
from selftrain.methods.fitted import FittedMethod, FittedPredictor, LinearPredictor, Solution
from selftrain.methods.folds import ABSENT


@dataclass(frozen=True, kw_only=True)
class Prototypes(FittedMethod):
    """p_k ~ exp(-|x - c_k|^2 / 2T), c_k the mean of the labeled images of class k."""

    name: ClassVar[str] = "prototypes"
    title: ClassVar[str] = "Prototypes"
    reference: ClassVar[str] = "SimpleShot, Wang et al., arXiv 2019"

    T: Positive = 0.07
    """temperature of the probabilities; it does not change which class is predicted"""

    def empty_predictor(self) -> FittedPredictor:
        return LinearPredictor()

    def solve(self, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Solution:
        count = torch.bincount(y, minlength=classes)
        c = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x) / count.clamp(min=1)[:, None]
        # |x|^2 is the same for all classes, so the logits are linear in x
        bias = torch.where(count > 0, -c.square().sum(dim=1) / (2 * self.T), ABSENT)
        return Solution({"weight": c / self.T, "bias": bias})


def left_out_probabilities(x: Tensor, y: Tensor, classes: int, T: float = 0.07) -> Tensor:
    """Return the probabilities (n, K) of prepared labeled features, each image left out of the mean of its own class.

    They are softmax(cos / T). The only image of a class has no probability for it.
    """
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
    cos = x @ F.normalize(sums, dim=1).T
    own = (F.normalize(sums[y] - x, dim=1) * x).sum(dim=1)
    count = torch.bincount(y, minlength=classes)
    cos = cos.scatter(1, y[:, None], torch.where(count[y] > 1, own, -torch.inf)[:, None])
    return torch.softmax(cos.masked_fill(count == 0, -torch.inf) / T, dim=1)
