"""SimMatch: similarities between classes and between samples correct each other.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import AtLeast, NonNegative, Positive, ZeroToOne
from selftrain.methods.base import LAMBDAS, TAUS, Grid, SelfTraining, labeled_views
from selftrain.methods.comatch import embedding, projector
from selftrain.methods.functional import PseudoLabels, align, probabilities, pseudo_cross_entropy
from selftrain.methods.prior import pool_shares
from selftrain.methods.self_tuning import Queues
from selftrain.nn.collectives import all_mean, all_rows
from selftrain.nn.network import Network


class Window(nn.Module):
    """The mean predictions of the last batches."""

    means: Tensor

    def __init__(self, batches: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.full((batches, classes), 1 / classes))


@dataclass(frozen=True, kw_only=True)
class SimMatch(SelfTraining):
    """FixMatch with labels from predictions and labeled neighbours, plus lambda_in H(t, similarities of strong views).

    t are the similarities of the weak view, corrected by its class probabilities.
    """

    name: ClassVar[str] = "simmatch"
    title: ClassVar[str] = "SimMatch"
    reference: ClassVar[str] = "Zheng et al., CVPR 2022"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"finetune": {"tau": 0.7}, "frozen": {"tau": 0.7}}
    grid: ClassVar[Grid] = {"tau": TAUS, "alpha": (0.8, 0.9, 1.0), "lam_in": (0.0, 0.3, 1.0), "lam": LAMBDAS}

    tau: ZeroToOne = 0.95
    """confidence that a label needs to be kept"""
    alpha: ZeroToOne = 0.9
    """share of a sample's own prediction in its label; the rest comes from its similarity with labeled samples"""
    T: Positive = 0.1
    """temperature of similarities"""
    lam_in: NonNegative = 1.0
    """lambda_in, the weight of the loss between similarities relative to the loss on pseudo labels"""
    dim: Annotated[int, AtLeast(1)] = 128
    """length of the embeddings"""
    D: Annotated[int, AtLeast(1)] = 8
    """embeddings of labeled samples kept per class"""
    window: Annotated[int, AtLeast(1)] = 32
    """batches over which predictions are averaged before they are aligned with the pool's class frequencies"""

    @property
    def reads_prior(self) -> bool:
        return True

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["projector"] = projector(net.psi.dim, self.dim).requires_grad_(self.lam_in > 0)
        net.parts["bank"] = Queues(net.task.classes, self.D, self.dim)
        net.parts["window"] = Window(self.window, net.task.classes)

    def similarities(self, net: Network, z: Tensor) -> Tensor:
        """Return the logits (B, K D) of the similarity with each labeled embedding; -inf where there is none yet."""
        bank = net.part("bank", Queues)
        keys = bank.keys.flatten(0, 1).clone()  # the queue changes before the backward pass
        logits = embedding(net, z) @ keys.T / self.T
        there = bank.filled.flatten()
        return logits.masked_fill(~there & there.any(), float("-inf"))  # all alike before the first labeled batch

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p = probabilities(h(u.weak))
            a = align(p, pool_shares(net, p), net.part("window", Window).means.mean(dim=0))
            s = torch.softmax(self.similarities(net, u.weak), dim=1).view(len(p), p.shape[1], self.D)
            started = net.part("bank", Queues).filled.any()
            q = torch.where(started, self.alpha * a + (1 - self.alpha) * s.sum(dim=2), a)
            t = (s * a[:, :, None]).flatten(1)
            t = t / t.sum(dim=1, keepdim=True).clamp(min=1e-12) * started
            confidence, y = q.max(dim=1)
            return PseudoLabels(y, confidence >= self.tau, q, note=torch.cat([t, p], dim=1))

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        loss = pseudo_cross_entropy(h(u.strong), f_hat)
        if not self.lam_in:
            return loss
        assert f_hat.note is not None
        t = f_hat.note[:, : net.task.classes * self.D]
        log_s = torch.log_softmax(self.similarities(net, u.strong), dim=1)
        return loss + self.lam_in * -(t * log_s.masked_fill(t == 0, 0.0)).sum(dim=1).mean()

    @torch.no_grad()
    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        p = f_hat.note[:, net.task.classes * self.D :]
        net.part("bank", Queues).enqueue(all_rows(embedding(net, l.weak)), all_rows(l.y))
        means = net.part("window", Window).means
        means.index_copy_(0, (net.step % self.window).view(1), all_mean(p.mean(dim=0))[None])
