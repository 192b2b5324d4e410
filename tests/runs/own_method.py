"""A method as a user writes it in a file of their own, and versions of it that break the contract."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.methods import PseudoLabels, SelfTraining, labeled_views, pseudo_cross_entropy
from selftrain.nn import Network
from selftrain.nn.collectives import all_mean

if Path(__file__).name != "own_method.py":
    Path(__file__).with_name("ran.txt").write_text("yes")  # so that a test sees whether the code has run


class Running(nn.Module):
    """The running confidence."""

    tau: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("tau", torch.tensor(1 / classes))


@dataclass(frozen=True, kw_only=True)
class MyMatch(SelfTraining):
    """FixMatch whose threshold follows the confidence."""

    name: ClassVar[str] = "mymatch"
    title: ClassVar[str] = "MyMatch"
    reference: ClassVar[str] = "an example"
    flows: ClassVar[Any] = {"labeled": ("psi", "h"), "unlabeled": ("psi", "h")}

    m: float = 0.9
    """decay of the running confidence"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def setup(self, net: Network) -> None:
        net.parts["running"] = Running(net.task.classes)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            confidence, y = torch.softmax(h(u.weak).float(), dim=1).max(dim=1)
            now = torch.lerp(all_mean(confidence.mean()), net.part("running", Running).tau, self.m)
            return PseudoLabels(y, confidence >= now, note=now)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(h(u.strong), f_hat)

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        net.part("running", Running).tau.copy_(f_hat.note)


@dataclass(frozen=True, kw_only=True)
class NoHelp(MyMatch):
    k: float = 0.8


@dataclass(frozen=True, kw_only=True)
class Forgets(MyMatch):
    seen: ClassVar[list[float]] = []

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        self.seen.append(1.0)
        return super().supervise(net, h, l) * (1 + len(self.seen))


@dataclass(frozen=True, kw_only=True)
class Impure(MyMatch):
    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        f_hat = super().label(net, h, u)
        self.record(net, Labeled(f_hat.y), u, f_hat)
        return f_hat


@dataclass(frozen=True, kw_only=True)
class WrongHead(MyMatch):
    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return pseudo_cross_entropy(net.h(u.strong), f_hat)


@dataclass(frozen=True, kw_only=True)
class WrongFlow(MyMatch):
    flows: ClassVar[Any] = {"unlabeled": ("h",)}


@dataclass(frozen=True, kw_only=True)
class Stuck(MyMatch):
    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        return -super().supervise(net, h, l)


@dataclass(frozen=True, kw_only=True)
class EachForItself(MyMatch):
    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        net.part("running", Running).tau.copy_(u.weak.mean().detach())
