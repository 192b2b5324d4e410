"""SoftMatch: every label counts, with a truncated Gaussian weight that falls below the running confidence.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import Positive, ZeroToOne
from selftrain.methods.base import LAMBDAS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, align, moving_average, probabilities, pseudo_cross_entropy
from selftrain.methods.prior import pool_shares
from selftrain.nn.collectives import all_mean, all_rows
from selftrain.nn.network import Network


class ConfidenceSpread(nn.Module):
    """mu and v, the running mean and variance of the confidence; p, the running mean prediction: 2 + K numbers."""

    values: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.tensor([1 / classes, 1.0, *[1 / classes] * classes]))


@dataclass(frozen=True, kw_only=True)
class SoftMatch(SelfTraining):
    """FixMatch with the weight exp(-n_sigma^2 min(max a - mu, 0)^2 / (2 v)) instead of a threshold."""

    name: ClassVar[str] = "softmatch"
    title: ClassVar[str] = "SoftMatch"
    reference: ClassVar[str] = "Chen et al., ICLR 2023"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"m": 0.99}}
    grid: ClassVar[Grid] = {"n_sigma": (1.0, 2.0, 3.0), "m": (0.9, 0.99, 0.999), "lam": LAMBDAS}

    n_sigma: Positive = 2.0
    """how fast the weight falls below the mean confidence: n_sigma standard deviations are one of the Gaussian's"""
    m: ZeroToOne = 0.999
    """decay of the running mean and variance of the confidence, and of the mean prediction"""
    mean_start: bool = True
    """running values start as means of the steps so far, instead of at 1/K and 1"""
    aligned: bool = True
    """weights from predictions aligned with the pool's class frequencies; labels are always unaligned"""

    @property
    def reads_prior(self) -> bool:
        return self.aligned

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["softmatch"] = ConfidenceSpread(net.task.classes)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p = probabilities(h(u.weak))
            before = net.part("softmatch", ConfidenceSpread).values
            average = moving_average(before[2:], all_mean(p.mean(dim=0)), self.m, net.step, self.mean_start)
            a = align(p, pool_shares(net, p), average) if self.aligned else p
            sure = a.amax(dim=1)
            everywhere = all_rows(sure)  # of all ranks
            spread = everywhere.var() if len(everywhere) > 1 else before[1]
            batch = torch.stack([everywhere.mean(), spread])
            mu, v = moving_average(before[:2], batch, self.m, net.step, self.mean_start)
            weight = torch.exp(-(self.n_sigma**2) * (sure - mu).clamp(max=0).square() / (2 * v.clamp(min=1e-12)))
            now = torch.cat([mu[None], v[None], average])
            y = p.argmax(dim=1)
            return PseudoLabels(y, torch.ones_like(y, dtype=torch.bool), note=now, weight=weight)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.strong), f_hat)

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        net.part("softmatch", ConfidenceSpread).values.copy_(f_hat.note)
