"""Dash: keep the samples whose loss is below a shrinking threshold.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, Positive
from selftrain.methods.base import LAMBDAS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, cross_entropy, probabilities, pseudo_cross_entropy, sharpen
from selftrain.nn.collectives import all_mean
from selftrain.nn.network import Network


class LabeledLoss(nn.Module):
    """rho_hat, the mean labeled loss at the end of the warm-up."""

    rho_hat: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rho_hat", torch.zeros(()))


@dataclass(frozen=True, kw_only=True)
class Dash(SelfTraining):
    """L_L + lambda (1/B_u) sum 1[H(y_hat, p_w) <= rho_t] H(target, p_s); rho_t = max(C gamma^-c rho_hat, rho_min)."""

    name: ClassVar[str] = "dash"
    title: ClassVar[str] = "Dash"
    reference: ClassVar[str] = "Xu et al., ICML 2021"
    grid: ClassVar[Grid] = {"lam": LAMBDAS}

    gamma: NonNegative = 1.27
    """divisor of the threshold at each update"""
    C: NonNegative = 1.0001
    """factor on rho_hat at the start"""
    rho_min: NonNegative = 0.05
    """lower limit of the threshold; 0.05 corresponds to a confidence of 0.95"""
    warmup: NonNegative = 0.02
    """share of training that uses labeled data only; rho_hat is the labeled loss at its end"""
    every: NonNegative = 0.01
    """share of training between updates of the threshold"""
    T: Positive = 0.5
    """temperature of the soft targets, which become hard targets once the threshold reaches rho_min"""
    hard: bool = False
    """hard targets from the start"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["dash"] = LabeledLoss()

    def rho(self, net: Network) -> Tensor:
        """Return the threshold at this step; during the warm-up it is negative, so that nothing is kept."""
        first = round(self.warmup * net.task.steps)
        c = ((net.step - first) / max(1.0, self.every * net.task.steps)).floor()
        rho = (self.C * self.gamma**-c * net.part("dash", LabeledLoss).rho_hat).clamp(min=self.rho_min)
        return torch.where(net.step < first, -1.0, rho)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p, rho = probabilities(h(u.weak)), self.rho(net)
            confidence, y = p.max(dim=1)
            hard = torch.ones_like(rho, dtype=torch.bool) if self.hard else rho <= self.rho_min
            one_hot = nn.functional.one_hot(y, p.shape[1]).to(p.dtype)
            return PseudoLabels(y, -confidence.log() <= rho, torch.where(hard, one_hot, sharpen(p, self.T)))

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.strong), f_hat)

    @torch.no_grad()
    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        warming = net.step < max(1, round(self.warmup * net.task.steps))
        part, loss = net.part("dash", LabeledLoss), all_mean(cross_entropy(net.h(l.weak.detach()), l.y))
        part.rho_hat.copy_(torch.where(warming, loss, part.rho_hat))
