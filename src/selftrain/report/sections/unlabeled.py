"""Section: the predictions on the unlabeled images, which need no ground truth.

Knows nothing of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selftrain.methods.prior import NEAR, TRUSTED
from selftrain.report.advice import quoted
from selftrain.report.charts import Table, change_chart, percent
from selftrain.report.run_data import Array, RunData
from selftrain.report.section import Section
from selftrain.runs.layout import JunkScreening, PoolPrior
from selftrain.text import listed

HEADS = (("pseudo head", "pool_pseudo"), ("worst-case head", "pool_worst"))
NO_TRUTH = "This comparison needs no ground truth."
VANISHING = "A class whose share falls towards zero is vanishing."
OTHER_MIX = (
    "The labels need not have the same mix of classes as the unlabeled images, so a difference alone is no mistake. If "
    "you chose the images to label at random, the two shares should be similar."
)
ESTIMATED = (
    "The mix of classes in the pile of unlabeled images was estimated before self-training; the predictions of the "
    "final model should have a similar one."
)
NAMED = 3
"""classes that are named with their share"""


def unlabeled(runs: Sequence[RunData]) -> Section:
    section = Section(
        "unlabeled", "Unlabeled images", "How often each class is predicted on the unlabeled images", two_columns=True
    )
    shown = []
    for i, run in enumerate(runs):
        labeled, predicted = run.labeled_share, run.predicted_share
        if labeled is not None and predicted is not None:
            _shares(section, i, run, labeled, predicted)
            shown.append(run)
    if shown:
        known = [run.pool_prior is not None for run in shown]
        parts = [NO_TRUTH, ESTIMATED if any(known) else "", "" if all(known) else OTHER_MIX, VANISHING]
        section.text = " ".join(filter(None, parts))
    elif any(not run.outputs for run in runs):
        section.note("Predictions on the unlabeled images were not stored (older versions did not store them).")
    return section


def _shares(section: Section, i: int, run: RunData, labeled: Array, predicted: Array) -> None:
    """Add a figure of the predictions beside the estimated mix of the pile, or beside the labels if there is none."""
    prior = run.pool_prior
    before = labeled if prior is None else np.array(prior["pool"])
    short = "of the labels" if prior is None else "of the pile"
    order = np.argsort(predicted / np.maximum(before, 1e-9), kind="stable").tolist()
    caption = _caption(run, prior)
    chart = change_chart(
        f"{run.name}: share of each class among the {'labels' if prior is None else 'unlabeled images'} and among the "
        f"predictions on unlabeled images. {caption}",
        i,
        [run.classes[k] for k in order],
        before[order].tolist(),
        predicted[order].tolist(),
        words=(short, "of the predictions"),
        high=None,
        ends=("predicted less often", "more often"),
    )
    columns = [("of the labels", labeled), ("of the predictions", predicted)]
    if prior is not None:
        columns.insert(1, ("of the pile, estimated" if prior["source"] == "auto" else "of the pile, as given", before))
    rows = [[run.classes[k], *(percent(float(values[k])) for _, values in columns)] for k in order]
    table = Table(["class", *(name for name, _ in columns)], rows)
    legend = "shares" if prior is None else "pool-shares"
    section.figure(f"share{i}", run.name, caption, chart, run=i, legend=legend, table=table)


def _caption(run: RunData, prior: PoolPrior | None) -> str:
    start = "the labels" if prior is None else "the pile"
    parts = [f"One bar per class, from its share of {start} (dark tick) to its share of the predictions."]
    if prior is not None:
        parts += _mix(run, prior)
    if (screening := run.results.get("screening")) is not None:
        parts += _junk(screening)
    if gone := run.vanishing_classes():
        parts.append(f"Vanishing: {quoted(gone)}.")
    differ = [f"the {head} on {percent(share)}" for head, part in HEADS
              if (share := _disagreement(run, part)) is not None]  # fmt: skip
    if differ:
        parts.append(f"The main head disagrees with {' and with '.join(differ)} of the images.")
    return " ".join(parts)


def _mix(run: RunData, prior: PoolPrior) -> list[str]:
    """Return sentences about the mix of classes in the pile."""
    largest = np.argsort(-np.array(prior["pool"]), kind="stable")[:NAMED].tolist()
    named = listed([f"{100 * prior['pool'][k]:.0f}% “{run.classes[k]}”" for k in largest])
    if prior["source"] != "auto":
        return [f"According to data.prior={prior['source']}, your pile holds {named}."]
    parts = [f"Your pile seems to hold {named}."]
    if prior["distance"] >= NEAR:
        parts.append(
            f"Its mix of classes differs from that of your labels, for about {100 * prior['distance']:.0f} of 100 "
            "images. This is normal; the mix of the labels is not taken for the truth."
        )
    if prior["agreement"] < TRUSTED:
        parts.append(
            f"The estimate is unsure, because the two models behind it agree on {percent(prior['agreement'])} of the "
            "images only; it leans towards the mix of the labels."
        )
    if prior["error"] is not None:
        parts.append(
            f"The true classes are known here: the estimate is off for {percent(prior['error'])} of the images."
        )
    return parts


def _junk(screening: JunkScreening) -> list[str]:
    """Return sentences about images of no class."""
    if screening["share"] <= 0:
        return []
    parts = [
        f"About {100 * screening['share']:.0f}% of the unlabeled images look like none of the classes; they were drawn "
        "less often or not at all. The predictions count them as well."
    ]
    if screening["auroc"] is not None:
        parts.append(
            "Images of no class are known here: the search tells them from the others with an AUROC of "
            f"{screening['auroc']:.2f} (1 is perfect, 0.5 is chance)."
        )
    return parts


def _disagreement(run: RunData, part: str) -> float | None:
    """Return how often another head's prediction differs from the main head's."""
    other, predicted = run.outputs.get(part), run.outputs.get("pool_predicted")
    return None if other is None or predicted is None else float((other != predicted).mean())
