"""Section: how many pseudo labels were used, and how many of them were right.

Knows nothing of how a method chooses them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from selftrain.report.charts import Axis, Series, percent, ratio
from selftrain.report.run_data import Curve, RunData, noun_of
from selftrain.report.section import Section, only


def pseudo_labels(runs: Sequence[RunData]) -> Section:
    section = Section("pseudo", "Pseudo labels", "The pseudo labels used in training")
    noun = noun_of(runs)
    if not any(run.curve("pseudo_label_quantity") for run in runs):
        if not all(run.labels_only for run in runs):
            section.note("These methods do not select individual pseudo labels, so there are none to count.")
        return section
    section.curves(
        runs, "pseudo_label_quantity", "Quantity", f"Share of unlabeled {noun} whose pseudo label is used for training."
    )
    if not section.curves(runs, "pseudo_label_quality", "Quality", "Share of the used pseudo labels that are correct."):
        section.note(
            f"How many pseudo labels are correct is not known: the true classes of the unlabeled {noun} are not known."
        )
    section.series(
        "worst-quality",
        "Quality in the weakest classes",
        "The same share, for the fifth of the classes with the fewest correct pseudo labels.",
        [Series(i, run.name, _worst_quality(run)) for i, run in enumerate(runs)],
    )
    section.series(
        "imbalance",
        "Imbalance of the pseudo labels",
        "How often the most used class serves as a pseudo label per use of the least used one. Logarithmic scale.",
        [Series(i, run.name, run.pseudo_imbalance()) for i, run in enumerate(runs)],
        Axis(form=ratio, log=True),
    )
    section.curves(
        runs,
        "pseudo_churn",
        "Churn: pseudo labels that changed",
        "Share of pseudo labels that changed since the previous evaluation. It should fall.",
        Axis(low=0.0),
    )
    findings = [_finding(run) for run in runs if run.value("pseudo_label_quantity") is not None]
    section.text = (
        f"A pseudo label is the model's own prediction for an unlabeled {noun[:-1]}, used as if it were a label."
    )
    if only(runs):
        section.title = f"At the end of training, {findings[0]}" if findings else section.title
    elif findings:
        section.text += f" At the end of training, {'; '.join(findings)}."
    return section


def _finding(run: RunData) -> str:
    quantity, quality = run.value("pseudo_label_quantity"), run.value("pseudo_label_quality")
    correct = f", {percent(quality)} of them correctly labeled" if quality is not None else ""
    return f"{run.name} uses {percent(quantity)} of the unlabeled {run.noun}{correct}"


def _worst_quality(run: RunData) -> Curve:
    """Return, over training, the mean share of correct pseudo labels in the fifth of the classes with the lowest."""
    found = []
    for at, row in enumerate(run.rows):
        kept, right = run.by_class("pseudo_kept_true", at), run.by_class("pseudo_right", at)
        seen = run.by_class("pseudo_seen_true", at)
        if kept is None or right is None or seen is None or not (seen > 0).any():
            continue
        quality = np.sort(np.where(kept > 0, right / np.maximum(kept, 1), 0.0)[seen > 0])
        found.append((row["step"], float(quality[: math.ceil(len(quality) / 5)].mean())))
    return found
