"""MixMatch: guess labels, sharpen them, and mix all samples with each other.

Knows nothing of images: it mixes the input of psi, pixels or features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, Positive
from selftrain.methods.base import Grid, Losses, Method, labeled_views
from selftrain.methods.functional import (
    PseudoLabels,
    cross_entropy,
    linear_ramp,
    mixup,
    probabilities,
    sharpen,
    squared_error,
)
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics


@dataclass(frozen=True, kw_only=True)
class MixMatch(Method):
    """H on mixed labeled samples + lambda ramp(t) SqErr on mixed unlabeled ones."""

    name: ClassVar[str] = "mixmatch"
    title: ClassVar[str] = "MixMatch"
    reference: ClassVar[str] = "Berthelot et al., NeurIPS 2019"
    why_no_base: ClassVar[str] = (
        "its pseudo labels are mixed with true labels, so no head can learn from pseudo labels alone"
    )
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"a": 0.75, "lam": 75.0},
        "frozen": {"a": 0.75, "lam": 25.0},
    }
    grid: ClassVar[Grid] = {"lam": (5.0, 25.0, 75.0)}

    lam: NonNegative = 100.0
    """lambda, the weight of the unlabeled loss"""
    T: Positive = 0.5
    """temperature of the guessed labels"""
    a: Positive = 0.5
    """parameter of Beta(a, a), from which the mixing weights are drawn"""
    mix: Literal["sample", "batch"] = "sample"
    """draw one mixing weight per sample, or one per batch, as many implementations do"""
    ramp: NonNegative = 0.4
    """share of training over which lambda rises linearly from 0"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on unmixed strong views"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "weak_2"))

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        x_l, *x_u = map(net.psi.normalise, (labeled.weak, unlabeled.weak, unlabeled["weak_2"]))
        with torch.no_grad(), keeping_running_statistics(net.psi):
            p = torch.stack([probabilities(net.h(z)) for z in net.embed(*x_u)]).mean(dim=0)
            q = sharpen(p, self.T)
        x = torch.cat([x_l, *x_u])
        y = torch.cat([F.one_hot(labeled.y, net.task.classes).to(q.dtype), q, q])
        x, y = mixup(x, y, torch.randperm(len(x), device=x.device), self.a, self.mix)
        strong = [net.psi.normalise(labeled.strong)] if self.w_strong else []
        logits, *others = (net.h(z) for z in net.embed(x, *strong))
        n, more = len(x_l), sum(self.w_strong * cross_entropy(other, labeled.y) for other in others)
        unlabeled_loss = squared_error(probabilities(logits[n:]), y[n:]).mean()
        return Losses(
            {
                "labeled": cross_entropy(logits[:n], y[:n]) + more,
                "unlabeled": self.lam * linear_ramp(net.step, self.ramp * net.task.steps) * unlabeled_loss,
            },
            PseudoLabels(guess := q.argmax(dim=1), torch.ones_like(guess, dtype=torch.bool)),
        )
