"""psi, the heads, and every other thing that changes in training: one module, so a checkpoint is complete.

Knows nothing of the equations: a method asks for modules in its ``setup`` and finds them in ``parts``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views


def mlp_head(dim: int, width: int, classes: int, *, dropout: float = 0.5, layers: int = 2) -> nn.Sequential:
    """Linear-ReLU-Dropout-Linear, the paper's nonlinear head; with three layers Linear-BN-ReLU twice, then Linear."""
    if layers == 2:
        return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, classes))
    hidden = [
        module
        for n_in in (dim, *[width] * (layers - 2))
        for module in (nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


class UnitFeatures(nn.Module):
    """Features of a frozen backbone, each scaled to length d^(1/4): what a small psi is trained on.

    In training the backbone is not here, its features come from a cache; a model that is saved has it.
    """

    def __init__(self, dim: int, backbone: nn.Module | None = None, unit: bool = True):
        super().__init__()
        self.dim, self.unit = dim, unit
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        if self.backbone is not None:
            x = self.backbone(x)
        return F.normalize(x, dim=1) * self.dim**0.25 if self.unit else x


class Encoder(nn.Module):
    """psi: pixels or features -> normalised input -> backbone -> optional Linear-BN-ReLU-Dropout bottleneck."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        bottleneck: int = 0,
        dropout: float = 0.5,
        channels_last: bool = True,
    ):
        super().__init__()
        self.backbone = backbone
        dim = int(getattr(backbone, "dim"))  # noqa: B009 -- nn.Module attributes are untyped
        self.bottleneck: nn.Module = nn.Identity()
        if bottleneck:
            self.bottleneck = nn.Sequential(
                nn.Linear(dim, bottleneck), nn.BatchNorm1d(bottleneck), nn.ReLU(), nn.Dropout(dropout)
            )
        self.dim = bottleneck or dim
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.mean: Tensor
        self.inverse_std: Tensor
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("inverse_std", 1 / (255 * torch.tensor(std).view(-1, 1, 1)), persistent=False)

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels (uint8) in the units the backbone was trained in; anything else is taken to be so already."""
        if x.dtype != torch.uint8:
            return x
        x = x.to(dtype=self.mean.dtype, memory_format=self.memory_format)
        return x.sub_(self.mean).mul_(self.inverse_std)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bottleneck(self.backbone(self.normalise(x)))
        return out


class Classifier(nn.Module):
    """h(psi(x)): what is evaluated, averaged, saved and exported."""

    def __init__(self, psi: Encoder, h: nn.Module):
        super().__init__()
        self.psi = psi
        self.h = h

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.h(self.psi(x))
        return logits


class Average(nn.Module):
    """The exponential moving average of a module: bar(theta) <- m_t bar(theta) + (1 - m_t) theta."""

    def __init__(self, module: nn.Module, decay: float):
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, source: nn.Module, t: int) -> None:
        """Follow ``source`` after optimiser step t = 0, 1, ...; m_t = min(m, 1 - 1/(t + 1)). Buffers are copied."""
        m = min(self.decay, 1 - 1 / (t + 1))
        torch._foreach_lerp_(list(self.module.parameters()), list(source.parameters()), 1 - m)
        if buffers := list(self.module.buffers()):
            torch._foreach_copy_(buffers, list(source.buffers()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


@dataclass(frozen=True)
class Task:
    """The sizes a method may need to know in order to build its parts."""

    classes: int
    unlabeled: int
    """how many unlabeled samples there are"""
    steps: int
    """how many optimiser steps the run will take"""


class Network(nn.Module):
    """The classifier that is trained, the step, and whatever parts the method asked for."""

    step: Tensor

    def __init__(self, classifier: Classifier, task: Task):
        super().__init__()
        self.classifier = classifier
        self.task = task
        self.parts = nn.ModuleDict()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @property
    def psi(self) -> Encoder:
        return self.classifier.psi

    @property
    def h(self) -> nn.Module:
        return self.classifier.h

    def encode(self, views: Views, l: Labeled, u: Unlabeled) -> tuple[Labeled, Unlabeled]:
        """psi of every view asked for: one pass for those that carry gradient, one without gradient for the others."""
        still = [name for name in views.unlabeled if name not in views.gradient]
        z = self._pass([l[name] for name in views.labeled] + [u[name] for name in views.gradient])
        z_l = dict(zip(views.labeled, z, strict=False))
        z_u = dict(zip(views.gradient, z[len(views.labeled) :], strict=True))
        if still:
            with torch.no_grad():
                z_u |= zip(still, self._pass([u[name] for name in still]), strict=True)
        return l.with_views(z_l), u.with_views(z_u)

    def _pass(self, views: list[Tensor]) -> list[Tensor]:
        if len(views) == 1:
            return [self.psi(views[0])]
        return list(self.psi(torch.cat(views)).split([len(view) for view in views]))


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Inside, the parameters of ``modules`` get no gradient, though gradient flows through them."""
    moving = [p for module in modules for p in module.parameters() if p.requires_grad]
    try:
        for p in moving:
            p.requires_grad_(False)
        yield
    finally:
        for p in moving:
            p.requires_grad_(True)


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, normalisation layers use the statistics of their batch but leave the running ones alone."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    saved: list[Any] = [m.momentum for m in norms]
    counts = [m.num_batches_tracked for m in norms]
    try:
        for m in norms:
            m.momentum = 0.0
            m.num_batches_tracked = None
        yield
    finally:
        for m, momentum, count in zip(norms, saved, counts, strict=True):
            m.momentum, m.num_batches_tracked = momentum, count
