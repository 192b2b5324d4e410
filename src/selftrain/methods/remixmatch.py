"""ReMixMatch: MixMatch with distribution alignment, augmentation anchoring and a rotation loss.

Knows nothing of how images are augmented; the rotation loss needs images, the other losses work on features as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import Count, NonNegative, Positive
from selftrain.errors import UserError
from selftrain.methods.base import Grid, Losses, Method
from selftrain.methods.functional import PseudoLabels, cross_entropy, linear_ramp, mixup, probabilities, sharpen
from selftrain.methods.prior import pool_shares
from selftrain.nn.collectives import all_mean
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics

DECAY = 0.999


class Alignment(nn.Module):
    """The class distributions of recent predictions (a window of batch means, or a moving average) and of labels."""

    window: Tensor
    p_data: Tensor

    def __init__(self, classes: int, batches: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.full((batches, classes), 1 / classes))
        self.register_buffer("p_data", torch.full((classes,), 1 / classes))

    def align(self, p: Tensor) -> Tensor:
        p = p * self.p_data / self.window.mean(dim=0).clamp(min=1e-6)
        return p / p.sum(dim=1, keepdim=True)

    def record(self, p: Tensor, y: Tensor, step: Tensor, how: str, follow_labels: bool = True) -> None:
        mean = all_mean(p.mean(dim=0))
        if how == "window":
            self.window.index_copy_(0, (step % len(self.window)).view(1), mean[None])
        else:
            self.window.lerp_(mean.expand_as(self.window), 1 - DECAY)
        if follow_labels:
            self.p_data.lerp_(all_mean(F.one_hot(y, len(mean)).to(mean.dtype).mean(dim=0)), 1 - DECAY)


@dataclass(frozen=True, kw_only=True)
class ReMixMatch(Method):
    """H(X') + ramp [lambda_u H(U') + lambda_1 H(q, p(A_1 x))] + lambda_r H(r, rotation head(Rot_r(A_1 x)))."""

    name: ClassVar[str] = "remixmatch"
    title: ClassVar[str] = "ReMixMatch"
    reference: ClassVar[str] = "Berthelot et al., ICLR 2020"
    why_no_base: ClassVar[str] = (
        "its pseudo labels are mixed with true labels, so no head can learn from pseudo labels alone"
    )
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "frozen": {"lam_rotation": 0.0, "window": 16, "p_data": "prior"}
    }
    remarks: ClassVar[Mapping[str, str]] = {"frozen": "there is no rotation term: features cannot be rotated"}
    grid: ClassVar[Grid] = {"lam": (0.5, 1.5)}

    lam: NonNegative = 1.5
    """lambda_u, the weight of the mixed unlabeled loss"""
    lam_first: NonNegative = 0.5
    """lambda_1, the weight of the loss on the first strong view, unmixed"""
    lam_rotation: NonNegative = 0.5
    """lambda_r, the weight of the rotation loss"""
    T: Positive = 0.5
    """temperature of the guessed labels"""
    a: Positive = 0.75
    """parameter of Beta(a, a), from which the mixing weight of each sample is drawn"""
    M: Literal[1, 2, 3, 4, 5, 6, 7, 8] = 2
    """strong views per unlabeled sample"""
    alignment: Literal["window", "ema"] = "window"
    """distribution of recent predictions: mean of the last batches, or a moving average"""
    window: Count = 128
    """number of batches in the window; in short runs a long window lags behind and makes predictions oscillate"""
    p_data: Literal["prior", "labels", "uniform"] = "labels"
    """distribution to align with: that of the pool (see data.prior), that of the labels seen so far, or uniform"""
    ramp: NonNegative = 0.4
    """share of training over which the unlabeled weights rise linearly from 0"""

    @property
    def reads_prior(self) -> bool:
        return self.p_data == "prior"

    @property
    def strong(self) -> tuple[str, ...]:
        return ("strong", *(f"strong_{m}" for m in range(2, self.M + 1)))

    @property
    def views(self) -> Views:
        return Views(labeled=("strong",), unlabeled=("weak", *self.strong))

    def setup(self, net: Network) -> None:
        net.parts["alignment"] = Alignment(net.task.classes, max(1, self.window))
        if self.lam_rotation:
            if len(net.task.shape) == 1:
                raise UserError(
                    f"remixmatch(lam_rotation={self.lam_rotation}): features cannot be rotated. "
                    "Set `method.lam_rotation=0`."
                )
            net.parts["rotation"] = nn.Linear(net.psi.dim, 4)

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        x_l, x_w, *x_s = map(net.psi.normalise, (labeled.strong, unlabeled.weak, *(unlabeled[s] for s in self.strong)))
        alignment = net.part("alignment", Alignment)
        with torch.no_grad():
            with keeping_running_statistics(net.psi):
                p = probabilities(net.h(net.psi(x_w)))
            if self.p_data == "prior":
                alignment.p_data.copy_(pool_shares(net, p))
            q = sharpen(alignment.align(p), self.T)
            alignment.record(p, labeled.y, net.step, self.alignment, self.p_data == "labels")
        x = torch.cat([x_l, x_w, *x_s])
        y = torch.cat([F.one_hot(labeled.y, net.task.classes).to(q.dtype), *[q] * (1 + self.M)])
        x, y = mixup(x, y, torch.randperm(len(x), device=x.device), self.a)
        turned, r = self.rotated(x_s[0])
        z_mixed, z_first, z_turned = net.embed(x, x_s[0], turned)
        mixed, n = net.h(z_mixed), len(x_l)
        ramp = linear_ramp(net.step, self.ramp * net.task.steps)
        terms = {
            "labeled": cross_entropy(mixed[:n], y[:n]),
            "unlabeled": ramp * self.lam * cross_entropy(mixed[n:], y[n:]),
            "first": ramp * self.lam_first * cross_entropy(net.h(z_first), q),
        }
        if self.lam_rotation:
            terms["rotation"] = self.lam_rotation * cross_entropy(net.parts["rotation"](z_turned), r)
        return Losses(terms, PseudoLabels(guess := q.argmax(dim=1), torch.ones_like(guess, dtype=torch.bool)))

    def rotated(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate a quarter of the batch by each of 0, 90, 180 and 270 degrees; return it and the quarter turns."""
        if not self.lam_rotation:
            return x[:0], torch.empty(0, dtype=torch.int64, device=x.device)
        parts = [x[k::4].rot90(k, dims=(2, 3)) for k in range(4)]
        return torch.cat(parts), torch.cat([torch.full((len(p),), k, device=x.device) for k, p in enumerate(parts)])
