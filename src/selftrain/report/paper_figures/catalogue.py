"""The figures of the paper, by name, in the order of the paper.

Knows nothing of training: the runs of a figure are those of the bench ``figure/<name>``. To add a figure, add it to
``FIGURES``, and its bench to ``selftrain.bench.catalogue``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure as Sheet

from selftrain.errors import UserError, nearest
from selftrain.report.paper_figures.bars import accuracy_bars, error_by_class, sorted_accuracy
from selftrain.report.paper_figures.curves import (
    accuracy_over_training,
    label_amount,
    pseudo_labels,
    pseudo_labels_and_weakest,
    quality_over_training,
    worst_case,
)
from selftrain.report.paper_figures.hyperplanes import hyperplanes
from selftrain.report.paper_figures.style import Groups


@dataclass(frozen=True)
class PaperFigure:
    about: str
    """what it shows"""
    paper: str
    """its caption in the paper, shortened"""
    draw: Callable[[Groups], Sheet]
    """from the runs of each dataset, of which there are none if it needs none"""
    needs: str = "per_class"
    """a field of metrics.jsonl without which nothing can be drawn; empty if no runs are needed"""
    seeds: int = 1
    """of its example in the documentation"""


def find_figure(name: str) -> PaperFigure:
    if name not in FIGURES:
        raise UserError(
            f"There is no figure named {name!r}.{nearest(name, FIGURES)} 'selftrain list figures' shows all names."
        )
    return FIGURES[name]


def bench_command(name: str) -> str:
    """Return the command that makes the runs of a figure at CPU scale; empty if it needs none."""
    figure = FIGURES[name]
    return f"selftrain bench figure/{name} --root DATA --seeds {figure.seeds} --out RUNS" if figure.needs else ""


def figure_command(name: str) -> str:
    """Return the command that draws a figure."""
    return f"selftrain report {'RUNS ' if FIGURES[name].needs else ''}--figure {name} -o {name}"


FIGURES: dict[str, PaperFigure] = {
    "data-sampling": PaperFigure(
        "accuracy of some classes, learned from different draws of the labeled images",
        "Effect of data sampling",
        accuracy_bars,
    ),
    "pretrained": PaperFigure(
        "accuracy of some classes, learned from different pre-trained features",
        "Effect of pre-trained representations",
        accuracy_bars,
    ),
    "algorithm": PaperFigure(
        "accuracy of some classes: FixMatch harms weak classes, DST does not",
        "Effect of self-training algorithm",
        accuracy_bars,
    ),
    "per-class-error": PaperFigure(
        "error of every class: labels only, FixMatch, DST",
        "Error rate of pseudo labels in any classes",
        error_by_class,
    ),
    "hyperplanes": PaperFigure(
        "the worst case on points in the plane: the learned line, the worst line, and features that move",
        "Concept explanations",
        hyperplanes,
        needs="",
    ),
    "accuracy": PaperFigure(
        "accuracy over training",
        "Top-1 accuracy, train from scratch",
        accuracy_over_training,
        "accuracy",
        seeds=3,
    ),
    "pseudo-labels": PaperFigure(
        "quantity and quality of pseudo labels, and the accuracy of the worst classes",
        "The quantity and quality of pseudo labels",
        pseudo_labels_and_weakest,
        "pseudo_label_quantity",
    ),
    "worst-case": PaperFigure(
        "convergence of the worst case: error and loss of h'",
        "Empirical error rate and loss",
        worst_case,
        "worst_error",
    ),
    "stability": PaperFigure(
        "training stability: accuracy over training on several datasets",
        "Failure cases of FixMatch",
        accuracy_over_training,
        "accuracy",
    ),
    "per-category": PaperFigure(
        "accuracy of every class, sorted: FixMatch, DST without the worst case, DST",
        "Top-1 accuracy of each category",
        sorted_accuracy,
    ),
    "label-amount": PaperFigure(
        "accuracy over the number of labels per class",
        "Ablation on the amount of labeled data",
        label_amount,
        "accuracy",
    ),
    "pseudo-labels-other": PaperFigure(
        "quantity, quality and imbalance of pseudo labels on other data (in the paper, on other weights)",
        "Analysis on the behavior of pseudo labels",
        pseudo_labels,
        "pseudo_label_quantity",
    ),
    "dynamic-thresholds": PaperFigure(
        "quality of pseudo labels, compared with methods that have dynamic thresholds",
        "Quality of pseudo labels: dynamic threshold",
        quality_over_training,
        "pseudo_label_quality",
        seeds=3,
    ),
    "multi-head": PaperFigure(
        "quality of pseudo labels, compared with methods that have several heads or views",
        "Quality of pseudo labels: multi-view training",
        quality_over_training,
        "pseudo_label_quality",
        seeds=3,
    ),
}
"""The paper's remaining figures show architectures; ``docs/draw_methods.py`` draws those."""
