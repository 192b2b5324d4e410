"""ABC: an auxiliary balanced classifier beside the base, for labels and pools with rare classes.

Knows nothing of how its base labels; the balanced head labels for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, ZeroToOne
from selftrain.methods.base import TAUS, AddOn, Grid
from selftrain.methods.functional import PseudoLabels, probabilities, pseudo_cross_entropy, threshold
from selftrain.methods.prior import prior_of
from selftrain.nn.layers import Classifier, copy_with_new_weights
from selftrain.nn.network import Network


@dataclass(frozen=True)
class ABC(AddOn):
    """base + w_b [L_L(h_b), each image with probability min N / N_y, + L_U(h_b), masked more and more alike]."""

    name: ClassVar[str] = "abc"
    title: ClassVar[str] = "ABC"
    reference: ClassVar[str] = "Lee, Shin and Kim, NeurIPS 2021"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"finetune": {"tau": 0.7}, "frozen": {"tau": 0.7}}
    grid: ClassVar[Grid] = {"tau": TAUS, "w_b": (0.3, 1.0, 3.0)}

    tau: ZeroToOne = 0.95
    """confidence that a label of the balanced head needs to be kept"""
    w_b: NonNegative = 1.0
    """weight of the losses of the balanced head"""

    @property
    def reads_prior(self) -> bool:
        return True

    @property
    def views(self) -> Views:
        return self.base.views.with_unlabeled("strong").with_labeling("weak")

    def setup(self, net: Network) -> None:
        self.base.setup(net)
        net.parts["h_b"] = copy_with_new_weights(net.h)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        loss, prior = F.cross_entropy(net.parts["h_b"](l.weak).float(), l.y, reduction="none"), prior_of(net)
        if prior is not None:
            loss = loss * torch.bernoulli(_rarest_to_each(prior.labels)[l.y])
        return self.base.supervise(net, h, l) + self.w_b * loss.mean()

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        loss = self.base.imitate(net, h, u, f_hat)
        if h is not net.h:  # under DST: a head that predicts must not learn from its own labels
            return loss
        h_b, prior = net.parts["h_b"], prior_of(net)
        with torch.no_grad():
            own = threshold(probabilities(h_b(u.weak)), self.tau)
            if prior is not None:  # pi_u, not pi_l: the pool decides how often a class is labeled
                progress = (net.step / net.task.steps).clamp(max=1)
                chance = 1 - progress * (1 - _rarest_to_each(prior.pool))
                own = own._replace(keep=own.keep & (torch.bernoulli(chance[own.y]) > 0))
        return loss + self.w_b * pseudo_cross_entropy(h_b(u.strong), own)

    def predictor(self, net: Network) -> nn.Module:
        return Classifier(net.psi, net.parts["h_b"])


def _rarest_to_each(shares: Tensor) -> Tensor:
    """Return min N / N_k per class; a class without images counts as one with few."""
    shares = shares.clamp(min=1e-6)
    return shares[shares > 1e-6].min().clamp(max=1) / shares if (shares > 1e-6).any() else torch.ones_like(shares)
