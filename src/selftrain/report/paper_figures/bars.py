"""Figures of the accuracy or error of each class.

Knows nothing of training curves; see ``curves``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure as Sheet

from selftrain.report.paper_figures.style import (
    COLOURS,
    DASHES,
    INK,
    MARKS,
    SOFT,
    Groups,
    add_legend,
    describe_data,
    look,
    make_sheet,
    set_title,
)
from selftrain.report.run_data import Array, RunData

FEW = 7
"""classes that are shown of a dataset with many; the paper picks some at random as well"""


def accuracy_bars(groups: Groups) -> Sheet:
    """Draw the accuracy of some classes, one bar per row of the bench."""
    sheet, axes = make_sheet(len(groups), 7.4 if len(groups) == 1 else 5.4, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        run = next(iter(group.values()))[0]
        chosen = _some_classes(run)
        width = 0.82 / len(group)
        for k, (label, runs) in enumerate(group.items()):
            places = [i + (k - (len(group) - 1) / 2) * width for i in range(len(chosen))]
            colour = COLOURS[look(label, k)]
            ax.bar(places, 100 * _mean_accuracy(runs)[chosen], width * 0.92, label=label, color=colour)
        names = [run.classes[c] for c in chosen]
        turned = max(map(len, names)) > 7
        ax.set_xticks(range(len(chosen)), names, rotation=30 if turned else 0, ha="right" if turned else "center")
        ax.set_ylim(0, 100)
        ax.set_ylabel("accuracy, %", fontsize=8.5, color=SOFT)
        set_title(ax, describe_data(dataset, group))
    add_legend(sheet, axes[0], 5)
    return sheet


def error_by_class(groups: Groups) -> Sheet:
    """Draw the error of every class, in the order of the first row: what self-training does to easy and hard ones."""
    sheet, axes = make_sheet(len(groups), 6.8 if len(groups) == 1 else 5.0, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        order = np.argsort(1 - _mean_accuracy(next(iter(group.values()))), kind="stable")
        for i, (label, runs) in enumerate(group.items()):
            k = look(label, i)
            ax.plot(
                np.arange(1, len(order) + 1), 100 * (1 - _mean_accuracy(runs)[order]), label=label, color=COLOURS[k],
                linestyle=DASHES[k], marker=MARKS[k], markersize=4, linewidth=1.8, clip_on=False,
            )  # fmt: skip
        first = next(iter(group))
        ax.set_xlabel(f"classes, from the best to the worst with “{first}”", fontsize=8.5, color=SOFT)
        ax.set_ylabel("error, %", fontsize=8.5, color=SOFT)
        ax.set_ylim(0, 100)
        set_title(ax, describe_data(dataset, group))
    add_legend(sheet, axes[0])
    return sheet


def sorted_accuracy(groups: Groups) -> Sheet:
    """Draw one panel per row: the accuracy of every class, sorted within the panel."""
    group = next(iter(groups.values()))
    sheet, axes = make_sheet(len(group), 3.1, 2.7)
    for k, (ax, (label, runs)) in enumerate(zip(axes, group.items(), strict=True)):
        values = 100 * np.sort(_mean_accuracy(runs))
        ax.bar(np.arange(1, len(values) + 1), values, 0.9, color=COLOURS[look(label, k + 1)])
        ax.axhline(values.mean(), color=INK, linewidth=1, linestyle=(0, (3, 2)))
        ax.text(1, values.mean() + 2, f"mean {values.mean():.1f}", fontsize=8, color=INK)
        ax.set_ylim(0, 104)
        ax.set_xlabel("classes, sorted", fontsize=8.5, color=SOFT)
        set_title(ax, label)
    axes[0].set_ylabel(f"accuracy, %  ({next(iter(groups))})", fontsize=8.5, color=SOFT)
    return sheet


def _some_classes(run: RunData) -> list[int]:
    """Return all classes of a small set, or a few random ones, always the same."""
    K = len(run.classes)
    if K <= 10:
        return list(range(K))
    return sorted(np.random.default_rng(0).choice(K, FEW, replace=False).tolist())


def _mean_accuracy(runs: Sequence[RunData]) -> Array:
    """Return the accuracy of each class, averaged over the seeds."""
    values = [[math.nan if v is None else float(v) for v in run.per_class or ()] for run in runs]
    mean: Array = np.nanmean(np.array(values), axis=0)
    return mean
