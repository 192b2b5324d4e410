"""CReST+: in rounds, the surest labels become labeled images, fewer of them in frequent classes; labels are aligned.

Knows nothing of how its base labels and imitates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import AtLeast, Positive, ZeroToOne
from selftrain.errors import UserError
from selftrain.methods.base import AddOn, Grid, Losses
from selftrain.methods.functional import PseudoLabels, moving_average, probabilities
from selftrain.methods.prior import pool_shares
from selftrain.nn.collectives import all_mean, all_sum
from selftrain.nn.contexts import evaluating
from selftrain.nn.network import Network


class Chosen(nn.Module):
    """The class of each unlabeled image that counts as labeled, -1 for the others; the round; the mean prediction."""

    y: Tensor
    round: Tensor
    p: Tensor

    def __init__(self, unlabeled: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("y", torch.full((unlabeled,), -1))
        self.register_buffer("round", torch.zeros((), dtype=torch.int64))
        self.register_buffer("p", torch.full((classes,), 1 / classes))


class _Aligned(nn.Module):
    """A head whose logits have an offset: softmax(z + log(target / mean)) is the aligned prediction."""

    def __init__(self, h: nn.Module, offset: Tensor) -> None:
        super().__init__()
        self.h, self.offset = h, offset

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.h(x).float(), self.offset)


@dataclass(frozen=True)
class CReST(AddOn):
    """base on aligned labels; after each round, the surest (N_{K+1-rank} / N_1)^(1/alpha) of each class are labeled."""

    name: ClassVar[str] = "crest"
    title: ClassVar[str] = "CReST+"
    reference: ClassVar[str] = "Wei et al., CVPR 2021"
    why_no_base: ClassVar[str] = "the labels of earlier rounds become labeled images, from which h itself learns"
    grid: ClassVar[Grid] = {"alpha": (2.0, 3.0, 5.0), "t": (0.3, 0.5, 1.0)}

    generations: Annotated[int, AtLeast(1)] = 6
    """rounds, each with train.steps steps"""
    alpha: Positive = 3.0
    """how alike the shares are that become labeled: a large alpha takes nearly all labels of every class"""
    t: ZeroToOne = 0.5
    """exponent of the class frequencies with which labels of the last round are aligned; that of the first is 1"""
    m: ZeroToOne = 0.99
    """decay of the mean prediction"""

    @classmethod
    def can_be_base(cls) -> bool:
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.rounds > 1:
            raise UserError(f"`method`: crest cannot wrap {self.base.name!r}: it trains in rounds of its own.")

    @property
    def reads_prior(self) -> bool:
        return True

    @property
    def rounds(self) -> int:
        return self.generations

    @property
    def lasting(self) -> tuple[str, ...]:
        return ("chosen",)

    @property
    def views(self) -> Views:
        return self.base.views.with_unlabeled("weak")

    def setup(self, net: Network) -> None:
        self.base.setup(net)
        net.parts["chosen"] = Chosen(net.task.unlabeled, net.task.classes)

    def survey_due(self, t: int, steps: int) -> bool:
        return (t > 0 and t % steps == 0) or self.base.survey_due(t, steps)

    @torch.no_grad()
    def survey(self, net: Network, model: nn.Module, pool: Iterable[Unlabeled]) -> None:
        chosen = net.part("chosen", Chosen)
        p = torch.zeros(net.task.unlabeled, net.task.classes, device=net.step.device)
        with evaluating(model):
            for u in pool:
                p[u.index] = probabilities(model(u.weak))
        chosen.y.copy_(choose(all_sum(p), pool_shares(net, p), self.alpha))
        chosen.round += 1

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        chosen = net.part("chosen", Chosen)
        t = 1 - (1 - self.t) * chosen.round / max(1, self.generations - 1)
        target = pool_shares(net, chosen.p[None]).clamp(min=1e-6).pow(t)
        offset = (target / target.sum()).log() - chosen.p.clamp(min=1e-6).log()
        return self.base.label(net, _Aligned(h, offset), u)

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = self.encode(net, self.views, labeled, unlabeled)
        f_hat = self.label(net, net.h, u)
        logits, y = net.h(u.weak).float(), net.part("chosen", Chosen).y[unlabeled.index]
        known = y >= 0
        extra = (F.cross_entropy(logits, y.clamp(min=0), reduction="none") * known).sum()
        terms = {
            "labeled": (len(labeled) * self.supervise(net, net.h, l) + extra) / (len(labeled) + known.sum()),
            "unlabeled": self.weight(net) * self.imitate(net, net.h, u, f_hat),
        }
        self.record(net, l, u, f_hat)
        with torch.no_grad():
            p = net.part("chosen", Chosen).p
            p.copy_(moving_average(p, all_mean(probabilities(logits).mean(dim=0)), self.m, net.step, mean_start=True))
        return Losses(terms, f_hat)


def choose(p: Tensor, shares: Tensor, alpha: float) -> Tensor:
    """Return the class of each row that becomes labeled, else -1: of each class its surest rows.

    The class of rank l by frequency (1 is the most frequent) keeps (N_{K+1-l} / N_1)^(1/alpha) of its rows.
    """
    confidence, y = p.max(dim=1)
    rank = shares.argsort(descending=True, stable=True).argsort()
    ordered = shares.sort(descending=True).values.clamp(min=1e-6)
    part = (ordered[len(shares) - 1 - rank] / ordered[0]).pow(1 / alpha)
    found = torch.full_like(y, -1)
    for k, share in enumerate(part.tolist()):
        surest = confidence.where(y == k, -1).argsort(descending=True, stable=True)
        found[surest[: int(int((y == k).sum()) * share + 1e-6)]] = k
    return found
