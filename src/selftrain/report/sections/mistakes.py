"""Section: mistakes on the evaluated images, the most confident first.

Knows nothing of how they are chosen; see ``selftrain.runs.notable``.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.examples import find_mistakes
from selftrain.report.run_data import RunData, noun_of
from selftrain.report.section import Gallery, Section, headed


def mistakes(runs: Sequence[RunData]) -> Section:
    section = Section("mistakes", "Mistakes", "Where the model is sure and wrong")
    for i, run in enumerate(runs):
        found, missing = find_mistakes(run)
        if missing and not run.has_pool_predictions:
            section.note(missing)
        if found:
            caption = f"The {len(found)} mistakes with the highest confidence, among the {run.evaluated}. Wrong labels "
            section.blocks.append(
                Gallery(headed(runs, i, "Confident mistakes"), f"{caption}show up here as well.", i, found)
            )
    if not section.blocks and any(not run.outputs for run in runs):
        section.note(
            f"Predictions per {noun_of(runs).removesuffix('s')} were not stored (older versions did not store them)."
        )
    return section
