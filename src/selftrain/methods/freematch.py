"""FreeMatch: FixMatch whose threshold is the running confidence, lower for classes that are rarely predicted.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
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
from selftrain.methods.base import LAMBDAS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, moving_average, probabilities, pseudo_cross_entropy
from selftrain.methods.prior import prior_of
from selftrain.nn.collectives import all_mean
from selftrain.nn.network import Network


class RunningPredictions(nn.Module):
    """tau_g, the running confidence; p, the running mean prediction; hist, the running share of each predicted class.

    All three are one vector: 1 + K + K numbers.
    """

    values: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("values", torch.full((1 + 2 * classes,), 1 / classes))


@dataclass(frozen=True, kw_only=True)
class FreeMatch(SelfTraining):
    """FixMatch with 1[max p_w >= tau_g p(y_hat) / max p], plus w_f (self-adaptive fairness), a cross entropy."""

    name: ClassVar[str] = "freematch"
    title: ClassVar[str] = "FreeMatch"
    reference: ClassVar[str] = "Wang et al., ICLR 2023"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"m": 0.99}}
    grid: ClassVar[Grid] = {"m": (0.9, 0.99, 0.999), "w_f": (0.0, 0.001, 0.01, 0.05), "lam": LAMBDAS}

    m: ZeroToOne = 0.999
    """decay of the running confidence, mean prediction and class shares"""
    mean_start: bool = True
    """running values start as means of the steps so far, instead of at 1/K"""
    tau_min: ZeroToOne = 0.0
    """lower limit of the running confidence"""
    tau_max: ZeroToOne = 1.0
    """upper limit of the running confidence"""
    w_f: NonNegative = 0.001
    """weight of the fairness term relative to the unlabeled loss; the term fades where the pool is unlike the labels"""

    @property
    def reads_prior(self) -> bool:
        return self.w_f > 0

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["freematch"] = RunningPredictions(net.task.classes)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p = probabilities(h(u.weak))
            confidence, y = p.max(dim=1)
            K = p.shape[1]
            batch = torch.cat([confidence.mean()[None], p.mean(dim=0), F.one_hot(y, K).to(p.dtype).mean(dim=0)])
            before = net.part("freematch", RunningPredictions).values
            now = moving_average(before, all_mean(batch), self.m, net.step, self.mean_start)
            tau, p_mean = now[0].clamp(self.tau_min, self.tau_max), now[1 : K + 1]
            return PseudoLabels(y, confidence >= (tau * p_mean / p_mean.max())[y], note=now)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        logits = h(u.strong)
        loss = pseudo_cross_entropy(logits, f_hat)
        if not self.w_f:
            return loss
        assert f_hat.note is not None
        prior = prior_of(net)
        w_f = self.w_f if prior is None else self.w_f * (1 - prior.unlike)
        return loss + w_f * fairness(probabilities(logits), f_hat.keep, *f_hat.note[1:].chunk(2))

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        net.part("freematch", RunningPredictions).values.copy_(f_hat.note)


def fairness(p_s: Tensor, keep: Tensor, p_mean: Tensor, hist: Tensor) -> Tensor:
    """Return sum_c a_c log b_c, a = Norm(p / hist) of the running values and b the same of the kept rows of p_s.

    The sum is over the classes that are predicted for a kept row. It is minimised, as published: the cross entropy to
    the running shares grows. Without kept rows it is 0.
    """
    kept = keep.to(p_s.dtype)
    n = kept.sum().clamp(min=1)
    now = (p_s * kept[:, None]).sum(dim=0) / n
    shares = (F.one_hot(p_s.argmax(dim=1), p_s.shape[1]) * kept[:, None]).sum(dim=0) / n
    present = shares > 0
    a = torch.where(hist > 0, p_mean / hist.clamp(min=1e-12), 0.0)
    b = torch.where(present, now / shares.clamp(min=1e-12), 0.0)
    b = b / b.sum().clamp(min=1e-12)
    return (a / a.sum().clamp(min=1e-12) * torch.where(present, b, 1.0).clamp(min=1e-12).log()).sum()
