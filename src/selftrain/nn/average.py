"""The exponential moving average of a module's weights.

Knows nothing of what the module is for or who follows whom.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Average(nn.Module):
    """The exponential moving average of a module: bar(theta) <- m_t bar(theta) + (1 - m_t) theta."""

    _followed: tuple[nn.Module, list[tuple[_Tensors, _Tensors]]] | None

    def __init__(self, module: nn.Module, decay: float, buffers: str = "copied"):
        super().__init__()
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.decay = decay
        self.of_buffers = buffers
        self._followed = None  # the source, and the places of the tensors in both modules

    @torch.inference_mode()  # half the bookkeeping of no_grad; all tensors that are written to exist already
    def update(self, source: nn.Module, t: int) -> None:
        """Follow ``source`` after optimiser step t = 0, 1, ...; m_t = min(m, 1 - 1/(t + 1)).

        Buffers are copied, or averaged with ``buffers="averaged"``; integer buffers are always copied.
        """
        m = min(self.decay, 1 - 1 / (t + 1))
        if self._followed is None or self._followed[0] is not source:
            kinds = (self._averaged, self._copied, self._counted)
            self._followed = source, [(_Tensors(self.module, kind), _Tensors(source, kind)) for kind in kinds]
        _, ((mine, new), *copied) = self._followed
        torch._foreach_lerp_(mine.current(), new.current(), 1 - m)
        for copies, originals in copied:  # one call per dtype, which is faster in torch
            if copies.places:
                torch._foreach_copy_(copies.current(), originals.current())

    def _averaged(self, x: Tensor) -> bool:
        return isinstance(x, nn.Parameter) or (self.of_buffers == "averaged" and x.is_floating_point())

    def _copied(self, x: Tensor) -> bool:
        return not self._averaged(x) and x.is_floating_point()

    def _counted(self, x: Tensor) -> bool:
        return not self._averaged(x) and not x.is_floating_point()

    def __getstate__(self) -> dict[str, Any]:
        inherited: Any = super()  # untyped
        return {**inherited.__getstate__(), "_followed": None}  # a copy of this module does not carry the source along

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


class _Tensors:
    """The places of a module's tensors of one kind, each once.

    As long as no submodule is replaced, looking there is much faster than walking over all names at every step.
    """

    def __init__(self, root: nn.Module, kind: Callable[[Tensor], bool]):
        tables: Iterable[Any] = (t for module in root.modules() for t in (module._parameters, module._buffers))
        found = {id(x): (table, name) for table in tables for name, x in table.items() if x is not None and kind(x)}
        self.places: list[tuple[Mapping[str, Any], str]] = list(found.values())
        self.sharded = any(hasattr(table[name], "to_local") for table, name in self.places)

    def current(self) -> list[Tensor]:
        """Return the tensors as they are now; of sharded ones, this rank's share."""
        tensors = [table[name] for table, name in self.places]
        return [x.to_local() if hasattr(x, "to_local") else x for x in tensors] if self.sharded else tensors
