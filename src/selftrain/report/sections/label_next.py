"""Section: the unlabeled images to label next, and those that look like none of the classes.

Knows nothing of how they are chosen; see ``selftrain.runs.notable``.
"""

from __future__ import annotations

from collections.abc import Sequence

from selftrain.report.examples import LABEL_NEXT, find_examples
from selftrain.report.run_data import RunData
from selftrain.report.section import Gallery, Section, headed
from selftrain.text import plural


def label_next(runs: Sequence[RunData]) -> Section:
    section = Section("label", LABEL_NEXT, LABEL_NEXT)
    for i, run in enumerate(runs):
        found = find_examples(run)
        if found.missing:
            section.note(found.missing if len(runs) == 1 else f"{run.name}: {found.missing}")
        if found.to_label:
            title = headed(runs, i, f"{len(found.to_label)} unlabeled {run.noun} that the model is least sure of")
            section.blocks.append(Gallery(title, _why(run, found.mistakes, len(found.to_label)), i, found.to_label))
        if found.novel:
            several = found.novel_count > len(found.novel)
            shown = f"The {len(found.novel)} with the highest novelty of " if several else ""
            number = plural(found.novel_count, f"{run.noun.removesuffix('s')} that looks", f"{run.noun} that look")
            caption = (
                f"{shown}{number} like none of your classes (novelty above 50%). Training used them rarely or never. "
                "If they do belong to a class, label some of them."
            )
            title = headed(runs, i, f"Unlabeled {run.noun} that look like none of the classes")
            section.blocks.append(Gallery(title, caption, i, found.novel))
    if any(isinstance(block, Gallery) for block in section.blocks):
        section.text = (
            "Labels of these will probably help most. “selftrain label FOLDER” opens a page to label them, and "
            "“selftrain suggest RUN” writes a longer list that is spread over the whole pile."
        )
    return section


def _why(run: RunData, mistakes: int | None, n: int) -> str:
    text = "At most three of each pair of classes are shown, so that no pair fills the list."
    if "pool_pseudo" in run.outputs:
        text = (
            "First come disputed predictions: the part of the model that learns from your labels alone and the part "
            "that learns from the model's own predictions disagree. Then come those with the lowest confidence. "
        ) + text
    if mistakes is not None:
        text += f" The true classes are known here: {mistakes} of these {n} predictions are mistakes."
    return text
