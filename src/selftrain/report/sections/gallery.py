"""Section: images to look at, with their predictions.

Knows nothing of how they are chosen; see ``selftrain.report.examples``.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.charts import percent
from selftrain.report.examples import find_examples
from selftrain.report.run_data import RunData
from selftrain.report.section import Gallery, Section
from selftrain.text import plural


def examples(runs: Sequence[RunData]) -> Section:
    section = Section("examples", "Examples", "Images to look at")
    for i, run in enumerate(runs):
        found = find_examples(run)
        if found.missing:
            section.note(f"{run.name}: {found.missing}")
        if found.confident:
            caption = "The mistakes with the highest confidence. Wrong labels show up here as well."
            section.blocks.append(Gallery(f"{run.name}: confident mistakes", caption, i, found.confident))
        if found.likely:
            caption = "Good candidates to label next: " + (
                "first images on which the heads disagree, then those with the lowest confidence."
                if "pool_pseudo" in run.outputs
                else "the images with the lowest confidence."
            )
            if found.likely_right is not None:
                caption += f" The true classes are known here: {percent(found.likely_right)} of these are mistakes."
            title = f"{run.name}: likely mistakes among the unlabeled images"
            section.blocks.append(Gallery(title, caption, i, found.likely))
        if found.novel:
            number = plural(found.novel_count, "image has", "images have")
            caption = (
                f"The unlabeled images with the highest novelty; {number} a novelty above 50%. Training uses such "
                "images rarely or never. If they do belong to a class, label some of them."
            )
            title = f"{run.name}: images that look like none of the classes"
            section.blocks.append(Gallery(title, caption, i, found.novel))
    if not section.blocks and any(not run.outputs for run in runs):
        section.note("Predictions per image were not stored (older versions did not store them).")
    return section
