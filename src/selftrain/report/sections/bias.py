"""Section: the error of each class, split into data bias and training bias.

Knows nothing of how the reference runs are trained; see ``selftrain.runs.bias``.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import Table, points, stacked_chart
from selftrain.report.reference import baseline_of, training_bias
from selftrain.report.run_data import PerClass, RunData
from selftrain.report.section import Section, headed


def bias(runs: Sequence[RunData]) -> Section:
    section = Section("bias", "Bias", "Where the errors come from", two_columns=True)
    for i, run in enumerate(runs):
        training, baseline = training_bias(run, runs), baseline_of(run, runs)
        if training is not None and baseline is not None and not run.labels_only:
            _parts(section, runs, i, [None if v is None else 1 - v for v in baseline.per_class], training)
    if section.blocks:
        data_bias = "Data bias is the error that comes from having few labels instead of all of them. "
        section.text = (data_bias if any(_data_bias(run)[0] for run in runs) else "") + (
            "Training bias is the error that pseudo labels add or remove. Bars show error, so lower is better."
        )
    elif any(run.per_class for run in runs) and not all(run.labels_only or run.fell_back for run in runs):
        section.note(
            "Errors caused by few labels cannot be separated from errors caused by self-training without a reference. "
            "Run “selftrain report --reference” to train one on the same labels."
        )
    return section


def _parts(section: Section, runs: Sequence[RunData], i: int, errors: PerClass, training: PerClass) -> None:
    """Add a figure of one run: ``errors`` with labels only, and the training bias of each class."""
    run = runs[i]
    base, data = _data_bias(run)
    order = sorted(range(len(errors)), key=lambda k: (errors[k] is None, -(errors[k] or 0), k))
    known = [t for t in training if t is not None]
    added, removed = sum(t for t in known if t > 0), -sum(t for t in known if t < 0)
    K = max(1, len(known))
    caption = (
        f"Averaged over the classes, training with pseudo labels removed {100 * removed / K:.1f} points of error and "
        f"added {100 * added / K:.1f}."
    )
    if base is None:
        caption += " Data bias is not shown, because there is no run with all labels to compare with."
    first = data if data is not None else errors
    chart = stacked_chart(
        f"{run.name}: error of each class, split into data bias and training bias. {caption}",
        i,
        [run.classes[k] for k in order],
        None if base is None else [base[k] for k in order],
        [first[k] for k in order],
        [training[k] for k in order],
        ends=("hard with labels only", "easy"),
    )
    rows = [[run.classes[k], *("–" if v is None else points(v) for v in (first[k], training[k]))] for k in order]
    columns = ["class", "data bias" if base is not None else "error, labels only", "training bias"]
    legend = "bias" if base is not None else "bias-without-data"
    section.figure(
        f"parts{i}",
        headed(runs, i, "Error of each class"),
        caption,
        chart,
        run=i,
        legend=legend,
        table=Table(columns, rows),
    )


def _data_bias(run: RunData) -> tuple[PerClass, PerClass] | tuple[None, None]:
    """Return the error with all labels and the data bias of each class, where all labels are known."""
    reference = run.reference or {}
    data, labeled = reference.get("data_bias"), reference.get("all_labels")
    whole = labeled.get("per_class") if labeled else None
    if data is None or whole is None or not len(data) == len(whole) == len(run.classes):
        return None, None
    return [None if v is None else 1 - v for v in whole], data
