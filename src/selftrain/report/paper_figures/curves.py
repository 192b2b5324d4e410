"""Figures of measures over training, or over the number of labels.

Knows nothing of single classes; see ``bars``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet

from selftrain.report.paper_figures.style import (
    COLOURS,
    DASHES,
    MARKS,
    SOFT,
    Group,
    Groups,
    add_legend,
    describe_data,
    look,
    make_sheet,
    set_title,
)
from selftrain.report.run_data import Array, Curve, RunData

CurveOf = Callable[[RunData], Curve]


def accuracy_over_training(groups: Groups) -> Sheet:
    return _over_training(groups, "accuracy", "accuracy, %")


def quality_over_training(groups: Groups) -> Sheet:
    return _over_training(groups, "pseudo_label_quality", "correct pseudo labels, %")


def pseudo_labels(groups: Groups) -> Sheet:
    """Draw quantity, quality and imbalance of pseudo labels."""
    return _pseudo_label_panels(groups, weakest=False)


def pseudo_labels_and_weakest(groups: Groups) -> Sheet:
    """Draw quantity, quality and imbalance of pseudo labels, and the accuracy of the weakest classes."""
    return _pseudo_label_panels(groups, weakest=True)


def worst_case(groups: Groups) -> Sheet:
    """Draw the error and the loss of the worst-case head h'."""
    sheet, axes = make_sheet(2, 4.0, 2.9)
    dataset, group = next(iter(groups.items()))
    _lines(axes[0], group, _curve("worst_error"))
    set_title(axes[0], "error of h' on pseudo labels, %")
    _lines(axes[1], group, _curve("worst_loss"), scale=1.0)
    set_title(axes[1], "worst-case loss")
    sheet.suptitle(describe_data(dataset, group), fontsize=9, color=SOFT, x=0.01, ha="left")
    add_legend(sheet, axes[0])
    return sheet


def label_amount(groups: Groups) -> Sheet:
    """Draw accuracy over labels per class; the rows of the bench are named "method, N"."""
    sheet, axes = make_sheet(len(groups), 4.8 if len(groups) == 1 else 4.0, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        methods: dict[str, list[tuple[float, float]]] = {}
        for label, runs in group.items():
            method = label.rpartition(", ")[0]
            accuracy = float(np.mean([run.value("accuracy") for run in runs]))
            methods.setdefault(method, []).append((runs[0].labels_per_class or 0, accuracy))
        for i, (method, found) in enumerate(methods.items(), 1):
            k = look(method, i)
            x, y = np.array(sorted(found)).T
            ax.plot(x, 100 * y, label=method, color=COLOURS[k], linestyle=DASHES[k], marker=MARKS[k], linewidth=1.8)
        ax.set_xscale("log")
        ticks = sorted({x for found in methods.values() for x, _ in found})
        ax.set_xticks(ticks, [f"{x:.3g}" for x in ticks])
        ax.minorticks_off()
        ax.set_xlabel("labels per class", fontsize=8.5, color=SOFT)
        ax.set_ylabel("accuracy, %", fontsize=8.5, color=SOFT)
        set_title(ax, dataset)
    add_legend(sheet, axes[0])
    return sheet


def _over_training(groups: Groups, measure: str, label: str) -> Sheet:
    """Draw one panel per dataset: one measure over the steps."""
    sheet, axes = make_sheet(len(groups), 5.6 if len(groups) == 1 else 4.2, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        _lines(ax, group, _curve(measure))
        ax.set_ylabel(label, fontsize=8.5, color=SOFT)
        set_title(ax, describe_data(dataset, group))
    add_legend(sheet, axes[0])
    return sheet


def _pseudo_label_panels(groups: Groups, *, weakest: bool) -> Sheet:
    dataset, group = next(iter(groups.items()))
    sheet, axes = make_sheet(4 if weakest else 3, 3.0, 2.9)
    _lines(axes[0], group, _curve("pseudo_label_quantity"))
    set_title(axes[0], "(a) quantity, %")
    _lines(axes[1], group, _curve("pseudo_label_quality"))
    set_title(axes[1], "(b) quality, %")
    _lines(axes[2], group, _imbalance, scale=1.0)
    axes[2].set_yscale("log")
    for set_formatter in (axes[2].yaxis.set_major_formatter, axes[2].yaxis.set_minor_formatter):
        set_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "125" else "")
    axes[2].tick_params(axis="y", which="minor", labelsize=8, colors=SOFT)
    set_title(axes[2], "(c) imbalance ratio I")
    if any(math.isinf(v) for runs in group.values() for run in runs for _, v in _imbalance(run)):
        axes[2].text(1.0, 1.0, "hollow marks: ∞", transform=axes[2].transAxes, ha="right", va="bottom", fontsize=7.5)
    if weakest:
        _lines(axes[3], group, _curve("worst20_percent"))
        set_title(axes[3], "(d) accuracy, worst fifth, %")
    sheet.suptitle(describe_data(dataset, group), fontsize=9, color=SOFT, x=0.01, ha="left")
    add_legend(sheet, axes[0])
    return sheet


def _curve(name: str) -> CurveOf:
    return lambda run: run.curve(name)


def _imbalance(run: RunData) -> Curve:
    """Return I of the used pseudo labels, or of the predictions in runs that did not count pseudo labels."""
    return run.pseudo_imbalance() or run.curve("imbalance_ratio")


def _lines(ax: Axes, group: Group, of: CurveOf, scale: float = 100.0) -> None:
    for k, (label, runs) in enumerate(group.items()):
        steps, mean, spread = mean_curve(runs, of)
        if not len(steps):
            continue
        finite = np.isfinite(mean)
        k = look(label, k)
        style: dict[str, Any] = {"color": COLOURS[k], "linestyle": DASHES[k], "linewidth": 1.8}
        ax.plot(steps[finite], scale * mean[finite], label=label, marker=MARKS[k], markersize=3.5, **style)
        if len(runs) > 1:
            ax.fill_between(
                steps[finite], scale * (mean - spread)[finite], scale * (mean + spread)[finite],
                color=COLOURS[k], alpha=0.15, linewidth=0,
            )  # fmt: skip
        if (~finite).any():  # infinite values lie on a line of their own at the top
            ax.plot(
                steps[~finite], np.full((~finite).sum(), 0.98), MARKS[k], color=COLOURS[k], markersize=4,
                transform=ax.get_xaxis_transform(), clip_on=False, fillstyle="none",
            )  # fmt: skip
    ax.set_xlabel("step", fontsize=8.5, color=SOFT)


def mean_curve(runs: Sequence[RunData], of: CurveOf) -> tuple[Array, Array, Array]:
    """Return steps, mean and standard deviation over the seeds; one infinite value makes the mean infinite."""
    tables = [dict(of(run)) for run in runs]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    values = np.array([[table[step] for table in tables] for step in steps])
    with np.errstate(invalid="ignore"):
        spread = np.nan_to_num(values.std(axis=1), nan=0.0) if len(values) else np.zeros(0)
    return np.array(steps), values.mean(axis=1) if len(values) else np.zeros(0), spread
