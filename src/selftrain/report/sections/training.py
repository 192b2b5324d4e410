"""Section: accuracy, imbalance and losses over training.

Knows nothing of pseudo labels; see ``pseudo_labels``.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import Axis, Series, number, ratio
from selftrain.report.run_data import RunData
from selftrain.report.section import Figure, Section, training_chart

FALL = 0.02
"""an accuracy that ends this far below its best is worth a title"""
LOSS = Axis(form=number, low=0)


def training(runs: Sequence[RunData]) -> Section:
    section = Section("training", "Training", "How training went")
    if not any(run.rows for run in runs):
        section.note("The run folder has no metrics.jsonl, so training curves cannot be shown.")
        return section
    section.curves(runs, "accuracy", "Accuracy", "Share of images classified correctly.")
    fallen = [run.name for run in runs if _ended_below_best(run)]
    if fallen:
        section.title = f"{' and '.join(fallen)} ended below the best accuracy reached during training"
    section.curves(
        runs,
        "worst20_percent",
        "Weakest fifth of the classes",
        "Mean accuracy of the classes with the lowest accuracy.",
    )
    section.curves(
        runs,
        "imbalance_ratio",
        "Imbalance ratio of the predictions",
        "How often the most predicted class is predicted per prediction of the least predicted one. 1 is balanced; ∞ "
        "means that a class is never predicted. Logarithmic scale.",
        Axis(form=ratio, log=True),
    )
    if not any(run.curve("accuracy") for run in runs):
        section.note("Accuracy over training is not known, because there was no labeled set to evaluate on.")
    section.curves(runs, "loss", "Loss", "Sum of all loss terms, averaged since the previous evaluation.", LOSS)
    section.details, section.details_title = _loss_terms(section.id, runs), "Terms of the loss"
    return section


def _ended_below_best(run: RunData) -> bool:
    values = [value for _, value in run.curve("accuracy")]
    return len(values) > 2 and max(values) - values[-1] > FALL


def _loss_terms(section: str, runs: Sequence[RunData]) -> list[Figure]:
    figures = []
    for name in dict.fromkeys(name for run in runs for name in run.last if name.startswith("loss_")):
        term = name.removeprefix("loss_").replace("_", " ")
        series = [Series(i, run.name, run.curve(name)) for i, run in enumerate(runs)]
        series = [line for line in series if any(value != 0 for _, value in line.points)]
        if series:
            chart = training_chart(f"Loss: {term}", series, Axis(form=number))
            caption = f"The term “{term}” alone."
            figures.append(Figure(f"{section}-{name}", f"Loss: {term}", caption, chart, table=chart.table))
    return figures
