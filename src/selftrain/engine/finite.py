"""Watches a run for numbers that are not finite, without waiting for the device at every step.

Knows nothing of methods, files or names of images. What a step computed is queued on the device and read many steps at
a time. That is early enough: nothing is evaluated or saved before everything queued has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from selftrain.nn.collectives import all_sum


class NotFinite(NamedTuple):
    """The first number of a run that is not finite."""

    step: int
    """counted from 0, as batches are"""
    what: str
    """a term of the loss or a gradient, in words"""


class FiniteWatch:
    """Remembers every loss term, and a sum over every gradient, until they are read.

    Of a matrix, the sum is over the first row of its gradient. A number that is not finite spreads on its way through a
    layer: one that comes in is in every row of the gradient of the weights, and one that comes back is in the gradient
    of the bias and in every row of the layer before. Where it is not, it is in the weights after the step, and with
    them in the loss of the next one.
    """

    EVERY = 64
    """steps between two readings"""

    def __init__(self, parameters: Iterable[Tensor]):
        self.parameters = list(parameters)
        self._queued: list[Tensor] = []
        self._about: list[tuple[int, tuple[str, ...], str | None]] = []
        """of each turn: the step, its terms, and its name if there is a gradient"""

    def note(self, step: int, terms: Mapping[str, Tensor], turn: str = "") -> None:
        """Queue the terms of a turn and its gradients, which are those that the parameters hold now."""
        self._queued += [term.detach() for term in terms.values()]
        parts = [_part(gradient) for p in self.parameters if (gradient := p.grad) is not None]
        if parts:
            # A sum is finite only if all numbers are. It may also overflow, but not before weights do.
            self._queued.append(torch.cat(parts).sum())
        self._about.append((step, tuple(terms), turn if parts else None))

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
        names = (NotFinite(step, name) for step, terms, turn in about for name in _names(terms, turn))
        return next((one for one, flag in zip(names, flags, strict=True) if flag), None)


def _names(terms: Iterable[str], turn: str | None) -> Iterator[str]:
    """Yield what the queued numbers of a turn are."""
    yield from (f"the loss term {name!r}" for name in terms)
    if turn is not None:
        yield f"the gradient{turn and f' of the turn {turn!r}'}"


def _part(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient to look at, as a vector; with few calls, since each costs more than the sum."""
    if isinstance(gradient, DTensor):  # this rank's part of it, which can be empty
        gradient = gradient.to_local()
    dims = gradient.dim()
    if dims == 1:
        return gradient
    row = gradient.select(0, 0) if dims and len(gradient) else gradient
    return row if dims == 2 and row is not gradient else row.reshape(-1)
