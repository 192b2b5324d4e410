"""Which images of a finished run are worth looking at: candidates to label, confident mistakes, images of no class.

Knows nothing of pixels or pages: it sees the arrays of ``outputs.npz`` and returns rows of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from selftrain.runs.layout import Arrays

MOST_TO_LABEL, MOST_CONFIDENT, MOST_NOVEL = 36, 12, 24
MOST_PER_PAIR = 3
"""images with the same two classes, so that no pair of classes fills the list"""
NOVEL = 0.5
"""images with a higher novelty look like none of the classes"""
Rows = list[int]


class Notable(NamedTuple):
    """Rows of the arrays ``pool_*``, and of ``eval_*`` for mistakes."""

    to_label: Rows
    """unlabeled images whose label would probably help most"""
    confident: Rows
    """the wrong predictions with the highest confidence"""
    novel: Rows
    """unlabeled images that look like none of the classes"""


def notable(outputs: Arrays, labeled: Collection[str] = ()) -> Notable:
    """Choose images; ``labeled`` are the names of images that have a label."""
    return Notable(_to_label(outputs, labeled), _confident(outputs), _novel(outputs, labeled))


def disagreement(outputs: Arrays) -> np.ndarray:
    """Return, for each unlabeled image, whether the head that learns from pseudo labels contradicts the main head."""
    predicted = outputs["pool_predicted"]
    return outputs["pool_pseudo"] != predicted if "pool_pseudo" in outputs else np.zeros(len(predicted), bool)


def _to_label(outputs: Arrays, labeled: Collection[str]) -> Rows:
    """Return the least confident predictions, those on which the pseudo head disagrees with h first.

    In docs/how-to/report.md, 68% of the predictions on which these heads differ are mistakes, and 22% of all
    others. The worst-case head, which is trained to differ, says less about a single image (44% and 21%).
    """
    if not {"pool_predicted", "pool_confidence"} <= set(outputs):
        return []
    order = np.lexsort((outputs["pool_confidence"].astype(np.float64), ~disagreement(outputs)))
    free = _without_label(outputs, labeled)
    if "pool_novelty" in outputs:
        free &= outputs["pool_novelty"] <= NOVEL
    second = outputs.get("pool_runner_up", outputs["pool_predicted"])
    pairs = np.sort(np.stack([outputs["pool_predicted"], second]), axis=0)
    return _spread(order[free[order]], pairs, MOST_TO_LABEL)


def _confident(outputs: Arrays) -> Rows:
    if not {"eval_truth", "eval_predicted", "eval_confidence"} <= set(outputs):
        return []
    truth, predicted = outputs["eval_truth"], outputs["eval_predicted"]
    wrong = np.flatnonzero((truth >= 0) & (truth != predicted))
    order = wrong[np.argsort(-outputs["eval_confidence"][wrong], kind="stable")]
    return _spread(order, np.stack([truth, predicted]), MOST_CONFIDENT)


def _novel(outputs: Arrays, labeled: Collection[str]) -> Rows:
    if not {"pool_predicted", "pool_novelty"} <= set(outputs):
        return []
    novelty = np.where(_without_label(outputs, labeled), outputs["pool_novelty"].astype(np.float64), 0.0)
    order = np.argsort(-novelty, kind="stable")[:MOST_NOVEL]
    return [i for i in order.tolist() if novelty[i] > NOVEL]


def _without_label(outputs: Arrays, labeled: Collection[str]) -> np.ndarray:
    names = outputs.get("pool_names")
    if names is None or not labeled:
        return np.ones(len(outputs["pool_predicted"]), bool)
    return ~np.isin(names, np.array(sorted(labeled)))


def _spread(order: np.ndarray, pairs: np.ndarray, most: int) -> Rows:
    """Return the first rows in this order, few of each pair of classes (2, n); if pairs run out, any others."""
    counts: Counter[tuple[int, ...]] = Counter()
    chosen: Rows = []
    for i in order.tolist():
        pair = tuple(pairs[:, i].tolist())
        if len(chosen) < most and counts[pair] < MOST_PER_PAIR:
            counts[pair] += 1
            chosen.append(i)
    taken = set(chosen)
    return chosen + [i for i in order.tolist() if i not in taken][: most - len(chosen)]
