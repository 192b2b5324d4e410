"""psi, the heads, and everything else that changes in training: one module, so that a checkpoint is complete.

Knows nothing of the equations: a method asks for modules in its ``setup`` and finds them in ``parts``.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.nn.layers import Classifier, Encoder, shuffle_weights
from selftrain.nn.norms import keeping_running_statistics

Part = TypeVar("Part", bound=nn.Module)


@dataclass(frozen=True)
class Task:
    """The sizes a method may need to know in order to build its parts."""

    classes: int
    unlabeled: int
    """number of unlabeled samples"""
    steps: int
    """number of optimiser steps (per round, if a method trains in several rounds)"""
    shape: tuple[int, ...] = ()
    """of one input sample: channels, height and width of an image, or the number of features"""


class Network(nn.Module):
    """The classifier that is trained, the step, and the parts that the method asked for."""

    fixed: ClassVar[tuple[str, ...]] = ("prior", "pile")
    """parts that are found before the first step and that training never changes"""
    step: Tensor
    _peer: list[Network]

    def __init__(self, classifier: Classifier, task: Task, *, bn_apart: bool = False):
        """``bn_apart``: separate batch-norm passes; only labeled views update the running statistics."""
        super().__init__()
        self.classifier = classifier
        self.task = task
        self.bn_apart = bn_apart
        self.parts = nn.ModuleDict()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @property
    def psi(self) -> Encoder:
        return self.classifier.psi

    @property
    def h(self) -> nn.Module:
        return self.classifier.h

    def part(self, name: str, kind: type[Part]) -> Part:
        """Return the part called ``name``, which must be of type ``kind``."""
        part = self.parts[name]
        assert isinstance(part, kind), f"{name} is a {type(part).__name__}"
        return part

    def twin(self) -> Network:
        """Add and return a second network for methods that need two.

        Its weights are drawn again, except those of a pretrained backbone.
        """
        twin = Network(copy.deepcopy(self.classifier), self.task, bn_apart=self.bn_apart)
        shuffle_weights(twin.psi.bottleneck, twin.h)
        if not getattr(twin.psi.backbone, "pretrained", False):
            shuffle_weights(twin.psi.backbone)
        self.parts["twin"] = twin
        self._peer, twin._peer = [twin], [self]  # in lists, so that neither becomes a module of the other
        return twin

    @property
    def peer(self) -> Network:
        """The other one of two networks."""
        return self._peer[0]

    @property
    def members(self) -> tuple[Network, ...]:
        """This network, and its twin if it has one."""
        return (self, *(part for name, part in self.parts.items() if name == "twin" and isinstance(part, Network)))

    def encode(self, views: Views, l: Labeled, u: Unlabeled) -> tuple[Labeled, Unlabeled]:
        """Apply psi to every view of ``views``.

        Views that carry gradient share one pass; the others share a pass without gradient.
        """
        no_gradient = [name for name in views.unlabeled if name not in views.gradient]
        x_l, x_u = [l[name] for name in views.labeled], [u[name] for name in views.gradient]
        if self.bn_apart:
            z = self.embed(*x_l)
            with keeping_running_statistics(self.psi):
                z += self.embed(*x_u)
        else:
            z = self.embed(*x_l, *x_u)
        z_l = dict(zip(views.labeled, z, strict=False))
        z_u = dict(zip(views.gradient, z[len(views.labeled) :], strict=True))
        with torch.no_grad(), keeping_running_statistics(self.psi) if self.bn_apart else nullcontext():
            z_u |= zip(no_gradient, self.embed(*(u[name] for name in no_gradient)), strict=True)
        return l.with_views(z_l), u.with_views(z_u)

    def embed(self, *views: Tensor) -> list[Tensor]:
        """Apply psi to several batches in one pass."""
        if len(views) < 2:
            return [self.psi(view) for view in views]
        return list(self.psi(torch.cat(views)).split([len(view) for view in views]))

    def advance(self) -> None:
        """Count a finished step."""
        for one in self.members:
            one.step += 1

    def remember(self) -> None:
        """Keep a copy of the current weights for ``restart``."""
        self.parts["initial"] = _Snapshot(self)

    @torch.no_grad()
    def restart(self, lasting: tuple[str, ...] = ()) -> None:
        """Restore the weights that ``remember`` kept, except in the parts named in ``lasting``."""
        initial = dict(self.parts["initial"].named_buffers())
        kept = ("parts.initial.", *(f"parts.{name}." for name in lasting))
        for name, value in self.state_dict().items():
            if not name.startswith(kept) and not _is_fixed(name):
                value.copy_(initial[name.replace(".", "/")])


class _Snapshot(nn.Module):
    """A copy of a module's state as buffers; dots in names become slashes, because buffer names have no dots."""

    def __init__(self, module: nn.Module):
        super().__init__()
        for name, value in module.state_dict().items():
            if not _is_fixed(name):
                self.register_buffer(name.replace(".", "/"), value.clone())


def _is_fixed(name: str) -> bool:
    return any(f"parts.{part}." in name for part in Network.fixed)
