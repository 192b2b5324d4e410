"""Self-Tuning: a contrastive loss pulls samples towards the keys of their (pseudo) class.

Knows nothing of images; h learns from true labels only, the pseudo labels reach psi through a projector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import Count, NonNegative, Positive, ZeroToOne
from selftrain.methods.base import Grid, Losses, Method
from selftrain.methods.functional import PseudoLabels, cross_entropy
from selftrain.nn.average import Average
from selftrain.nn.collectives import all_rows
from selftrain.nn.layers import Classifier
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics


class Queues(nn.Module):
    """The last D keys per class; they start as random keys."""

    keys: Tensor
    pointers: Tensor
    filled: Tensor

    def __init__(self, classes: int, D: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(classes, D, dim), dim=2))
        self.register_buffer("pointers", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("filled", torch.zeros(classes, D, dtype=torch.bool))

    def enqueue(self, k: Tensor, y: Tensor) -> None:
        """Put keys k of classes y in the place of the oldest keys of their class."""
        K, D, _ = self.keys.shape
        one_hot = F.one_hot(y, K)
        order = one_hot.cumsum(dim=0).gather(1, y[:, None]).squeeze(1) - 1  # earlier keys of its class in this batch
        total = one_hot.sum(dim=0)
        place = (self.pointers[y] + order) % D
        fits = order >= total[y] - D  # of more than D keys at once the last D stay
        self.keys[y[fits], place[fits]] = k[fits].to(self.keys.dtype)
        self.filled[y[fits], place[fits]] = True
        self.pointers.copy_((self.pointers + total) % D)


def group_contrast(q: Tensor, own: Tensor, queue: Tensor, y: Tensor, T: float, there: Tensor | None = None) -> Tensor:
    """Return PGC: minus the mean log share of the D + 1 keys of class y (its own key and its queue) among all 1 + D K.

    ``there`` (K, D) marks the keys that count; none: all.
    """
    K, D, dim = queue.shape
    others = (q @ queue.reshape(K * D, dim).T) / T
    there = torch.ones_like(queue[..., 0], dtype=torch.bool) if there is None else there
    others = others.masked_fill(~there.view(-1), float("-inf"))
    mine = (q * own).sum(dim=1, keepdim=True) / T
    log_share = torch.log_softmax(torch.cat([mine, others], dim=1).float(), dim=1)
    of_class = log_share[:, 1:].view(-1, K, D).gather(1, y.view(-1, 1, 1).expand(-1, 1, D)).squeeze(1)
    positive = there[y]
    return -((log_share[:, 0] + of_class.masked_fill(~positive, 0).sum(dim=1)) / (1 + positive.sum(dim=1))).mean()


@dataclass(frozen=True, kw_only=True)
class SelfTuning(Method):
    """H(y, p) + lambda (PGC_labeled + PGC_unlabeled)."""

    name: ClassVar[str] = "self_tuning"
    title: ClassVar[str] = "Self-Tuning"
    reference: ClassVar[str] = "Wang et al., ICML 2021"
    why_no_base: ClassVar[str] = "its pseudo labels choose keys to contrast with, and no head is trained on them"
    grid: ClassVar[Grid] = {"D": (24, 32), "lam": (0.1, 0.3, 1.0)}

    lam: NonNegative = 1.0
    """lambda, the weight of the contrast"""
    D: Count = 32
    """keys kept per class"""
    T: Positive = 0.07
    """temperature of the contrast"""
    dim: Count = 1024
    """length of the keys"""
    mask_empty: bool = False
    """leave out the random keys with which a queue starts, instead of contrasting with them"""
    m: ZeroToOne = 0.999
    """decay of the moving average that makes the keys"""

    @property
    def views(self) -> Views:
        return Views(("strong", "strong_2"), ("strong", "strong_2"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        projector = nn.Linear(net.psi.dim, self.dim)
        net.parts["projector"] = projector
        net.parts["key"] = Average(Classifier(net.psi, projector), self.m)
        net.parts["queues"] = Queues(net.task.classes, max(1, self.D), self.dim)

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        z_l, z_u = net.embed(labeled.strong, unlabeled.strong)
        q_l, q_u = (F.normalize(net.parts["projector"](z).float(), dim=1) for z in (z_l, z_u))
        key, queues = net.part("key", Average), net.part("queues", Queues)
        with torch.no_grad():
            y_u = net.h(z_u).argmax(dim=1)
            with keeping_running_statistics(key):
                k = F.normalize(key(torch.cat([labeled["strong_2"], unlabeled["strong_2"]])).float(), dim=1)
        k_l, k_u = k[: len(z_l)], k[len(z_l) :]
        keys = queues.keys.clone()  # the loss uses the queues as they were before this batch
        there = queues.filled.clone() if self.mask_empty else None
        terms = {
            "labeled": cross_entropy(net.h(z_l), labeled.y),
            "contrast_labeled": self.lam * group_contrast(q_l, k_l, keys, labeled.y, self.T, there),
            "contrast_unlabeled": self.lam * group_contrast(q_u, k_u, keys, y_u, self.T, there),
        }
        queues.enqueue(all_rows(torch.cat([k_l, k_u])), all_rows(torch.cat([labeled.y, y_u])))
        return Losses(terms, PseudoLabels(y_u, torch.ones_like(y_u, dtype=torch.bool)))

    def after_step(self, net: Network, t: int) -> None:
        net.part("key", Average).update(Classifier(net.psi, net.parts["projector"]), t)
