"""What watches a run: averages of the losses, pseudo labels against hidden truth.

Observers read and never change training. They add up on the device and are read out at evaluations only: no host sync
in the hot loop. What they say, and what they keep in a checkpoint, is that of all ranks. Hidden truth lives here and
nowhere else.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from selftrain.batch import Unlabeled
from selftrain.distributed import all_mean, all_sum, rank
from selftrain.methods.base import Losses


class Observer(Protocol):
    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        """Take note of one step, on the device."""

    def read(self) -> dict[str, Any]:
        """What was seen since the last reading, as plain numbers; then start afresh."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LossMeter:
    """The mean of the total loss and of each term."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        self.steps = 0

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        self.steps += 1
        for name, value in {"loss": losses.total, **losses.terms}.items():
            name = name if name == "loss" else f"loss_{name}"
            value = value.detach().float()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def read(self) -> dict[str, Any]:
        means = {name: float(value) / max(self.steps, 1) for name, value in self._of_all_ranks().items()}
        self.sums, self.steps = {}, 0
        return means

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._of_all_ranks(), "steps": self.steps}

    def _of_all_ranks(self) -> dict[str, Tensor]:
        return dict(zip(self.sums, all_mean(torch.stack([*self.sums.values()])), strict=True)) if self.sums else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = {name: value.to(self.device) for name, value in state["sums"].items()}
        self.steps = state["steps"]


class PseudoLabelQuality:
    """Quantity: the share of pseudo labels kept. Quality: how many of those are right, where truth is known."""

    def __init__(self, truth: Tensor, device: torch.device) -> None:
        self.truth = truth.to(device)  # of the unlabeled set, in its order; -1 where nobody knows
        self.counts = torch.zeros(4, dtype=torch.float64, device=device)  # seen, kept, kept with truth, right

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is None:
            return
        truth = self.truth[unlabeled.index]
        keep = losses.pseudo.keep
        judged = keep & (truth >= 0)
        right = judged & (losses.pseudo.y == truth)
        seen = torch.full((), len(keep), device=keep.device)
        self.counts += torch.stack([seen, keep.sum(), judged.sum(), right.sum()])

    def read(self) -> dict[str, Any]:
        seen, kept, judged, right = all_sum(self.counts).tolist()
        self.counts.zero_()
        return {
            "pseudo_label_quantity": kept / seen if seen else None,
            "pseudo_label_quality": right / judged if judged else None,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"counts": all_sum(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.copy_(state["counts"] if rank() == 0 else torch.zeros(4))  # they are added up over the ranks
