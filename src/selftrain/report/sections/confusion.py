"""Section: confusion matrices, and the most frequent mistakes.

Knows nothing of single images.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import matrix_chart, percent
from selftrain.report.run_data import RunData
from selftrain.report.section import ConfusionMatrix, Section, headed, only

MOST_PAIRS = 8


def confusion(runs: Sequence[RunData]) -> Section:
    section = Section("confusion", "Confusion", "Which classes are confused with each other")
    for i, run in enumerate(runs):
        if run.confusion is not None:
            matrix = _matrix(runs, i, run.confusion)
            section.blocks.append(matrix)
            if only(runs) and matrix.pairs:
                true, predicted, n, _ = matrix.pairs[0]
                times = (
                    f"{n} of {run.support[run.classes.index(true)]} {run.noun}" if run.support else f"{n} {run.noun}"
                )
                section.title = f"The most frequent mistake: “{true}” classified as “{predicted}” ({times})"
    if not section.blocks and any(run.per_class for run in runs):
        section.note("No confusion matrix was stored (older versions did not store one).")
    return section


def _matrix(runs: Sequence[RunData], i: int, cells: Sequence[tuple[int, int, int]]) -> ConfusionMatrix:
    run = runs[i]
    names = run.classes
    mistakes = sorted(((n, t, p) for t, p, n in cells if t != p), reverse=True)
    support = run.support or []
    shown = mistakes[:MOST_PAIRS]
    caption = (
        "Rows are true classes and columns predicted classes, in the same order. Correct predictions are on the "
        "diagonal. The darker a square, the larger its share of the row. Point at a square to read its numbers."
    )
    chart = matrix_chart(f"{run.name}: confusion matrix of {len(names)} classes. {caption}", i, names, cells)
    total = sum(n for n, _, _ in mistakes)
    return ConfusionMatrix(
        f"confusion-matrix{i}",
        headed(runs, i, "Confusion matrix"),
        caption,
        chart,
        i,
        run.noun,
        [(names[t], names[p], n, percent(n / support[t])) for n, t, p in shown],
        total,
        percent(sum(n for n, _, _ in shown) / total) if total else "",
    )
