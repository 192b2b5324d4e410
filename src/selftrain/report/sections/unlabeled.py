"""Section: the predictions on the unlabeled images, which need no ground truth.

Knows nothing of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selftrain.methods.prior import NEAR, TRUSTED
from selftrain.report.advice import quoted
from selftrain.report.charts import Table, change_chart, percent
from selftrain.report.run_data import Array, RunData, noun_of
from selftrain.report.section import Section, headed
from selftrain.runs.layout import JunkScreening, PoolPrior
from selftrain.text import listed

HEADS = (
    ("head that learns from pseudo labels (pseudo head)", "pool_pseudo"),
    ("head that is trained to contradict them (worst-case head)", "pool_worst"),
)
NO_TRUTH = "This comparison needs no ground truth."
VANISHING = "A class whose share falls towards zero is vanishing."
OTHER_MIX = (
    "The labels need not have the same mix of classes as the unlabeled {noun}, so a difference alone is no mistake. If "
    "you chose the {noun} to label at random, the two shares should be similar."
)
ESTIMATED = (
    "The mix of classes in the pile of unlabeled {noun} was estimated before self-training; the predictions of the "
    "final model should have a similar one."
)
NAMED = 3
"""classes that are named with their share"""


def unlabeled(runs: Sequence[RunData]) -> Section:
    noun = noun_of(runs)
    section = Section(
        "unlabeled", f"Unlabeled {noun}", f"How often each class is predicted on the unlabeled {noun}", two_columns=True
    )
    shown = []
    for i, run in enumerate(runs):
        labeled, predicted = run.labeled_share, run.predicted_share
        if labeled is not None and predicted is not None:
            _shares(section, runs, i, labeled, predicted)
            shown.append(run)
    if shown:
        known = [run.pool_prior is not None for run in shown]
        parts = [NO_TRUTH, ESTIMATED if any(known) else "", "" if all(known) else OTHER_MIX, VANISHING]
        section.text = " ".join(filter(None, parts)).format(noun=noun)
    elif any(not run.outputs for run in runs):
        section.note(f"Predictions on the unlabeled {noun} were not stored (older versions did not store them).")
    return section


def _shares(section: Section, runs: Sequence[RunData], i: int, labeled: Array, predicted: Array) -> None:
    """Add a figure of the predictions beside the estimated mix of the pile, or beside the labels if there is none."""
    run = runs[i]
    prior = run.pool_prior
    before = labeled if prior is None else np.array(prior["pool"])
    short = "of the labels" if prior is None else "of the pile"
    order = np.argsort(predicted / np.maximum(before, 1e-9), kind="stable").tolist()
    caption = _caption(run, prior)
    chart = change_chart(
        f"{run.name}: share of each class {short} and of the predictions on unlabeled {run.noun}. {caption}",
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
    title = headed(runs, i, "Share of each class")
    section.figure(f"share{i}", title, caption, chart, run=i, legend=legend, table=table)


def _caption(run: RunData, prior: PoolPrior | None) -> str:
    start = "the labels" if prior is None else "the pile"
    parts = [f"One bar per class, from its share of {start} (dark tick) to its share of the predictions."]
    if prior is not None:
        parts += _mix(run, prior)
    if (screening := run.results.get("screening")) is not None:
        parts += _junk(screening, run.noun)
    if gone := run.vanishing_classes():
        parts.append(f"Vanishing: {quoted(gone)}.")
    differ = [f"the {head} on {percent(share)}" for head, part in HEADS
              if (share := _disagreement(run, part)) is not None]  # fmt: skip
    if differ:
        parts.append(
            "The main head, which learns from your labels alone, disagrees with "
            f"{' and with '.join(differ)} of the {run.noun}."
        )
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
            f"{run.noun}. This is normal; the mix of the labels is not taken for the truth."
        )
    if prior["agreement"] < TRUSTED:
        parts.append(
            f"The estimate is unsure, because the two models behind it agree on {percent(prior['agreement'])} of the "
            f"{run.noun} only; it leans towards the mix of the labels."
        )
    if prior["error"] is not None:
        parts.append(
            f"The true classes are known here: the estimate is off for {percent(prior['error'])} of the {run.noun}."
        )
    return parts


def _junk(screening: JunkScreening, noun: str) -> list[str]:
    """Return sentences about images of no class."""
    if screening["share"] <= 0:
        return []
    parts = [
        f"About {100 * screening['share']:.0f}% of the unlabeled {noun} look like none of the classes; they were drawn "
        "less often or not at all. The predictions count them as well."
    ]
    if screening["auroc"] is not None:
        parts.append(
            f"{noun.capitalize()} of no class are known here: the search tells them from the others with an AUROC of "
            f"{screening['auroc']:.2f} (1 is perfect, 0.5 is chance)."
        )
    return parts


def _disagreement(run: RunData, part: str) -> float | None:
    """Return how often another head's prediction differs from the main head's."""
    other, predicted = run.outputs.get(part), run.outputs.get("pool_predicted")
    return None if other is None or predicted is None else float((other != predicted).mean())
