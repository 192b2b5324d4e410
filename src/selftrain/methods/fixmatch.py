"""FixMatch: a confident label from the weak view trains the strong view.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Unlabeled, Views
from selftrain.config.options import ZeroToOne
from selftrain.methods.base import LAMBDAS, TAUS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, pseudo_cross_entropy, threshold
from selftrain.nn.network import Network


@dataclass(frozen=True, kw_only=True)
class FixMatch(SelfTraining):
    """min_{psi,h} L_L(psi, h) + lambda L_U(psi, h, f_hat_{psi,h}) (Eq. 4)."""

    name: ClassVar[str] = "fixmatch"
    title: ClassVar[str] = "FixMatch"
    reference: ClassVar[str] = "Sohn et al., NeurIPS 2020"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"finetune": {"tau": 0.7}, "frozen": {"tau": 0.7}}
    grid: ClassVar[Grid] = {"tau": TAUS, "lam": LAMBDAS}

    tau: ZeroToOne = 0.95
    """confidence that a pseudo label needs to be kept"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            return threshold(torch.softmax(h(u.weak).float(), dim=1), self.tau)  # f_hat, Eq. 2

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.strong), f_hat)  # L_U, Eq. 3
