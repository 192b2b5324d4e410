"""Which images to label next, and why: the one ranking behind the command, the page and the estimator.

Knows nothing of files: it sees features, labels and the answers of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.methods.junk import NEIGHBOURS, fit_novelty, screen
from selftrain.suggest.clusters import apart, clusters, near_duplicates, nearest_to_centres
from selftrain.suggest.cold_start import typical_images
from selftrain.suggest.pool import BLOCK, Pool
from selftrain.suggest.quick import Answers, quick_answers
from selftrain.suggest.ranking import class_need, margins, usefulness

Array = NDArray[Any]
UNLABELED, LEFT_OUT = -1, -2
"""labels of images without an answer, and of images that must not be suggested (skipped, or of no class)"""
CANDIDATES = 20
"""candidates per suggestion, among which the suggestions are spread"""
NEW_KINDS = 0.2
"""largest share of the suggestions that are images of possible new kinds"""
NOVEL = 0.5


@dataclass(frozen=True)
class Choice:
    """One image to label."""

    row: int
    score: float
    """how much its label would help, in no unit; higher is better"""
    kind: str
    """typical, doubtful, disagreement, rare or new"""
    why: str
    same: list[int] = field(default_factory=list)
    """rows of unlabeled images that are nearly the same, which the answer may also hold for"""


def choose(
    pool: Pool,
    labels: Array,
    count: int,
    *,
    classes: Sequence[str] = (),
    answers: Answers | None = None,
    seed: int = 0,
) -> list[Choice]:
    """Return at most ``count`` images to label, the most useful first.

    Parameters
    ----------
    labels
        (n,) positions in ``classes``; -1 for images that may be suggested, -2 for others without a label.
    answers
        Of a trained model, on every image; by default those of a quick model of the labels.
    """
    labels = np.asarray(labels, np.int64)
    free = np.flatnonzero(labels == UNLABELED)
    count = min(count, len(free))
    if not count:
        return []
    if len(np.unique(labels[labels >= 0])) < 2:
        return _typical(pool, labels, count, seed)
    answers = answers or quick_answers(pool, labels, max(len(classes), int(labels.max()) + 1))
    novel = _new_kinds(pool, labels, answers, int(NEW_KINDS * count), seed)
    rest = _useful(pool, labels, answers, count - len(novel), set(novel.tolist()), seed)
    useful = usefulness(pool, labels, answers)
    rows = np.concatenate([rest, novel]).astype(np.int64)
    chosen = _explained(pool, labels, rows, set(novel.tolist()), useful, answers, classes)
    return sorted(chosen, key=lambda choice: -choice.score)


def _typical(pool: Pool, labels: Array, count: int, seed: int) -> list[Choice]:
    """Return images that cover the pile, before there are labels of two classes."""
    rows, sizes = typical_images(pool, count, np.flatnonzero(labels != UNLABELED), seed)
    same = _same(pool, labels, rows)
    return [
        Choice(row, float(size), "typical", _typical_of(size), alike)
        for row, size, alike in zip(rows.tolist(), sizes.tolist(), same, strict=True)
    ]


def _typical_of(size: int) -> str:
    return f"typical of {size} similar images" if size > 1 else "unlike the other images"


def _same(pool: Pool, labels: Array, rows: Array) -> list[list[int]]:
    taken = set(rows.tolist())
    groups = near_duplicates(pool, rows)
    return [[row for row in group if labels[row] == UNLABELED and row not in taken] for group in groups]


def _useful(pool: Pool, labels: Array, answers: Answers, count: int, without: set[int], seed: int) -> Array:
    """Return the most useful images, spread over clusters of candidates."""
    if not count:
        return np.empty(0, np.int64)
    useful = usefulness(pool, labels, answers)
    useful[labels != UNLABELED] = -1
    useful[list(without)] = -1
    order = np.argsort(-useful, kind="stable")
    order = order[useful[order] >= 0]
    candidates = order[: CANDIDATES * count]
    of, centres = clusters(pool.z[candidates], count, seed, useful[candidates] + 1e-9)
    first = candidates[nearest_to_centres(pool.z[candidates], of, centres)]
    rest = order[~np.isin(order, first)]  # where clusters are fewer than suggestions
    known = np.flatnonzero(labels >= 0)
    return apart(pool, np.concatenate([first, rest]), known, count)


def _new_kinds(pool: Pool, labels: Array, answers: Answers, count: int, seed: int) -> Array:
    """Return images that look like none of the classes, one per cluster, and like no image of none of the classes."""
    if not count:
        return np.empty(0, np.int64)
    novelty = answers.novelty if answers.novelty is not None else novelty_of(pool, labels, answers.p.shape[1])
    rows = np.flatnonzero((novelty > NOVEL) & (labels == UNLABELED))
    out = np.flatnonzero(labels == LEFT_OUT)
    if len(out) and len(rows):
        known = np.flatnonzero(labels >= 0)
        rows = rows[(pool.z[rows] @ pool.z[out].T).max(axis=1) < (pool.z[rows] @ pool.z[known].T).max(axis=1) + 0.1]
    if len(rows) <= count:
        return rows
    of, centres = clusters(pool.z[rows], count, seed)
    return rows[nearest_to_centres(pool.z[rows], of, centres)]


def novelty_of(pool: Pool, labels: Array, classes: int) -> Array:
    """Return how little each image (n,) looks like any class, 0 to 1; 0 for all if there is too little to be sure."""
    known, free = labels >= 0, labels < 0
    y = torch.from_numpy(labels[known])
    starts = range(0, int(free.sum()), BLOCK)
    rest = (torch.from_numpy(pool.unit(np.flatnonzero(free)[start : start + BLOCK])) for start in starts)
    novelty = fit_novelty(torch.from_numpy(pool.unit(known)), y, rest, classes)
    own = torch.cat([novelty.likeness(torch.from_numpy(part)) for part in pool.units()])
    near = torch.from_numpy(pool.near[:, :NEIGHBOURS])
    found: Array = 1 - screen(novelty, own, int(known.sum()), near).weight
    found[known] = 0
    return found


def _explained(
    pool: Pool, labels: Array, rows: Array, novel: set[int], useful: Array, answers: Answers, classes: Sequence[str]
) -> list[Choice]:
    need = class_need(labels, answers.p)
    names = list(classes) or [str(k) for k in range(answers.p.shape[1])]
    doubtful = margins(answers.p)
    chosen = []
    for row, alike in zip(rows.tolist(), _same(pool, labels, rows), strict=True):
        order = np.argsort(-answers.p[row], kind="stable")
        first, second = names[order[0]], names[order[1]] if len(order) > 1 else None
        if row in novel:
            kind, why = "new", "looks like none of the classes so far"
        elif answers.disagree[row] > 0:
            kind, why = "disagreement", f"models disagree: {first} or {second}?"
        elif need[order[0]] > 2:
            kind, why = "rare", f"perhaps {first}, which has few labels"
        else:
            kind, why = "doubtful", f"{first} or {second}? ({100 * doubtful[row]:.0f} points apart)"
        chosen.append(Choice(row, float(useful[row]), kind, why, alike))
    return chosen
