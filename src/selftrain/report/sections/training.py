"""Section: accuracy, imbalance and losses over training.

Knows nothing of pseudo labels; see ``pseudo_labels``.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import Axis, Series, number, ratio
from selftrain.report.run_data import RunData, noun_of
from selftrain.report.section import Section, only

FALL = 0.02
"""an accuracy that ends this far below its best is worth a title"""
TERMS = {
    "labeled": "How badly the model fits your labels. It should fall.",
    "unlabeled": "How badly the model fits its pseudo labels. It often rises while more and harder ones are used.",
    "worst": "How much the worst-case head contradicts the pseudo labels. That head raises it on purpose and the "
    "features lower it, so it need not fall; a steady value is normal.",
}
"""what terms of the loss mean, by their names"""


def training(runs: Sequence[RunData]) -> Section:
    section = Section("training", "Training", "How training went")
    if not any(run.rows for run in runs):
        section.note("The run folder has no metrics.jsonl, so training curves cannot be shown.")
        return section
    section.curves(runs, "accuracy", "Accuracy", f"Share of {noun_of(runs)} classified correctly.")
    fallen = [run.name for run in runs if _ended_below_best(run)]
    if fallen:
        who = "Training" if only(runs) else " and ".join(fallen)
        section.title = f"{who} ended below the best accuracy reached on the way"
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
    section.curves(
        runs,
        "ece",
        "Calibration error",
        "Mean distance between confidence and accuracy, before the final model is calibrated.",
        Axis(low=0.0),
    )
    if not any(run.curve("accuracy") for run in runs):
        section.note("Accuracy over training is not known, because there was no labeled set to evaluate on.")
    for name in dict.fromkeys(name for run in runs for name in run.last if name.startswith("loss_")):
        _loss_term(section, runs, name)
    return section


def _ended_below_best(run: RunData) -> bool:
    values = [value for _, value in run.curve("accuracy")]
    return len(values) > 2 and max(values) - values[-1] > FALL


def _loss_term(section: Section, runs: Sequence[RunData], name: str) -> None:
    """Add a figure of one term of the loss. Their sum says nothing where one term is maximised on purpose."""
    term = name.removeprefix("loss_")
    series = [Series(i, run.name, run.curve(name)) for i, run in enumerate(runs)]
    series = [line for line in series if any(value != 0 for _, value in line.points)]
    caption = TERMS.get(term, "One of the terms whose sum is minimised.")
    section.series(name, f"Loss term “{term.replace('_', ' ')}”", caption, series, Axis(form=number))
