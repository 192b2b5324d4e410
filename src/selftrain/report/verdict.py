"""How good a run is, with an interval, and whether self-training helped: the first things on the page.

Knows nothing of pages or charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from selftrain.report.chance import margin
from selftrain.report.charts import percent
from selftrain.report.reference import accuracy_of_labels_only
from selftrain.report.run_data import RunData
from selftrain.runs.model_readme import interval

Tone = Literal["up", "down", "same", ""]


class HowGood(NamedTuple):
    """The accuracy of a run in a few words."""

    number: str
    """the accuracy; a dash if it is not known"""
    low: str
    high: str
    """90% interval; empty if it is not known"""
    text: str
    """what the number means and how sure it is"""


class Helped(NamedTuple):
    """Whether self-training helped."""

    tone: Tone
    title: str
    text: str


def how_good(run: RunData) -> HowGood:
    accuracy, n = run.value("accuracy"), sum(run.support or ())
    if accuracy is not None:
        if not n:
            return HowGood(percent(accuracy), "", "", f"of the {run.evaluated} are classified correctly.")
        low, high = map(percent, interval(accuracy * n, n))
        return HowGood(
            percent(accuracy), low, high,
            f"of the {n:,} {run.evaluated} are classified correctly. On further {run.noun} like these, expect between "
            f"{low} and {high} (90% interval).",
        )  # fmt: skip
    found = run.results.get("estimated")
    if found is not None:
        low, high = percent(found["low"]), percent(found["high"])
        return HowGood(
            f"about {percent(found['accuracy'])}", low, high,
            f"of {run.noun} like your unlabeled ones are classified correctly, with 90% certainty between {low} and "
            f"{high}. There is no test set, so this is estimated from your {found['labels']:,} labels.",
        )  # fmt: skip
    return HowGood(
        "–", "", "", "The accuracy is not known: there is no test set, and this run has no estimate from its labels."
    )


def helped(run: RunData, others: Sequence[RunData]) -> Helped:
    """Return whether self-training helped: a measurement where there is a test set, and the guard's view otherwise."""
    if run.labels_only:
        return Helped("", "No self-training", "This run learned from the labels alone.")
    alone, ours, n = accuracy_of_labels_only(run, others), run.value("accuracy"), sum(run.support or ())
    if run.guard is not None and run.fell_back:
        text = "The final model is the one that was trained on the labels alone: the self-trained model is doubtful, "
        return Helped("down", "Self-training was not trusted", f"{text}because {run.guard['reason']}.")
    if ours is None:
        if run.guard is not None:
            text = "Without a test set this cannot be measured, but nothing speaks against the self-trained model: "
            told = f"it differs from the labels alone on {percent(run.guard['disagreement'])} of the {run.noun} on "
            return Helped("same", "Self-training is plausible", f"{text}{told}which those are surest.")
        return Helped("", "It is not known whether self-training helped", "That takes a test set or held-out labels.")
    if alone is None:
        return Helped(
            "", "It is not known whether self-training helped",
            "There is no result of the labels alone to compare with. Run “selftrain report --reference” to train one.",
        )  # fmt: skip
    return _measured(ours, alone, n, run.evaluated)


def _measured(ours: float, alone: float, n: int, evaluated: str) -> Helped:
    gain = ours - alone
    text = f"The labels alone reach {percent(alone)}, self-training {percent(ours)}"
    limit = margin(ours, alone, n) if n else 0.0
    if abs(gain) <= limit or not gain:
        chance = f"; with {n:,} {evaluated}, differences of up to {100 * limit:.1f} points can be chance" if n else ""
        return Helped("same", "Self-training made no clear difference", f"{text}{chance}.")
    more = f", {abs(round(gain * n)):,} {'more' if gain > 0 else 'fewer'} of the {n:,} {evaluated}" if n else ""
    chance = f" That is more than chance explains ({100 * limit:.1f} points)." if n else ""
    if gain > 0:
        return Helped("up", f"Self-training helped: {100 * gain:+.1f} points", f"{text}{more}.{chance}")
    return Helped("down", f"Self-training harmed: −{100 * -gain:.1f} points", f"{text}{more}.{chance}")
