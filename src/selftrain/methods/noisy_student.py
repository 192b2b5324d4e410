"""Noisy Student: in rounds, a teacher labels all images without noise, and a student learns the labels under noise.

Knows nothing of which head it trains: ``imitate`` takes it as an argument; the labels are those of the last round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Unlabeled, Views
from selftrain.config.options import Count, Positive, ZeroToOne
from selftrain.methods.base import LAMBDAS, TEMPERATURES, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, pseudo_cross_entropy
from selftrain.nn.collectives import all_sum
from selftrain.nn.contexts import evaluating
from selftrain.nn.network import Network


class TeacherLogits(nn.Module):
    """The logits of the teacher, the network of the previous round, for each unlabeled sample."""

    logits: Tensor
    round: Tensor

    def __init__(self, unlabeled: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(unlabeled, classes))
        self.register_buffer("round", torch.zeros((), dtype=torch.int64))


@dataclass(frozen=True, kw_only=True)
class NoisyStudent(SelfTraining):
    """Round 0: L_L. Round r: L_L + lambda H(softmax(z_teacher / T), p_s), the teacher is round r - 1."""

    name: ClassVar[str] = "noisy_student"
    title: ClassVar[str] = "Noisy Student"
    reference: ClassVar[str] = "Xie et al., CVPR 2020"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"T": 0.5}}
    grid: ClassVar[Grid] = {"T": TEMPERATURES, "lam": LAMBDAS}

    T: Positive = 1.0
    """temperature of the teacher's labels"""
    tau: ZeroToOne = 0.0
    """confidence of the teacher that a label needs to be kept"""
    t_both: bool = False
    """divide the student's logits by T as well, as the released code does"""
    students: Count = 3
    """rounds after the first, each with train.steps steps"""

    @property
    def rounds(self) -> int:
        return self.students + 1

    @property
    def lasting(self) -> tuple[str, ...]:
        return ("teacher_logits",)

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("strong",), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["teacher_logits"] = TeacherLogits(net.task.unlabeled, net.task.classes)

    def survey_due(self, t: int, steps: int) -> bool:
        return t > 0 and t % steps == 0

    @torch.no_grad()
    def survey(self, net: Network, model: nn.Module, pool: Iterable[Unlabeled]) -> None:
        teacher = net.part("teacher_logits", TeacherLogits)
        logits = torch.zeros_like(teacher.logits)
        with evaluating(model):
            for u in pool:
                logits[u.index] = model(u.weak).float()
        teacher.logits.copy_(all_sum(logits))
        teacher.round += 1

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        teacher = net.part("teacher_logits", TeacherLogits)
        with torch.no_grad():
            z = teacher.logits[u.index]
            y = torch.where(teacher.round > 0, z.argmax(dim=1), -1)
            keep = (y >= 0) & (torch.softmax(z, dim=1).amax(dim=1) >= self.tau)
            return PseudoLabels(y, keep, target=torch.softmax(z / self.T, dim=1))

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.strong) / (self.T if self.t_both else 1.0), f_hat)
