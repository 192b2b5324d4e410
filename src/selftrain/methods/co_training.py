"""Co-training: two heads, each with its own views, teach each other.

Knows nothing of images; the views of the two heads are two draws of the same augmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, ZeroToOne
from selftrain.methods.base import LAMBDAS, TAUS, Grid, Losses, Method, labeled_loss
from selftrain.methods.functional import PseudoLabels, probabilities, pseudo_cross_entropy, threshold
from selftrain.nn.layers import Classifier, Committee, copy_with_new_weights
from selftrain.nn.network import Network


def overlap(h_1: nn.Module, h_2: nn.Module) -> Tensor:
    """Return |W_1 W_2^T|_F^2 of the last layers of two heads: 0 if they use different features."""
    W_1, W_2 = ([p for p in h.parameters() if p.dim() == 2][-1] for h in (h_1, h_2))
    return (W_1 @ W_2.T).square().sum()


@dataclass(frozen=True, kw_only=True)
class CoTraining(Method):
    """L_L(h_1) + L_L(h_2) + lambda [L_U(h_1, f_hat_2) + L_U(h_2, f_hat_1)] + gamma |W_1 W_2^T|^2."""

    name: ClassVar[str] = "co_training"
    title: ClassVar[str] = "Co-training"
    reference: ClassVar[str] = "Blum and Mitchell, COLT 1998"
    why_no_base: ClassVar[str] = "its two heads teach each other, so no head makes labels without learning from them"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"finetune": {"tau": 0.7}, "frozen": {"tau": 0.7, "lam": 0.3}}
    grid: ClassVar[Grid] = {"tau": TAUS, "lam": LAMBDAS}

    tau: ZeroToOne = 0.95
    """confidence that a pseudo label needs to be kept"""
    lam: NonNegative = 1.0
    """lambda, the weight of the unlabeled losses"""
    gamma: NonNegative = 0.0
    """weight of the overlap between the two heads"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views"""

    def names(self, k: int) -> tuple[str, str]:
        """Return the names of the weak and the strong view of head k."""
        return ("weak", "strong") if k == 0 else ("weak_2", "strong_2")

    @property
    def views(self) -> Views:
        labeled = ("weak", "weak_2", "strong", "strong_2") if self.w_strong else ("weak", "weak_2")
        return Views(labeled, ("weak", "weak_2", "strong", "strong_2"), gradient=("strong", "strong_2"))

    def setup(self, net: Network) -> None:
        net.parts["h_2"] = copy_with_new_weights(net.h)

    def imitate(self, h: nn.Module, z: Tensor, other: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(z), other)

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = net.encode(self.views, labeled, unlabeled)
        heads = (net.h, net.parts["h_2"])
        weak, strong = zip(*map(self.names, (0, 1)), strict=True)
        with torch.no_grad():
            p = [probabilities(h(u[w])) for h, w in zip(heads, weak, strict=True)]
        f_hat = [threshold(q, self.tau)._replace(note=q) for q in p]
        terms = {
            "labeled": torch.stack(
                [labeled_loss(h, l, self.w_strong, w, s) for h, w, s in zip(heads, weak, strong, strict=True)]
            ).sum(),
            "unlabeled_1": self.lam * self.imitate(heads[0], u[strong[0]], f_hat[1]),
            "unlabeled_2": self.lam * self.imitate(heads[1], u[strong[1]], f_hat[0]),
        }
        if self.gamma:
            terms["overlap"] = self.gamma * overlap(*heads)
        return Losses(terms, f_hat[0])

    def predictor(self, net: Network) -> nn.Module:
        return Classifier(net.psi, Committee(net.h, net.parts["h_2"]))
