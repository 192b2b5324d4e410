"""Watches a run for numbers that are not finite, without waiting for the device at every step.

Knows nothing of methods, files or names of images. What a step computed is queued on the device and read many steps at
a time. That is early enough: nothing is evaluated or saved before everything queued has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from selftrain.nn.collectives import all_sum


class NotFinite(NamedTuple):
    """The first number of a run that is not finite."""

    step: int
    """counted from 0, as batches are"""
    what: str
    """a term of the loss or a gradient, in words"""


SMALL = 4096
"""numbers of a gradient that are all looked at"""


class FiniteWatch:
    """Remembers every loss term, and a sum over every gradient, until they are read.

    Of a large gradient, the sum is over its first row. A number that is not finite spreads on its way through a layer:
    one that comes in is in every row of the gradient of the weights, and one that comes back is in the gradient of the
    bias and in every row of the layer before. Where it is not, it is in the weights after the step, and with them in
    the loss of the next one.
    """

    EVERY = 64
    """steps between two readings"""

    def __init__(self, parameters: Iterable[Tensor]):
        self.parameters = list(parameters)
        self._queued: list[Tensor] = []
        self._about: list[NotFinite] = []
        """where each queued number is from"""

    def note(self, step: int, terms: Mapping[str, Tensor], turn: str = "") -> None:
        """Queue the terms of a turn and its gradients, which are those that the parameters hold now."""
        values = [term.detach() for term in terms.values()]
        names = [f"the loss term {name!r}" for name in terms]
        parts = [_part(_local(gradient)) for p in self.parameters if (gradient := p.grad) is not None]
        if parts:
            # A sum is finite only if all numbers are. It may also overflow, but not before weights do.
            values.append(torch.cat(parts).sum())
            names.append(f"the gradient{turn and f' of the turn {turn!r}'}")
        self._queued += values
        self._about += [NotFinite(step, name) for name in names]

    def due(self, steps: int) -> bool:
        """Tell whether the queue should be read after so many steps of the run."""
        return steps % self.EVERY == 0

    def first(self) -> NotFinite | None:
        """Return what was the first not to be finite on any rank, and empty the queue; every rank must call it."""
        if not self._queued:
            return None
        bad = ~torch.stack([value.float() for value in self._queued]).isfinite()
        about, self._queued, self._about = self._about, [], []
        flags: list[float] = all_sum(bad.float()).tolist()
        return next((one for one, flag in zip(about, flags, strict=True) if flag), None)


def _part(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient to look at, as a vector; with few calls, since each costs more than the sum."""
    if gradient.dim() == 1:
        return gradient
    if gradient.dim() == 0 or gradient.numel() <= SMALL:
        return gradient.reshape(-1)
    row = gradient.select(0, 0)
    return row if row.dim() == 1 else row.reshape(-1)


def _local(gradient: Tensor) -> Tensor:
    """Return this rank's part of a gradient that is sharded over the ranks."""
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local
