"""The measures of an evaluation as tables on the terminal.

Knows nothing of how they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from selftrain.console import LastingConsole
from selftrain.text import printable


def print_measures(measures: Mapping[str, Any], where: str | None) -> None:
    """Print accuracy and its companions, then the accuracy of each class, lowest first."""
    console = LastingConsole()
    if measures["accuracy"] is None:
        console.print(in_words(measures.get("estimated")))
        return
    console.print(_summary(measures, f"on {escape(printable(str(where)))}"))
    if measures.get("classes"):
        console.print(_per_class(measures))


def in_words(estimated: Mapping[str, Any] | None) -> str:
    """Return the accuracy as it is estimated without a test set, in a sentence or two."""
    if estimated is None:
        return "Not evaluated: there is no test set (pass one with --test DIR) and no held-out labels."
    accuracy, low, high = (f"{100 * estimated[name]:.0f}%" for name in ("accuracy", "low", "high"))
    return (
        f"Estimated accuracy: {accuracy}, with 90% certainty between {low} and {high} (from {estimated['labels']} "
        "labels, each left out in turn). For a measured one, pass a test set with --test DIR."
    )


def _summary(measures: Mapping[str, Any], title: str) -> Table:
    table = Table(title=title, show_header=False)
    ratio = float(measures["imbalance_ratio"])
    table.add_row("accuracy", f"{100 * measures['accuracy']:.2f}")
    table.add_row("mean per class", f"{100 * measures['mean_per_class']:.2f}")
    table.add_row("worst fifth of the classes", f"{100 * measures['worst20_percent']:.2f}")
    infinite = ratio == float("inf")
    table.add_row(
        "imbalance ratio of predictions", "infinite: a class is never predicted" if infinite else f"{ratio:.2f}"
    )
    if measures.get("calibration"):
        bins = [(count, confidence) for count, confidence, _ in measures["calibration"] if count]
        confidence = sum(count * mean for count, mean in bins) / sum(count for count, _ in bins)
        table.add_row("mean confidence", f"{100 * confidence:.2f}")
        table.add_row("calibration error of confidences", f"{100 * measures['ece']:.2f}")
    return table


def _per_class(measures: Mapping[str, Any]) -> Table:
    table = Table("class", "accuracy")
    pairs = zip(measures["classes"], measures["per_class"], strict=True)
    for name, value in sorted(pairs, key=lambda pair: (pair[1] is None, pair[1] or 0)):
        table.add_row(escape(printable(name)), "-" if value is None else f"{100 * value:.1f}")
    return table
