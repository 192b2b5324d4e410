"""Mean Teacher: the target comes from the moving average of the student.

Knows nothing of which head it trains: ``imitate`` takes it as an argument; the labels are the teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, ZeroToOne
from selftrain.methods.base import LAMBDAS, Grid, SelfTraining, labeled_views
from selftrain.methods.functional import PseudoLabels, gaussian_ramp, probabilities, squared_error
from selftrain.nn.average import Average
from selftrain.nn.contexts import evaluating
from selftrain.nn.layers import Classifier
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(SelfTraining):
    """L_L + lambda ramp(t) SqErr(p(alpha_1 x), p_teacher(alpha_2 x)); the teacher is the average of the student."""

    name: ClassVar[str] = "mean_teacher"
    title: ClassVar[str] = "Mean Teacher"
    reference: ClassVar[str] = "Tarvainen and Valpola, NeurIPS 2017"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"lam": 1.0, "ramp": 0.125, "reduction": "class_sum"},
        "frozen": {"lam": 3.0, "ramp": 0.125, "reduction": "class_sum", "m": 0.99},
    }
    grid: ClassVar[Grid] = {"lam": LAMBDAS, "ramp": (0.125, 0.25), "m": (0.99, 0.999)}

    lam: NonNegative = 50.0
    """lambda, the weight of the agreement with the teacher"""
    m: ZeroToOne = 0.999
    """decay of the teacher, bounded by 1 - 1/(t + 1) at step t"""
    ramp: NonNegative = 0.4
    """share of training over which lambda rises"""
    reduction: Literal["class_mean", "class_sum"] = "class_mean"
    """reduction of the squared error over classes; class_sum makes it K times as large"""
    teacher_mode: Literal["train", "eval"] = "train"
    """teacher in training mode, with dropout and batch statistics (original), or in evaluation mode"""
    buffers: Literal["copied", "averaged"] = "copied"
    """running statistics of the teacher: copied from the student, or averaged as the weights are"""

    @property
    def averaged(self) -> bool:
        return True

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "weak_2"), gradient=("weak",))

    def setup(self, net: Network) -> None:
        net.parts["teacher"] = Average(net.classifier, self.m, self.buffers)

    def teacher(self, net: Network) -> Classifier:
        module = net.part("teacher", Average).module
        assert isinstance(module, Classifier)
        return module

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        student = Views(views.labeled, views.gradient, views.gradient)
        l, u = net.encode(student, labeled, unlabeled)
        teacher = net.part("teacher", Average)
        mode = evaluating(teacher) if self.teacher_mode == "eval" else nullcontext()
        with torch.no_grad(), mode, keeping_running_statistics(teacher):
            return l, u.with_views({**u.views, "weak_2": self.teacher(net).psi(unlabeled["weak_2"])})

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            p = probabilities(self.teacher(net).h(u["weak_2"]))
            y = p.argmax(dim=1)
            return PseudoLabels(y, torch.ones_like(y, dtype=torch.bool), target=p)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        assert f_hat.target is not None
        return squared_error(probabilities(h(u.weak)), f_hat.target, self.reduction).mean()

    def weight(self, net: Network) -> Tensor | float:
        return self.lam * gaussian_ramp(net.step, self.ramp * net.task.steps)

    def after_step(self, net: Network, t: int) -> None:
        net.part("teacher", Average).update(net.classifier, t)

    def predictor(self, net: Network) -> nn.Module:
        return self.teacher(net)
