"""Pi-Model: two passes over a sample with independent randomness must agree.

Knows nothing of pseudo labels: its target is the other pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative
from selftrain.methods.base import LAMBDAS, Grid, Losses, Method, labeled_loss, labeled_views
from selftrain.methods.functional import gaussian_ramp, probabilities, squared_error
from selftrain.nn.network import Network


@dataclass(frozen=True, kw_only=True)
class PiModel(Method):
    """L_L + lambda ramp(t) SqErr(p(alpha_1 x), p(alpha_2 x)), gradient through both."""

    name: ClassVar[str] = "pi_model"
    title: ClassVar[str] = "Pi-Model"
    reference: ClassVar[str] = "Laine and Aila, ICLR 2017"
    why_no_base: ClassVar[str] = "its two branches teach each other, so there is no target to hand to another head"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        regime: {"lam": lam, "ramp": 0.125, "reduction": "class_sum"}
        for regime, lam in (("finetune", 1.0), ("frozen", 0.3))
    }
    grid: ClassVar[Grid] = {"lam": LAMBDAS, "ramp": (0.125, 0.25)}

    lam: NonNegative = 10.0
    """lambda, the weight of the agreement"""
    ramp: NonNegative = 0.4
    """share of training over which lambda rises"""
    reduction: Literal["class_mean", "class_sum"] = "class_mean"
    """reduction of the squared error over classes; class_sum makes it K times as large"""
    stop_target: bool = False
    """no gradient through the second branch"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views"""

    @property
    def views(self) -> Views:
        gradient = ("weak",) if self.stop_target else ("weak", "weak_2")
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "weak_2"), gradient=gradient)

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = net.encode(self.views, labeled, unlabeled)
        p, q = probabilities(net.h(u.weak)), probabilities(net.h(u["weak_2"]))
        if self.stop_target:
            q = q.detach()
        weight = self.lam * gaussian_ramp(net.step, self.ramp * net.task.steps)
        return Losses(
            {
                "labeled": labeled_loss(net.h, l, self.w_strong),
                "unlabeled": weight * squared_error(p, q, self.reduction).mean(),
            }
        )
