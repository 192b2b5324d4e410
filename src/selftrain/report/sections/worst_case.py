"""Section: the worst-case head of DST over training.

Knows nothing of its equations.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import Axis, number
from selftrain.report.run_data import RunData
from selftrain.report.section import Section


def worst_case(runs: Sequence[RunData]) -> Section:
    section = Section("worst", "Worst case", "How much harm the worst-case head can still do")
    section.curves(
        runs, "worst_error", "Worst-case error", "How often the worst-case head contradicts the pseudo labels."
    )
    section.curves(
        runs, "worst_loss", "Worst-case loss", "The loss that the features are trained to reduce.", Axis(form=number)
    )
    section.curves(
        runs,
        "head_agreement",
        "Agreement of the heads",
        "Share of the pseudo labels, which the main head makes, that the pseudo head predicts as well.",
    )
    if section.blocks:
        section.text = (
            "DST adds two parts to the network that only training uses. The pseudo head learns from the pseudo labels, "
            "so that the main head does not learn from its own mistakes. The worst-case head fits the labels and "
            "otherwise contradicts the pseudo labels as much as it can; the features learn to leave it no room. The "
            "worst-case error normally rises first and falls later."
        )
    elif any(run.info.is_wrapper and not run.info.can_be_base for run in runs):
        section.note(
            "There is no worst-case error: the method has no worst-case head, or the run is from an older version."
        )
    return section
