"""What watches a run: averages of the losses, pseudo labels against hidden truth, how they change, how heads differ.

Observers read and never change training. They add up on the device and are read out at evaluations only: no host sync
in the hot loop. Hidden truth lives here and nowhere else. Reading, and saving their state, sums over all ranks, so all
ranks do it together.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from selftrain.batch import Unlabeled
from selftrain.methods.base import Losses, Notes
from selftrain.methods.functional import PseudoLabels, pseudo_cross_entropy
from selftrain.nn.collectives import all_rows, all_sum, rank, ranks


class Observer(Protocol):
    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        """Take note of one step, on the device."""

    def read(self) -> dict[str, Any]:
        """What was seen since the last reading, as plain numbers; then start afresh."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def observers_of(truth: Tensor, classes: int, device: torch.device) -> list[Observer]:
    """All that watch a run; ``truth`` is that of the unlabeled set, in its order, -1 where nobody knows."""
    return [
        LossMeter(device),
        PseudoLabelQuality(truth, device, classes),
        PseudoLabelChurn(len(truth), device, classes),
        OtherHeads(device),
    ]


def _exact(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


class _Sums:
    """Numbers that are added up over steps and ranks. A saved state holds the sums of all ranks; rank 0 takes it up.

    A step is set aside at first: many small steps are counted at once for the price of one.
    """

    EVERY = 16

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype | None = None):
        self.sums = torch.zeros(size, dtype=dtype or _exact(device), device=device)
        self.waiting: list[Any] = []

    def set_aside(self, step: Any) -> None:
        self.waiting.append(step)
        if len(self.waiting) >= self.EVERY:
            self.settle()

    def settle(self) -> None:
        """Count what was set aside."""
        if self.waiting:
            self.count(self.waiting)
            self.waiting = []

    def count(self, steps: list[Any]) -> None:
        raise NotImplementedError

    def taken(self) -> list[Any]:
        """The sums of all ranks; then they are 0."""
        self.settle()
        values: list[Any] = all_sum(self.sums).tolist()
        self.sums.zero_()
        return values

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        return {"sums": all_sum(self.sums).clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = []
        self.sums.copy_(state["sums"])
        if rank() > 0:
            self.sums.zero_()


class LossMeter:
    """The mean of the total loss and of each term."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        self.steps = 0

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        self.steps += 1
        for name, value in losses.terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=_exact(self.device), device=self.device)
            self.sums[name] += value.detach()

    def read(self) -> dict[str, Any]:
        n = max(self.steps, 1) * ranks()
        means = {f"loss_{name}": float(all_sum(value)) / n for name, value in self.sums.items()}
        self.sums, self.steps = {}, 0
        return {"loss": sum(means.values()), **means} if means else {}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": {name: all_sum(value).clone() for name, value in self.sums.items()}, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = 1.0 if rank() == 0 else 0.0
        self.sums = {name: value.to(self.device) * mine for name, value in state["sums"].items()}
        self.steps = state["steps"]


class PseudoLabelQuality(_Sums):
    """Pseudo labels seen, kept and right, by class. Quantity: the share kept. Quality: how many of those are right."""

    def __init__(self, truth: Tensor, device: torch.device, classes: int) -> None:
        # by predicted class: 2 K numbers, not kept and kept; then by true class: 3 (K + 1), not kept, kept, kept and
        # right, with what nobody knows as a class of its own
        super().__init__(2 * classes + 3 * (classes + 1), device, torch.int64)
        self.K = classes
        self.truth = torch.where(truth >= 0, truth, classes).to(device)
        self.known = bool((truth >= 0).any())

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is not None:
            self.set_aside(torch.stack([unlabeled.index, losses.pseudo.y, losses.pseudo.keep.long()]))

    def count(self, steps: list[Tensor]) -> None:
        index, y, keep = torch.cat(steps, dim=1)
        K, truth, exists = self.K, self.truth[index], (y >= 0).long()
        what = keep * (1 + (y == truth).long())
        place = torch.cat([keep * K + y * exists, 2 * K + what * (K + 1) + truth])
        self.sums.index_add_(0, place, torch.cat([exists, torch.ones_like(exists)]))

    def read(self) -> dict[str, Any]:
        K, values = self.K, self.taken()
        other, kept, by_truth = values[:K], values[K : 2 * K], torch.tensor(values[2 * K :]).view(3, K + 1)
        seen_true, kept_true, right = (by_truth[i:, :K].sum(dim=0).tolist() for i in range(3))
        seen, judged = int(by_truth.sum()), sum(kept_true)
        known = self.known and seen > 0
        return {
            "pseudo_label_quantity": int(by_truth[1:].sum()) / seen if seen else None,
            "pseudo_label_quality": sum(right) / judged if judged else None,
            "pseudo_predicted": [a + b for a, b in zip(other, kept, strict=True)] if seen else None,
            "pseudo_kept": kept if seen else None,
            "pseudo_kept_true": kept_true if known else None,
            "pseudo_right": right if known else None,
            "pseudo_seen_true": seen_true if known else None,
        }


class PseudoLabelChurn:
    """How many unlabeled samples have another pseudo label, kept or not, than when they were last seen."""

    EVERY = 256
    """steps between which labels are set aside, to be compared with the last ones all at once"""

    def __init__(self, samples: int, device: torch.device, classes: int) -> None:
        kind = torch.int16 if classes < 2**15 else torch.int32
        self.last = torch.full((samples,), -1, dtype=kind, device=device)  # the same on all ranks
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)  # seen before, changed
        self.waiting: list[Tensor] = []

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is None:
            return
        self.waiting.append(torch.stack([unlabeled.index, losses.pseudo.y]))  # copies: the batch may be gone by then
        if len(self.waiting) == self.EVERY:
            self._compare()

    def _compare(self) -> None:
        """Each label with the one before it, whichever rank saw that."""
        if not self.waiting:
            return
        order = torch.cat([torch.full_like(pair[0], i) for i, pair in enumerate(self.waiting)])
        rows = all_rows(torch.cat([torch.cat(self.waiting, dim=1), order[None]]).T)
        self.waiting = []
        rows = rows[rows[:, 1] >= 0]  # a sample without any label, yet
        if ranks() > 1:
            rows = rows[rows[:, 2].argsort(stable=True)]
        index, y, _ = rows[rows[:, 0].argsort(stable=True)].unbind(dim=1)
        again = torch.zeros_like(index, dtype=torch.bool)
        again[1:] = index[1:] == index[:-1]
        before = torch.where(again, y.roll(1), self.last[index].long())
        known = before >= 0
        self.counts += torch.stack([known.sum(), (known & (before != y)).sum()])
        newest = ~again.roll(-1)
        self.last[index[newest]] = y[newest].to(self.last.dtype)

    def read(self) -> dict[str, Any]:
        self._compare()
        before, changed = self.counts.tolist()
        self.counts.zero_()
        return {"pseudo_churn": changed / before if before else None}

    def state_dict(self) -> dict[str, Any]:
        self._compare()
        return {"last": self.last, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = []
        self.last.copy_(state["last"])
        self.counts.copy_(state["counts"])


class OtherHeads(_Sums):
    """How far the worst-case head h' departs from the pseudo labels, and how often h_pseudo agrees with them.

    From what a method notes: the logits of ``h_worst`` and ``h_pseudo`` on the unlabeled batch, as they see it in
    training, and h' s loss on labeled data, ``L_worst``.
    """

    FIGURES = ("asked", "wrong", "L_U", "samples", "L_L", "steps", "labels", "shared")

    def __init__(self, device: torch.device) -> None:
        super().__init__(len(self.FIGURES), device)

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is not None and losses.notes:
            self.set_aside((losses.pseudo._replace(target=None, note=None), losses.notes))

    def count(self, steps: list[tuple[PseudoLabels, Notes]]) -> None:
        y, keep = torch.cat([f_hat.y for f_hat, _ in steps]), torch.cat([f_hat.keep for f_hat, _ in steps])
        exists, zero = y >= 0, torch.zeros((), device=y.device)
        found = dict.fromkeys(self.FIGURES, zero)
        if worst := [notes["h_worst"] for _, notes in steps if "h_worst" in notes]:
            logits = torch.cat(worst)
            found["asked"], found["wrong"] = exists.sum(), (exists & (logits.argmax(dim=1) != y)).sum()
            found["samples"], found["steps"] = zero + len(y), zero + len(steps)
            found["L_U"] = len(y) * pseudo_cross_entropy(logits, PseudoLabels(y, keep))
            found["L_L"] = torch.stack([notes["L_worst"] for _, notes in steps]).sum()
        pseudo = [notes["h_pseudo"] for _, notes in steps if "h_pseudo" in notes]
        if pseudo and sum(map(len, pseudo)) == len(y):  # else the base has mixed the samples
            found["labels"], found["shared"] = exists.sum(), (exists & (torch.cat(pseudo).argmax(dim=1) == y)).sum()
        self.sums += torch.stack([value.to(self.sums.dtype) for value in found.values()])

    def read(self) -> dict[str, Any]:
        of = dict(zip(self.FIGURES, self.taken(), strict=True))
        return {
            "worst_error": of["wrong"] / of["asked"] if of["asked"] else None,
            "worst_loss": of["L_U"] / of["samples"] - of["L_L"] / of["steps"] if of["asked"] else None,  # Eq. 7
            "head_agreement": of["shared"] / of["labels"] if of["labels"] else None,
        }
