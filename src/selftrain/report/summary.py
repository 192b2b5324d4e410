"""The top of the page: title, standfirst and the table of all results; the main one is in ``verdict``.

Knows nothing of sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from selftrain.report.charts import percent, ratio
from selftrain.report.charts.formats import Format, short_duration
from selftrain.report.reference import accuracy_of_labels_only
from selftrain.report.run_data import RunData, noun_of
from selftrain.report.section import only
from selftrain.report.verdict import how_good
from selftrain.text import plural


class SummaryRow(NamedTuple):
    measure: str
    meaning: str
    cells: list[str]
    """one per run; a dash where the value is not known"""


def title(runs: Sequence[RunData]) -> str:
    if run := only(runs):
        return run.dataset
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    if len(runs) == 2 and len(datasets) == 1:
        return f"{runs[0].name} and {runs[1].name} on {datasets[0]}"
    return f"{len(runs)} runs on {', '.join(datasets[:3])}" + (" …" if len(datasets) > 3 else "")


def standfirst(runs: Sequence[RunData]) -> str:
    """Return one or two sentences: the data, and for several runs the main result."""
    data = _data(runs[0])
    if run := only(runs):
        return f"{data}, learned with {run.name}."
    if len({run.split_hash for run in runs}) > 1:
        return f"{len(runs)} runs. Not all of them use the same labeled {noun_of(runs)}: compare them with care."
    scored = [run for run in runs if run.value("accuracy") is not None]
    if not scored:
        return f"{data}. There is no test set, so this page shows only what can be known without one."
    best = max(scored, key=lambda run: run.value("accuracy"))
    fair = max(scored, key=lambda run: run.value("worst20_percent") or 0)
    finding = f"{best.name} is the most accurate, at {percent(best.value('accuracy'))}"
    if fair is best:
        return f"{data}. {finding}, and also has the highest accuracy on the weakest fifth of the classes."
    return f"{data}. {finding}; {fair.name} has the highest accuracy on the weakest fifth of the classes."


def _data(run: RunData) -> str:
    text = plural(len(run.classes), "class", "classes")
    counts = run.split.get("counts") or {}
    if counts.get("labeled"):
        text += f", {counts['labeled']:,} labeled and {counts.get('unlabeled', 0):,} unlabeled {run.noun}"
    return text


def summary(runs: Sequence[RunData]) -> list[SummaryRow]:
    """Return the results of all runs, without measures that no run has."""

    def row(measure: str, meaning: str, name: str, form: Format) -> SummaryRow:
        values = [run.value(name) for run in runs]
        return SummaryRow(measure, meaning, ["–" if value is None else form(float(value)) for value in values])

    crossed = [_cross_validated(run) for run in runs]
    alone = [accuracy_of_labels_only(run, runs) for run in runs]
    vanishing = [str(len(run.vanishing_classes())) for run in runs]
    noun = noun_of(runs)
    rows = [
        row("Accuracy", f"{noun} classified correctly", "accuracy", percent),
        SummaryRow("90% interval", f"of the accuracy on {noun} like these", [_measured(run) for run in runs]),
        SummaryRow(
            "Estimated accuracy", "without a test set, with its 90% interval", [_estimated(run) for run in runs]
        ),
        SummaryRow(
            "Labels alone", f"accuracy without unlabeled {noun}", ["–" if v is None else percent(v) for v in alone]
        ),
        row("Mean over classes", "every class counts the same", "mean_per_class", percent),
        row("Weakest fifth of classes", "mean accuracy of the weakest classes", "worst20_percent", percent),
        row("Calibration error", "gap between confidence and accuracy", "ece", percent),
        SummaryRow("Cross-validated accuracy", "on the labels, each part held out in turn", crossed),
        SummaryRow("Vanishing classes", "rarely or never predicted", vanishing),
        row("Imbalance ratio", "most against least predicted class", "imbalance_ratio", ratio),
        row("Pseudo labels used", f"share of unlabeled {noun}, at the end", "pseudo_label_quantity", percent),
        row("Pseudo labels correct", "share of the used ones", "pseudo_label_quality", percent),
        row("Training time", "", "seconds", short_duration),
    ]
    return [row for row in rows if any(cell != "–" for cell in row.cells)]


def _measured(run: RunData) -> str:
    found = how_good(run)
    return f"{found.low} to {found.high}" if run.value("accuracy") is not None and found.low else "–"


def _estimated(run: RunData) -> str:
    found = run.results.get("estimated")
    if found is None:
        return "–"
    return f"{percent(found['accuracy'])} ({percent(found['low'])} to {percent(found['high'])})"


def _cross_validated(run: RunData) -> str:
    """Return the estimate of cross-validation, which older runs stored as a plain number."""
    found: Any = run.results.get("cross_validated")
    value = found.get("accuracy") if isinstance(found, Mapping) else found
    return percent(float(value)) if isinstance(value, (int, float)) else "–"
