"""AdaMatch: a threshold relative to the confidence on labeled images, and predictions on the pool that are aligned.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import ZeroToOne
from selftrain.methods.base import LAMBDAS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import (
    PseudoLabels,
    align,
    cross_entropy,
    moving_average,
    probabilities,
    pseudo_cross_entropy,
    threshold,
)
from selftrain.methods.prior import label_offset, prior_of
from selftrain.nn.collectives import all_mean
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics

ALONE = "weak_alone"
"""features of weak labeled views that passed psi without the unlabeled ones"""


class LabeledPredictions(nn.Module):
    """c_l, the running confidence on labeled images; p_l and p_u, the running mean predictions: 1 + K + K numbers."""

    values: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.full((1 + 2 * classes,), 1 / classes))


@dataclass(frozen=True, kw_only=True)
class AdaMatch(SelfTraining):
    """FixMatch with a = Norm(p_w p_l / p_u): label argmax a, kept where max a >= tau c_l."""

    name: ClassVar[str] = "adamatch"
    title: ClassVar[str] = "AdaMatch"
    reference: ClassVar[str] = "Berthelot et al., ICLR 2022"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"m": 0.99, "ramp": 0.0, "interpolate": False}}
    grid: ClassVar[Grid] = {"tau": (0.7, 0.8, 0.9, 0.95), "m": (0.9, 0.99, 0.999), "lam": LAMBDAS}

    tau: ZeroToOne = 0.9
    """confidence that a pseudo label needs, relative to that on labeled images"""
    m: ZeroToOne = 0.999
    """decay of the running confidence and of the mean predictions"""
    mean_start: bool = True
    """running values start as means of the steps so far, instead of at 1/K"""
    interpolate: bool = True
    """labeled logits are drawn between those of labeled images passed with the unlabeled ones and passed alone"""
    ramp: ZeroToOne = 0.5
    """share of training over which the unlabeled weight rises as half a cosine; 0: no rise"""

    @property
    def reads_prior(self) -> bool:
        return True

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["adamatch"] = LabeledPredictions(net.task.classes)

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        l, u = net.encode(views, labeled, unlabeled)
        if self.interpolate and len(labeled) > 1:  # batch norm needs two rows
            with keeping_running_statistics(net.psi):
                l = l.with_views({**l.views, ALONE: net.psi(labeled.weak)})
        return l, u

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        if ALONE not in l.views:
            return super().supervise(net, h, l)
        z, offset = h(l.weak).float(), label_offset(net, self.adjust)
        z = torch.lerp(z, h(l[ALONE]).float(), torch.rand_like(z))  # r ~ U(0, 1) per logit
        loss = cross_entropy(z if offset is None else z + offset, l.y)
        if not self.w_strong:
            return loss
        z = h(l.strong)
        return loss + self.w_strong * cross_entropy(z if offset is None else z + offset, l.y)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p = probabilities(h(u.weak))
            values, K = net.part("adamatch", LabeledPredictions).values, p.shape[1]
            p_u = moving_average(values[K + 1 :], all_mean(p.mean(dim=0)), self.m, net.step, self.mean_start)
            prior = prior_of(net)  # p_l has the labels' frequencies: the pool's may be others
            target = (
                values[1 : K + 1] if prior is None else values[1 : K + 1] * prior.pool / prior.labels.clamp(min=1e-6)
            )
            return threshold(align(p, target, p_u), self.tau * values[0])._replace(note=p_u)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.strong), f_hat)

    def weight(self, net: Network) -> Tensor | float:
        if not self.ramp:
            return self.lam
        t = (net.step / (self.ramp * net.task.steps)).clamp(max=1)
        return self.lam * (0.5 - 0.5 * torch.cos(math.pi * t))

    @torch.no_grad()
    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        values, K = net.part("adamatch", LabeledPredictions).values, net.task.classes
        p_l = probabilities(net.h(l.weak.detach()))
        batch = all_mean(torch.cat([p_l.amax(dim=1).mean()[None], p_l.mean(dim=0)]))
        values[: K + 1] = moving_average(values[: K + 1], batch, self.m, net.step, self.mean_start)
        values[K + 1 :] = f_hat.note
