"""DASO: labels are blended with those of the nearest class prototype, the more so the more often a class is predicted.

Knows nothing of how its base labels and imitates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import AtLeast, NonNegative, Positive, ZeroToOne
from selftrain.methods.base import AddOn, Grid
from selftrain.methods.functional import PseudoLabels, cross_entropy, probabilities
from selftrain.methods.self_tuning import Queues
from selftrain.nn.collectives import all_mean, all_rows
from selftrain.nn.network import Network


class Shares(nn.Module):
    """m, the running share of each class among the labels."""

    m: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("m", torch.full((classes,), 1 / classes))


@dataclass(frozen=True)
class DASO(AddOn):
    """base with the target (1 - v) p + v q, v = m(y_hat)^(1/T_d) / max, plus w_align H(q_w, q_s)."""

    name: ClassVar[str] = "daso"
    title: ClassVar[str] = "DASO"
    reference: ClassVar[str] = "Oh, Kim and Kweon, CVPR 2022"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"warmup": 0.1, "D": 32}}
    grid: ClassVar[Grid] = {"T_d": (0.3, 1.0, 1.5), "w_align": (0.0, 0.3, 1.0)}

    T_p: Positive = 0.05
    """temperature of the cosines with prototypes"""
    T_d: Positive = 1.0
    """temperature of the label shares: a high one blends all classes alike"""
    w_align: NonNegative = 1.0
    """weight of the agreement of weak and strong views about prototypes, relative to the unlabeled loss"""
    D: Annotated[int, AtLeast(1)] = 256
    """labeled features per class of which a prototype is the mean"""
    m: ZeroToOne = 0.99
    """decay of the label shares"""
    warmup: ZeroToOne = 0.02
    """share of training that uses the labels of the base alone"""

    @property
    def views(self) -> Views:
        return self.base.views.with_unlabeled("strong").with_labeling("weak")

    def setup(self, net: Network) -> None:
        self.base.setup(net)
        net.parts["prototypes"] = Queues(net.task.classes, self.D, net.psi.dim)
        net.parts["shares"] = Shares(net.task.classes)

    def similarities(self, net: Network, z: Tensor) -> Tensor:
        """Return cos(z, c_k) / T_p (B, K); -inf for a class without prototype, if another one has one."""
        queue = net.part("prototypes", Queues)
        there = queue.filled.any(dim=1)
        means = (queue.keys * queue.filled[:, :, None]).sum(dim=1) / queue.filled.sum(dim=1).clamp(min=1)[:, None]
        logits = F.normalize(z.float(), dim=1) @ F.normalize(means, dim=1).T / self.T_p
        return logits.masked_fill(~there & there.any(), float("-inf"))

    def started(self, net: Network) -> Tensor:
        """Return whether labels are blended yet."""
        return (net.step >= self.warmup * net.task.steps) & net.part("prototypes", Queues).filled.any()

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        f_hat = self.base.label(net, h, u)
        with torch.no_grad():
            q = torch.softmax(self.similarities(net, u.weak), dim=1)
            share = net.part("shares", Shares).m.pow(1 / self.T_d)
            v = (share / share.max())[f_hat.y.clamp(min=0)][:, None]
            blend = (1 - v) * probabilities(h(u.weak)) + v * q
            own = F.one_hot(f_hat.y.clamp(min=0), q.shape[1]).to(q.dtype) if f_hat.target is None else f_hat.target
            started = self.started(net)
            y = torch.where(started & (f_hat.y >= 0), blend.argmax(dim=1), f_hat.y)
            return f_hat._replace(y=y, target=torch.where(started, blend, own), inner=f_hat)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        assert f_hat.inner is not None
        loss = self.base.imitate(net, h, u, f_hat._replace(inner=f_hat.inner.inner))
        if not self.w_align:
            return loss
        with torch.no_grad():
            q = torch.softmax(self.similarities(net, u.weak), dim=1)
        logits = self.similarities(net, u.strong).masked_fill(q == 0, -1e4)  # 0 log 0 = 0
        return loss + self.w_align * self.started(net) * cross_entropy(logits, q)

    @torch.no_grad()
    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.inner is not None
        self.base.record(net, l, u, f_hat.inner)
        net.part("prototypes", Queues).enqueue(all_rows(l.weak.detach().float()), all_rows(l.y))
        counts = F.one_hot(f_hat.y.clamp(min=0), net.task.classes).float() * (f_hat.y >= 0)[:, None]
        shares, now = net.part("shares", Shares), all_mean(counts.mean(dim=0))
        shares.m.copy_(torch.where(now.sum() > 0, torch.lerp(now, shares.m, self.m), shares.m))
