"""UDA: the prediction on the strong view matches the sharpened prediction on the weak view.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import Positive, ZeroToOne
from selftrain.methods.base import LAMBDAS, TEMPERATURES, Grid, SelfTraining, labeled_loss, labeled_views
from selftrain.methods.functional import PseudoLabels, cross_entropy, kl_divergence, probabilities, sharpen, threshold
from selftrain.nn.network import Network


@dataclass(frozen=True, kw_only=True)
class UDA(SelfTraining):
    """L_L + lambda (1/B_u) sum 1[max p_w >= tau] KL(Sharpen(p_w, T) || p_s)."""

    name: ClassVar[str] = "uda"
    title: ClassVar[str] = "UDA"
    reference: ClassVar[str] = "Xie et al., NeurIPS 2020"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"tau": 0.7, "T": 0.5},
        "frozen": {"tau": 0.7, "T": 0.5, "lam": 0.3},
    }
    grid: ClassVar[Grid] = {"T": TEMPERATURES, "lam": LAMBDAS}

    tau: ZeroToOne = 0.8
    """confidence, before sharpening, that a pseudo label needs to be kept"""
    T: Positive = 0.4
    """temperature of the target; below 1 the target is sharper than the prediction"""
    tsa: Literal["off", "linear", "exp", "log"] = "off"
    """training signal annealing: leave out labeled samples that are predicted well already, with a rising limit"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p = probabilities(h(u.weak))
            return threshold(p, self.tau)._replace(target=sharpen(p, self.T))

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        assert f_hat.target is not None
        return (kl_divergence(f_hat.target, h(u.strong)) * f_hat.keep).mean()

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        if self.tsa == "off":
            return labeled_loss(h, l, self.w_strong)
        logits = h(l.weak)
        p_true = probabilities(logits).detach().gather(1, l.y[:, None]).squeeze(1)
        keep = p_true <= self.eta(net.step / net.task.steps, net.task.classes)
        loss = nn.functional.cross_entropy(logits.float(), l.y, reduction="none")
        kept = (loss * keep).sum() / keep.sum().clamp(min=1)
        return kept + self.w_strong * cross_entropy(h(l.strong), l.y) if self.w_strong else kept

    def eta(self, progress: Tensor, classes: int) -> Tensor:
        """Return the largest probability of the true class at which a labeled sample counts, from 1/K to 1."""
        a = {"linear": progress, "exp": torch.exp(5 * (progress - 1)), "log": 1 - torch.exp(-5 * progress)}[self.tsa]
        return a * (1 - 1 / classes) + 1 / classes
