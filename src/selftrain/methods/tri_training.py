"""Multi-task Tri-training: each head learns from samples on which the two others agree.

Knows nothing of images; the third head sees pseudo labels only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, ZeroToOne
from selftrain.methods.base import LAMBDAS, Grid, Losses, Method, labeled_loss, labeled_views
from selftrain.methods.co_training import overlap
from selftrain.methods.functional import PseudoLabels, probabilities, pseudo_cross_entropy
from selftrain.nn.layers import Classifier, Committee, copy_with_new_weights
from selftrain.nn.network import Network


def agreement(p: Tensor, q: Tensor, tau: float) -> PseudoLabels:
    """Return the class on which two heads agree, kept where both have a confidence of at least tau."""
    (sure_p, y), (sure_q, y_q) = p.max(dim=1), q.max(dim=1)
    return PseudoLabels(y, (y == y_q) & (sure_p >= tau) & (sure_q >= tau))


@dataclass(frozen=True, kw_only=True)
class TriTraining(Method):
    """L_L(h_1) + L_L(h_2) + lambda sum_i L_U(h_i, where the others agree) + gamma |W_1 W_2^T|^2."""

    name: ClassVar[str] = "tri_training"
    title: ClassVar[str] = "Tri-training"
    reference: ClassVar[str] = "Ruder and Plank, ACL 2018"
    why_no_base: ClassVar[str] = "its heads teach each other, so no head makes labels without learning from them"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"tau": 0.7}}
    grid: ClassVar[Grid] = {"tau": (0.0, 0.7, 0.95), "lam": LAMBDAS}

    tau: ZeroToOne = 0.0
    """confidence that both other heads need to teach; at 0 their agreement is enough"""
    lam: NonNegative = 1.0
    """lambda, the weight of the unlabeled losses"""
    gamma: NonNegative = 0.01
    """weight of the overlap between the first two heads"""
    third_labeled: bool = False
    """the third head learns from true labels as well"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["h_2"], net.parts["h_3"] = copy_with_new_weights(net.h), copy_with_new_weights(net.h)

    def heads(self, net: Network) -> tuple[nn.Module, nn.Module, nn.Module]:
        return net.h, net.parts["h_2"], net.parts["h_3"]

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = net.encode(self.views, labeled, unlabeled)
        heads = self.heads(net)
        with torch.no_grad():
            p = [probabilities(h(u.weak)) for h in heads]
        f_hat = [agreement(p[i - 1], p[i - 2], self.tau) for i in range(3)]
        taught = heads if self.third_labeled else heads[:2]
        terms = {"labeled": torch.stack([labeled_loss(h, l, self.w_strong) for h in taught]).sum()}
        for i, h in enumerate(heads):
            terms[f"unlabeled_{i + 1}"] = self.lam * pseudo_cross_entropy(h(u.strong), f_hat[i])
        if self.gamma:
            terms["overlap"] = self.gamma * overlap(heads[0], heads[1])
        return Losses(terms, f_hat[2])

    def predictor(self, net: Network) -> nn.Module:
        return Classifier(net.psi, Committee(*self.heads(net), vote=True))
