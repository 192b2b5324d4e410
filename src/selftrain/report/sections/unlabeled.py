"""Section: the predictions on the unlabeled images, which need no ground truth.

Knows nothing of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selftrain.report.advice import quoted
from selftrain.report.charts import Table, change_chart, percent
from selftrain.report.run_data import Array, RunData
from selftrain.report.section import Section

HEADS = (("pseudo head", "pool_pseudo"), ("worst-case head", "pool_worst"))


def unlabeled(runs: Sequence[RunData]) -> Section:
    section = Section(
        "unlabeled", "Unlabeled images", "How often each class is predicted on the unlabeled images", two_columns=True
    )
    for i, run in enumerate(runs):
        labeled, predicted = run.labeled_share, run.predicted_share
        if labeled is not None and predicted is not None:
            _shares(section, i, run, labeled, predicted)
    if section.blocks:
        section.text = (
            "This comparison needs no ground truth. If classes are about as frequent among the labeled images as among "
            "the unlabeled ones, the two shares should be similar. A class whose share falls towards zero is vanishing."
        )
    elif any(not run.outputs for run in runs):
        section.note("Predictions on the unlabeled images were not stored (older versions did not store them).")
    return section


def _shares(section: Section, i: int, run: RunData, labeled: Array, predicted: Array) -> None:
    order = np.argsort(predicted / np.maximum(labeled, 1e-9), kind="stable").tolist()
    caption = "One bar per class, from its share of the labels (dark tick) to its share of the predictions."
    if gone := run.vanishing_classes():
        caption += f" Vanishing: {quoted(gone)}."
    differ = [f"the {head} on {percent(share)}" for head, part in HEADS
              if (share := _disagreement(run, part)) is not None]  # fmt: skip
    if differ:
        caption += f" The main head disagrees with {' and with '.join(differ)} of the images."
    chart = change_chart(
        f"{run.name}: share of each class among the labels and among the predictions on unlabeled images. {caption}",
        i,
        [run.classes[k] for k in order],
        labeled[order].tolist(),
        predicted[order].tolist(),
        words=("of the labels", "of the predictions"),
        high=None,
        ends=("predicted less often", "more often"),
    )
    rows = [(run.classes[k], percent(float(labeled[k])), percent(float(predicted[k]))) for k in order]
    table = Table(["class", "of the labels", "of the predictions"], rows)
    section.figure(f"share{i}", run.name, caption, chart, run=i, legend="shares", table=table)


def _disagreement(run: RunData, part: str) -> float | None:
    """Return how often another head's prediction differs from the main head's."""
    other, predicted = run.outputs.get(part), run.outputs.get("pool_predicted")
    return None if other is None or predicted is None else float((other != predicted).mean())
