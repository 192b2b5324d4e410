"""CoMatch: labels are smoothed over a memory of similar samples, and their graph says which samples to pull together.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
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
from selftrain.methods.base import LAMBDAS, TAUS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, align, probabilities, pseudo_cross_entropy
from selftrain.methods.prior import pool_shares
from selftrain.nn.collectives import all_mean, all_rows
from selftrain.nn.network import Network


class Memory(nn.Module):
    """The last embeddings with their class probabilities, and the mean predictions of the last batches."""

    g: Tensor
    p: Tensor
    seen: Tensor
    """rows written so far"""
    window: Tensor

    def __init__(self, size: int, dim: int, classes: int, window: int) -> None:
        super().__init__()
        self.register_buffer("g", torch.zeros(size, dim))
        self.register_buffer("p", torch.zeros(size, classes))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("window", torch.full((window, classes), 1 / classes))

    def write(self, g: Tensor, p: Tensor) -> None:
        """Put rows in the place of the oldest ones; of more rows than there is room for, the last stay."""
        size = len(self.g)
        g, p = g[-size:], p[-size:]
        place = (self.seen + torch.arange(len(g), device=g.device)) % size
        self.g[place], self.p[place] = g.to(self.g.dtype), p.to(self.p.dtype)
        self.seen += len(g)

    def smooth(self, g: Tensor, a: Tensor, alpha: float, T: float) -> Tensor:
        """Return alpha a + (1 - alpha) sum_k softmax(g g_k / T) p_k; a itself until the memory is full."""
        near = torch.softmax(g @ self.g.T / T, dim=1) @ self.p
        return torch.where(self.seen >= len(self.g), alpha * a + (1 - alpha) * near, a)


def projector(dim: int, out: int) -> nn.Sequential:
    """Return the head that makes embeddings from features: Linear-ReLU-Linear."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))


def embedding(net: Network, z: Tensor) -> Tensor:
    """Return the embeddings of features, of unit length, in float32."""
    return F.normalize(net.parts["projector"](z).float(), dim=1)


@dataclass(frozen=True, kw_only=True)
class CoMatch(SelfTraining):
    """FixMatch with smoothed soft labels q, plus the contrast of two strong views along the graph of q q^T."""

    name: ClassVar[str] = "comatch"
    title: ClassVar[str] = "CoMatch"
    reference: ClassVar[str] = "Li, Xiong and Hoi, ICCV 2021"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"tau": 0.7, "queue": 2048},
        "frozen": {"tau": 0.7, "queue": 3072},
    }
    grid: ClassVar[Grid] = {"tau": TAUS, "alpha": (0.8, 0.9, 1.0), "contrast": (0.0, 0.3, 1.0), "lam": LAMBDAS}

    tau: ZeroToOne = 0.95
    """confidence that a smoothed label needs to be kept"""
    alpha: ZeroToOne = 0.9
    """share of a sample's own prediction in its label; the rest comes from similar samples in the memory"""
    T: Positive = 0.2
    """temperature of similarities"""
    connect: ZeroToOne = 0.8
    """similarity of two labels from which their samples are pulled together"""
    contrast: NonNegative = 1.0
    """lambda_c, the weight of the contrast relative to the loss on pseudo labels"""
    dim: Annotated[int, AtLeast(1)] = 64
    """length of the embeddings"""
    queue: Annotated[int, AtLeast(1)] = 2560
    """samples in the memory"""
    window: Annotated[int, AtLeast(1)] = 32
    """batches over which predictions are averaged before they are aligned with the pool's class frequencies"""

    @property
    def reads_prior(self) -> bool:
        return True

    @property
    def views(self) -> Views:
        strong = ("strong", "strong_2") if self.contrast else ("strong",)
        return Views(labeled_views(self.w_strong), unlabeled=("weak", *strong), gradient=strong)

    def setup(self, net: Network) -> None:
        net.parts["projector"] = projector(net.psi.dim, self.dim).requires_grad_(self.contrast > 0)
        net.parts["memory"] = Memory(self.queue, self.dim, net.task.classes, self.window)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            memory, p, g = net.part("memory", Memory), probabilities(h(u.weak)), embedding(net, u.weak)
            a = align(p, pool_shares(net, p), memory.window.mean(dim=0))
            q = memory.smooth(g, a, self.alpha, self.T)
            confidence, y = q.max(dim=1)
            return PseudoLabels(y, confidence >= self.tau, q, note=torch.cat([g, a, p], dim=1))

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        loss = pseudo_cross_entropy(h(u.strong), f_hat)
        if not self.contrast:
            return loss
        assert f_hat.target is not None
        one, other = embedding(net, u.strong), embedding(net, u["strong_2"])
        return loss + self.contrast * graph_contrast(one, other, f_hat.target, self.connect, self.T)

    @torch.no_grad()
    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        K, memory = net.task.classes, net.part("memory", Memory)
        g, a, p = torch.split(f_hat.note, [self.dim, K, K], dim=1)
        labeled = embedding(net, l.weak), F.one_hot(l.y, K).to(a.dtype)
        memory.write(all_rows(torch.cat([g, labeled[0]])), all_rows(torch.cat([a, labeled[1]])))
        memory.window.index_copy_(0, (net.step % self.window).view(1), all_mean(p.mean(dim=0))[None])


def graph_contrast(g_1: Tensor, g_2: Tensor, q: Tensor, connect: float, T: float) -> Tensor:
    """Return -(1/B) sum_ij Q_ij log softmax_j(g_1 g_2 / T), Q = q q^T with 1 on its diagonal, cut and normalised."""
    Q = (q @ q.T).fill_diagonal_(1.0)
    Q = torch.where(connect <= Q, Q, 0.0)
    return -(Q / Q.sum(dim=1, keepdim=True) * torch.log_softmax(g_1 @ g_2.T / T, dim=1)).sum(dim=1).mean()
