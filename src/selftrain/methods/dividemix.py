"""DivideMix for unlabeled data: two networks divide the pseudo labels into clean and doubtful ones for each other.

Knows nothing of which head it trains: ``supervise`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, Positive
from selftrain.methods import functional as st
from selftrain.methods.base import Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels
from selftrain.methods.prior import pool_shares
from selftrain.nn.collectives import all_sum
from selftrain.nn.contexts import evaluating
from selftrain.nn.layers import Committee
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics


class Division(nn.Module):
    """For each unlabeled sample: its pseudo label (-1: none yet), the probability that this label is clean according to
    the other network, and the label that the next division will judge."""

    y: Tensor
    w: Tensor
    next_y: Tensor

    def __init__(self, unlabeled: int) -> None:
        super().__init__()
        self.register_buffer("y", torch.full((unlabeled,), -1))
        self.register_buffer("w", torch.zeros(unlabeled))
        self.register_buffer("next_y", torch.full((unlabeled,), -1))


@dataclass(frozen=True, kw_only=True)
class DivideMix(SelfTraining):
    """Each network: H on mixed labeled and clean samples + lambda_u SqErr on doubtful ones + KL(uniform || mean p)."""

    name: ClassVar[str] = "dividemix"
    title: ClassVar[str] = "DivideMix"
    reference: ClassVar[str] = "Li, Socher and Hoi, ICLR 2020"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"mix_labeled": False}}
    grid: ClassVar[Grid] = {"lam_u": (1.0, 5.0, 25.0)}

    lam_u: NonNegative = 25.0
    """weight of the squared error on doubtful samples"""
    T: Positive = 0.5
    """temperature of refined and guessed labels"""
    a: Positive = 4.0
    """parameter of Beta(a, a), from which the mixing weight of each sample is drawn"""
    mix_labeled: bool = True
    """compute the labeled loss on labeled samples mixed with each other, instead of on unmixed samples"""
    ramp: NonNegative = 0.05
    """share of training over which lam_u rises linearly from 0 after the first division"""
    warmup: NonNegative = 0.1
    """share of training that uses labeled data only, before the first division"""
    every: NonNegative = 0.05
    """share of training between divisions"""
    w_uniform: NonNegative = 1.0
    """weight of KL(uniform || mean prediction)"""

    @property
    def reads_prior(self) -> bool:
        return True

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "weak_2"))

    def setup(self, net: Network) -> None:
        net.twin()
        for one in net.members:
            one.parts["division"] = Division(net.task.unlabeled)

    def survey_due(self, t: int, steps: int) -> bool:
        start, period = self._start(steps), max(1, round(self.every * steps))
        return t == start // 2 or (t >= start and (t - start) % period == 0)

    def _start(self, steps: int) -> int:
        return max(2, round(self.warmup * steps))

    @torch.no_grad()
    def survey(self, net: Network, model: nn.Module, pool: Iterable[Unlabeled]) -> None:
        p = [torch.zeros(net.task.unlabeled, net.task.classes, device=net.step.device) for _ in net.members]
        with evaluating(net):
            for u in pool:
                for rows, one in zip(p, net.members, strict=True):
                    rows[u.index] = st.probabilities(one.classifier(u.weak))
        p = [all_sum(rows) for rows in p]
        for rows, one in zip(p, net.members, strict=True):
            mine, theirs = (net.part("division", Division) for net in (one, one.peer))
            mine.y.copy_(mine.next_y)
            mine.next_y.copy_(torch.stack(p).mean(dim=0).argmax(dim=1))
            chosen = rows.gather(1, mine.y.clamp(min=0)[:, None]).squeeze(1)
            theirs.w.copy_(st.clean_probability(-chosen.clamp(min=1e-12).log()))

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        """Refine, guess and mix. Labeled samples are mixed with labeled ones only, pseudo-labeled samples with all."""
        x_l, *x_u = map(net.psi.normalise, (labeled.weak, unlabeled.weak, unlabeled["weak_2"]))
        with torch.no_grad():
            own, other = (self._guess(one, x_u) for one in (net, net.peer))
            division = net.part("division", Division)
            y, w = division.y[unlabeled.index], division.w[unlabeled.index, None]
            judged = F.one_hot(y.clamp(min=0), net.task.classes).to(own.dtype)
            q = st.sharpen(torch.where(w > 0.5, w * judged + (1 - w) * own, (own + other) / 2), self.T)
            guess = torch.where(y >= 0, q.argmax(dim=1), y)
        targets = F.one_hot(labeled.y, net.task.classes).to(q.dtype)
        mixed_l, t_l = x_l, targets
        if self.mix_labeled:
            mixed_l, t_l = st.mixup(x_l, targets, torch.randperm(len(x_l), device=x_l.device), self.a)
        x, t = torch.cat([*x_u, x_l]), torch.cat([q, q, targets])
        mixed_u, t_u = st.mixup(x, t, torch.randperm(len(x), device=x.device)[: 2 * len(q)], self.a)
        unmixed = self.mix_labeled and views.gradient  # the worst case uses unmixed samples
        names_l = views.labeled if unmixed else views.labeled[1:]
        asked = [labeled[name] for name in names_l] + [unlabeled[name] for name in views.gradient]
        z_l, z_u, *z = net.embed(mixed_l, mixed_u, *map(net.psi.normalise, asked))
        l = {**dict(zip(names_l, z, strict=False)), "mixed": z_l, "target": t_l}
        if not self.mix_labeled:
            l["weak"] = z_l
        u = {**dict(zip(views.gradient, z[len(names_l) :], strict=True)), "mixed": _pairs(z_u), "target": _pairs(t_u)}
        return labeled.with_views(l), unlabeled.with_views({**u, "label": guess, "clean": w.squeeze(1) > 0.5})

    def _guess(self, net: Network, x: list[Tensor]) -> Tensor:
        with keeping_running_statistics(net.psi):
            return torch.stack([st.probabilities(net.h(z)) for z in net.embed(*x)]).mean(dim=0)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        loss = st.cross_entropy(h(l["mixed"]), l["target"])
        return loss + self.w_strong * st.cross_entropy(h(l.strong), l.y) if self.w_strong else loss

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        return PseudoLabels(u["label"], u["label"] >= 0, u["target"], note=u["clean"])

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        assert f_hat.target is not None and f_hat.note is not None  # noqa: PT018
        logits, target = h(u["mixed"].flatten(0, 1)).float(), f_hat.target.flatten(0, 1)
        keep, clean = (mask.repeat_interleave(2) for mask in (f_hat.keep, f_hat.note))
        p = torch.softmax(logits, dim=1)
        doubtful = self.lam_u * st.linear_ramp(net.step - self._start(net.task.steps), self.ramp * net.task.steps)
        loss = torch.where(
            clean, F.cross_entropy(logits, target, reduction="none"), doubtful * st.squared_error(p, target)
        )
        target = pool_shares(net, p)  # KL(pi_u || mean prediction), with pi_u uniform as published or as estimated
        uniform = (target * (target / p.mean(dim=0).clamp(min=1e-12)).clamp(min=1e-12).log()).sum()
        total: Tensor = (loss * keep).mean() + self.w_uniform * uniform * keep.any()
        return total

    def predictor(self, net: Network) -> nn.Module:
        return Committee(*(one.classifier for one in net.members))


def _pairs(x: Tensor) -> Tensor:
    """Turn the rows of the first view, followed by those of the second, into one pair per sample."""
    return torch.unflatten(x, 0, (2, -1)).transpose(0, 1)
