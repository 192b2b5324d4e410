"""Labels that are likely wrong and classes that cannot be told apart, judged by features with each label left out.

Knows nothing of images. The labels of all other images diffuse along a graph of neighbours over labeled and unlabeled
images, and what reaches an image is compared with its own label.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.methods.diffusion import diffuse, normalised
from selftrain.methods.graph import adjacency
from selftrain.neighbours import nearest_rows

NEIGHBOURS, POWER, ALPHA = 10, 3.0, 0.9
"""of the graph, of the weights of its edges, and how far labels diffuse"""
MARGIN = 0.3
"""by how much another class must be more probable than the label"""
RELIABLE = 0.65
"""share of left-out labels that are found again, below which the margin grows"""
MOST_LABELS = 3000
"""labels that are left out in turn; of more, some at random"""
MOST_IMAGES = 20_000
"""images of the graph; of more, all labeled ones and some others at random"""
TOLD_APART = 0.65
"""share of the labeled images of two classes that are nearer to their own one, at least"""
FEWEST = 6
"""labeled images of both classes together"""
Array = NDArray[Any]


class LeftOut(NamedTuple):
    """What all other labels say about each label."""

    rows: NDArray[np.int64]
    """labeled images that were left out in turn: positions among the labeled ones"""
    probabilities: Array
    """(rows, K); zero in all classes if no label reaches the image"""
    found: float
    """share of them whose label is the most probable class"""


class Suspect(NamedTuple):
    """A label that is likely wrong."""

    row: int
    """position among the labeled images"""
    instead: int
    """the class that the others say"""
    margin: float
    """difference of the probabilities of both classes"""


def leave_out(features: Array, labeled: NDArray[np.int64], y: NDArray[np.int64], classes: int) -> LeftOut:
    """Return what the other labels say about each label; ``labeled`` are rows of ``features`` with the labels y."""
    rng = np.random.default_rng(0)
    rows = np.arange(len(y))
    if len(y) > MOST_LABELS:
        rows = np.sort(rng.choice(len(y), MOST_LABELS, replace=False))
    others = np.setdiff1d(np.arange(len(features)), labeled)
    if len(others) > MOST_IMAGES:
        others = np.sort(rng.choice(others, MOST_IMAGES, replace=False))
    x = torch.from_numpy(np.ascontiguousarray(features[np.concatenate([labeled, others])])).float()
    x = torch.nn.functional.normalize(x, dim=1)
    x = torch.nn.functional.normalize(x - x.mean(dim=0), dim=1)
    W = normalised(adjacency(nearest_rows(x, NEIGHBOURS, first=len(labeled)), POWER))
    Y = np.zeros((len(x), classes))
    Y[np.arange(len(y)), y] = 1
    reached = diffuse(W, Y, ALPHA)[rows]  # the sum over all labels; the share of an image's own one is taken off
    own = _own_share(W, rows)
    reached[np.arange(len(rows)), y[rows]] -= own
    left = np.bincount(y, minlength=classes)[None, :] - Y[rows]
    p = np.maximum(reached, 0) / np.maximum(left, 1)
    total = p.sum(axis=1, keepdims=True)
    p = np.where(total > 1e-12, p / np.maximum(total, 1e-12), 0.0)
    counted = (total[:, 0] > 1e-12) & (left[np.arange(len(rows)), y[rows]] > 0)
    found = float((p.argmax(axis=1) == y[rows])[counted].mean()) if counted.any() else 0.0
    return LeftOut(rows, p, found)


def _own_share(W: Any, rows: NDArray[np.int64]) -> Array:
    """Return what diffuses from each labeled image back to itself, 256 images at a time."""
    own = np.empty(len(rows))
    for start in range(0, len(rows), 256):
        part = rows[start : start + 256]
        single = np.zeros((W.shape[0], len(part)))
        single[part, np.arange(len(part))] = 1
        own[start : start + 256] = diffuse(W, single, ALPHA)[part, np.arange(len(part))]
    return own


def suspects(left_out: LeftOut, y: NDArray[np.int64]) -> list[Suspect]:
    """Return the labels that are likely wrong, the clearest first.

    If the features find few labels again, they say little, and the margin grows.
    """
    rows, p, found = left_out
    y = y[rows]
    counts = np.bincount(y, minlength=p.shape[1])
    places = np.arange(len(y))
    own = p[places, y]
    others = p.copy()
    others[places, y] = -1
    margin = others.max(axis=1) - own
    margin[(counts[y] < 2) | (p.sum(axis=1) == 0)] = -1  # the only label of a class cannot be left out
    least = MARGIN + max(0.0, RELIABLE - found)
    chosen = np.flatnonzero(margin > least)
    chosen = chosen[np.argsort(-margin[chosen], kind="stable")]
    return [Suspect(int(rows[i]), int(others[i].argmax()), float(margin[i])) for i in chosen]


def hard_pairs(left_out: LeftOut, y: NDArray[np.int64], wrong: list[Suspect]) -> list[tuple[int, int, int, int]]:
    """Return pairs of classes that the features cannot tell apart: both classes, images on the right side, images.

    Labels that are likely wrong do not count.
    """
    rows, p, _ = left_out
    kept = ~np.isin(rows, [one.row for one in wrong]) & (p.sum(axis=1) > 0)
    y, p = y[rows][kept], p[kept]
    K = p.shape[1]
    own = p[np.arange(len(y)), y]
    right = np.zeros((K, K))  # of class j, images that are nearer to j than to k
    np.add.at(right, y, own[:, None] > p)
    counts = np.bincount(y, minlength=K)
    pairs = []
    for j in range(K):
        for k in range(j + 1, K):
            n, good = int(counts[j] + counts[k]), int(right[j, k] + right[k, j])
            confused = right[j, k] < counts[j] and right[k, j] < counts[k]
            if n >= FEWEST and min(counts[j], counts[k]) > 1 and good < TOLD_APART * n and confused:
                pairs.append((j, k, good, n))
    return sorted(pairs, key=lambda pair: pair[2] / pair[3])
