"""Observers of a run: mean losses, quality and changes of pseudo labels, agreement of the heads.

They read and never change training, and know nothing of any method's name. They add up on the device and are read at
evaluations only: no host sync in the hot loop. The hidden true labels are held here and nowhere else. Reading an
observer or its state sums over all ranks, so every rank must do it.
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
    """Sees every step; reports at evaluations."""

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        """Record one step, on the device."""

    def read(self) -> dict[str, Any]:
        """Return plain numbers about the steps since the last reading, and start again."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make_observers(truth: Tensor, classes: int, device: torch.device) -> list[Observer]:
    """Return the observers of a run; ``truth`` holds the true classes of the unlabeled set, -1 where unknown."""
    return [
        LossMeter(device),
        PseudoLabelQuality(truth, device, classes),
        PseudoLabelChurn(len(truth), device, classes),
        OtherHeads(device),
    ]


def _sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


class _Sums:
    """Numbers that are added up over steps and ranks. A saved state holds the sums of all ranks; rank 0 loads it.

    Steps are queued and counted together: counting many small steps at once costs as much as counting one.
    """

    EVERY = 16

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype | None = None):
        self.sums = torch.zeros(size, dtype=dtype or _sum_dtype(device), device=device)
        self.queued: list[Any] = []

    def queue(self, step: Any) -> None:
        self.queued.append(step)
        if len(self.queued) >= self.EVERY:
            self.count_queued()

    def count_queued(self) -> None:
        if self.queued:
            self.count(self.queued)
            self.queued = []

    def count(self, steps: list[Any]) -> None:
        raise NotImplementedError

    def take(self) -> list[Any]:
        """Return the sums over all ranks and reset them to 0."""
        self.count_queued()
        values: list[Any] = all_sum(self.sums).tolist()
        self.sums.zero_()
        return values

    def state_dict(self) -> dict[str, Any]:
        self.count_queued()
        return {"sums": all_sum(self.sums).clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queued = []
        self.sums.copy_(state["sums"])
        if rank() > 0:
            self.sums.zero_()


class LossMeter:
    """Mean of the total loss and of each term."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        self.steps = 0

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        self.steps += 1
        for name, value in losses.terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=_sum_dtype(self.device), device=self.device)
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
    """Pseudo labels seen, kept and right, per class. Quantity is the share kept; quality the share of those right.

    A label with a weight counts as kept to that part, and as not kept to the rest.
    """

    def __init__(self, truth: Tensor, device: torch.device, classes: int) -> None:
        # 2 K numbers by predicted class (not kept, kept), then 3 (K + 1) by true class (not kept, kept and wrong, kept
        # and right), with "unknown" as the last class
        super().__init__(2 * classes + 3 * (classes + 1), device)
        self.K = classes
        self.truth = torch.where(truth >= 0, truth, classes).to(device)
        self.known = bool((truth >= 0).any())

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is not None:
            labels = torch.stack([unlabeled.index, losses.pseudo.y, losses.pseudo.keep.long()])
            self.queue((labels, losses.pseudo.weight))

    def count(self, steps: list[tuple[Tensor, Tensor | None]]) -> None:
        index, y, keep = torch.cat([labels for labels, _ in steps], dim=1)
        weight = steps[0][1]  # a method gives weights at every step or at none
        if weight is None:
            self._add(index, y, keep, None)
        else:
            weight = torch.cat([weight for _, weight in steps if weight is not None]).to(self.sums.dtype)
            self._add(index, y, keep, weight)
            self._add(index, y, torch.zeros_like(keep), 1 - weight)

    def _add(self, index: Tensor, y: Tensor, keep: Tensor, weight: Tensor | None) -> None:
        K, truth, exists = self.K, self.truth[index], (y >= 0).long()
        what = keep * (1 + (y == truth).long())
        place = torch.cat([keep * K + y * exists, 2 * K + what * (K + 1) + truth])
        ones = torch.ones_like(exists) if weight is None else weight
        self.sums.index_add_(0, place, torch.cat([exists * ones, ones]).to(self.sums.dtype))

    def read(self) -> dict[str, Any]:
        K, values = self.K, self.take()
        other, kept = values[:K], _numbers(values[K : 2 * K])
        by_truth = torch.tensor(values[2 * K :], dtype=torch.float64).view(3, K + 1)
        seen_true, kept_true, right = (_numbers(by_truth[i:, :K].sum(dim=0).tolist()) for i in range(3))
        seen, judged = round(float(by_truth.sum())), sum(kept_true)
        known = self.known and seen > 0
        return {
            "pseudo_label_quantity": float(by_truth[1:].sum()) / seen if seen else None,
            "pseudo_label_quality": sum(right) / judged if judged else None,
            "pseudo_predicted": [round(a + b) for a, b in zip(other, kept, strict=True)] if seen else None,
            "pseudo_kept": kept if seen else None,
            "pseudo_kept_true": kept_true if known else None,
            "pseudo_right": right if known else None,
            "pseudo_seen_true": seen_true if known else None,
        }


def _numbers(values: list[float]) -> list[float]:
    """Return whole numbers as such, and sums of weights with three decimals."""
    return [round(value) if abs(value - round(value)) < 1e-6 else round(value, 3) for value in values]


class PseudoLabelChurn:
    """Share of unlabeled samples whose pseudo label, kept or not, has changed since they were last seen."""

    EVERY = 256
    """steps whose labels are queued and then compared with the previous ones all at once"""

    def __init__(self, samples: int, device: torch.device, classes: int) -> None:
        kind = torch.int16 if classes < 2**15 else torch.int32
        self.last = torch.full((samples,), -1, dtype=kind, device=device)  # the same on all ranks
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)  # seen before, changed
        self.queued: list[Tensor] = []

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is None:
            return
        self.queued.append(torch.stack([unlabeled.index, losses.pseudo.y]))  # a copy: the batch may be gone by then
        if len(self.queued) == self.EVERY:
            self._compare()

    def _compare(self) -> None:
        """Compare each label with the previous one of its sample, whichever rank saw that."""
        if not self.queued:
            return
        order = torch.cat([torch.full_like(pair[0], i) for i, pair in enumerate(self.queued)])
        rows = all_rows(torch.cat([torch.cat(self.queued, dim=1), order[None]]).T)
        self.queued = []
        rows = rows[rows[:, 1] >= 0]  # without samples that have no label yet
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
        self.queued = []
        self.last.copy_(state["last"])
        self.counts.copy_(state["counts"])


class OtherHeads(_Sums):
    """How far the worst-case head h' departs from the pseudo labels, and how often h_pseudo agrees with them.

    Reads a method's notes: the logits of ``h_worst`` and ``h_pseudo`` on the unlabeled batch as seen in training, and
    ``L_worst``, the loss of h' on labeled data.
    """

    COUNTS = ("asked", "wrong", "L_U", "samples", "L_L", "steps", "labels", "shared")

    def __init__(self, device: torch.device) -> None:
        super().__init__(len(self.COUNTS), device)

    def on_step(self, losses: Losses, unlabeled: Unlabeled) -> None:
        if losses.pseudo is not None and losses.notes:
            self.queue((losses.pseudo._replace(target=None, note=None, inner=None), losses.notes))

    def count(self, steps: list[tuple[PseudoLabels, Notes]]) -> None:
        y, keep = torch.cat([f_hat.y for f_hat, _ in steps]), torch.cat([f_hat.keep for f_hat, _ in steps])
        exists, zero = y >= 0, torch.zeros((), device=y.device)
        found = dict.fromkeys(self.COUNTS, zero)
        if worst := [notes["h_worst"] for _, notes in steps if "h_worst" in notes]:
            logits = torch.cat(worst)
            found["asked"], found["wrong"] = exists.sum(), (exists & (logits.argmax(dim=1) != y)).sum()
            found["samples"], found["steps"] = zero + len(y), zero + len(steps)
            found["L_U"] = len(y) * pseudo_cross_entropy(logits, PseudoLabels(y, keep))
            found["L_L"] = torch.stack([notes["L_worst"] for _, notes in steps]).sum()
        pseudo = [notes["h_pseudo"] for _, notes in steps if "h_pseudo" in notes]
        if pseudo and sum(map(len, pseudo)) == len(y):  # otherwise the base has mixed the samples
            found["labels"], found["shared"] = exists.sum(), (exists & (torch.cat(pseudo).argmax(dim=1) == y)).sum()
        self.sums += torch.stack([value.to(self.sums.dtype) for value in found.values()])

    def read(self) -> dict[str, Any]:
        of = dict(zip(self.COUNTS, self.take(), strict=True))
        return {
            "worst_error": of["wrong"] / of["asked"] if of["asked"] else None,
            "worst_loss": of["L_U"] / of["samples"] - of["L_L"] / of["steps"] if of["asked"] else None,  # Eq. 7
            "head_agreement": of["shared"] / of["labels"] if of["labels"] else None,
        }
