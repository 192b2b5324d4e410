"""What a run is compared with: the same labels, learned without pseudo labels.

Knows nothing of how a reference is trained; it is read from the run's folder, or is another run on the page. The model
that the guard compares with is such a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from selftrain.report.run_data import PerClass, RunData

SAME = ("network.backbone", "regime", "data.size")
"""settings in which a run and its reference agree"""


class Baseline(NamedTuple):
    """Accuracy of each class with labels only, and where it comes from."""

    per_class: PerClass
    source: str


def baseline_of(run: RunData, others: Sequence[RunData]) -> Baseline | None:
    """Return the labels-only accuracy for a run: from its own reference, or from a fitting run on the page."""
    if run.reference and isinstance(run.reference.get("labels_only"), Mapping):
        per_class = run.reference["labels_only"].get("per_class")
        if isinstance(per_class, list) and len(per_class) == len(run.classes):
            return Baseline(per_class, "labels only")
    if run.guard is not None and not run.fell_back:
        measured = run.guard["labels_only"]["per_class"]
        if measured is not None and len(measured) == len(run.classes):
            return Baseline(measured, "labels only")
    for other in others:
        if other.per_class is not None and _fits(other, run):
            return Baseline(other.per_class, f"the run “{other.name}”")
    return None


def accuracy_of_labels_only(run: RunData, others: Sequence[RunData] = ()) -> float | None:
    """Return the accuracy of the same labels without pseudo labels: from the guard, a reference or another run."""
    if run.guard is not None:
        return run.guard["labels_only"]["accuracy"]
    found = (run.reference or {}).get("labels_only")
    if isinstance(found, Mapping):
        return found.get("accuracy")
    return next((other.value("accuracy") for other in others if other is not run and _fits(other, run)), None)


def _fits(other: RunData, run: RunData) -> bool:
    return (
        other.labels_only
        and not other.info.fitted  # it has another classifier
        and other.split_hash is not None
        and other.split_hash == run.split_hash
        and other.classes == run.classes
        and all(other.settings.get(name) == run.settings.get(name) for name in SAME)
        and other.value("evaluated_on") == run.value("evaluated_on")
    )


def training_bias(run: RunData, others: Sequence[RunData]) -> PerClass | None:
    """Return B(f_pl(P_n, psi_0, S)) - B(f_pl(P_n, psi_0)): the error that pseudo labels add to each class."""
    if run.reference and isinstance(run.reference.get("training_bias"), list):
        found = run.reference["training_bias"]
        return found if len(found) == len(run.classes) else None
    baseline = baseline_of(run, others)
    if baseline is None or run.per_class is None:
        return None
    pairs = zip(baseline.per_class, run.per_class, strict=True)
    return [None if a is None or b is None else a - b for a, b in pairs]
