"""Pseudo Label: train on the network's own confident predictions.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, ZeroToOne
from selftrain.methods.base import LAMBDAS, TAUS, Grid, Losses, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, linear_ramp, probabilities, pseudo_cross_entropy, threshold
from selftrain.nn.network import Network


@dataclass(frozen=True, kw_only=True)
class PseudoLabel(SelfTraining):
    """min_{psi,h} L_L(psi, h) + lambda(t) (1/B_u) sum 1[max p_w >= tau] H(f_hat, p_w)."""

    name: ClassVar[str] = "pseudo_label"
    title: ClassVar[str] = "Pseudo Label"
    reference: ClassVar[str] = "Lee, ICML workshop 2013"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"tau": 0.7, "ramp": 0.0},
        "frozen": {"tau": 0.7, "ramp": 0.0, "lam": 0.3},
    }
    grid: ClassVar[Grid] = {"tau": TAUS, "lam": LAMBDAS}

    tau: ZeroToOne = 0.95
    """confidence that a pseudo label needs to be kept"""
    ramp: NonNegative = 0.4
    """share of training over which lambda rises linearly from 0"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak",), gradient=("weak",))

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            return threshold(probabilities(h(u.weak)), self.tau)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.weak), f_hat)

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = self.encode(net, self.views, labeled, unlabeled)
        logits = net.h(u.weak)  # one pass, so that label and loss have the same dropout mask
        f_hat = threshold(probabilities(logits.detach()), self.tau)
        unlabeled_loss = self.weight(net) * pseudo_cross_entropy(logits, f_hat)
        return Losses({"labeled": self.supervise(net, net.h, l), "unlabeled": unlabeled_loss}, f_hat)

    def weight(self, net: Network) -> Tensor | float:
        return self.lam * linear_ramp(net.step, self.ramp * net.task.steps)
