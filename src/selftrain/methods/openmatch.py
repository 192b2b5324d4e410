"""OpenMatch: one in-or-out head per class keeps images of no class from being labeled.

Knows nothing of how its base labels and imitates.
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
from selftrain.methods.base import AddOn, Grid
from selftrain.methods.functional import PseudoLabels
from selftrain.nn.network import Network


@dataclass(frozen=True)
class OpenMatch(AddOn):
    """base on images with p_y_hat(in) > 0.5, plus the losses of K heads that tell members of a class from others."""

    name: ClassVar[str] = "openmatch"
    title: ClassVar[str] = "OpenMatch"
    reference: ClassVar[str] = "Saito, Kim and Saenko, NeurIPS 2021"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"finetune": {"start": 0.1}, "frozen": {"start": 0.1}}
    grid: ClassVar[Grid] = {"w_agree": (0.1, 0.5, 1.0), "w_entropy": (0.0, 0.1, 0.3)}

    w_out: NonNegative = 1.0
    """weight of the loss of the in-or-out heads on labels"""
    w_entropy: NonNegative = 0.1
    """weight of their entropy on unlabeled images, relative to the unlabeled loss"""
    w_agree: NonNegative = 0.5
    """lambda_s, weight of the squared difference of their answers to two weak views, relative to the unlabeled loss"""
    start: ZeroToOne = 0.02
    """share of training after which images that look like no class are no longer labeled"""

    @property
    def views(self) -> Views:
        return self.base.views.with_unlabeled("weak").with_unlabeled("weak_2")

    def setup(self, net: Network) -> None:
        self.base.setup(net)
        net.parts["in_or_out"] = nn.Linear(net.psi.dim, 2 * net.task.classes)

    def log_in_out(self, net: Network, z: Tensor) -> Tensor:
        """Return log p_k(in) and log p_k(out), (B, 2, K)."""
        logits = net.parts["in_or_out"](z).float()
        return torch.log_softmax(logits.view(len(z), 2, net.task.classes), dim=1)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        log_p = self.log_in_out(net, l.weak)
        own = F.one_hot(l.y, net.task.classes).bool()
        hardest = log_p[:, 1].masked_fill(own, 0.0).amin(dim=1)  # min over k != y of log p_k(out), which is below 0
        loss = -(log_p[:, 0][own] + hardest).mean()
        return self.base.supervise(net, h, l) + self.w_out * loss

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        f_hat = self.base.label(net, h, u)
        with torch.no_grad():
            log_in = self.log_in_out(net, u.weak)[:, 0].gather(1, f_hat.y.clamp(min=0)[:, None]).squeeze(1)
            early = net.step < self.start * net.task.steps
            return f_hat._replace(keep=f_hat.keep & (early | (log_in.exp() > 0.5)))

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        one, other = (self.log_in_out(net, u[view]) for view in ("weak", "weak_2"))
        entropy = -torch.stack([(p.exp() * p).sum(dim=1).mean() for p in (one, other)]).mean()
        apart = (one.exp() - other.exp()).square().sum(dim=(1, 2)).mean()
        return self.base.imitate(net, h, u, f_hat) + self.w_entropy * entropy + self.w_agree * apart
