"""Piles: uneven labels, a long-tailed pool, images of no class in it, and labels from a part of each class's modes.

Pure functions of names, classes, counts and a seed. Knows nothing of files, pixels, corpora or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selftrain.data.draw import drawn_order
from selftrain.errors import UserError
from selftrain.text import plural

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Pile:
    """How the unlabeled pool and the labels differ from a random part of the data; by default they do not."""

    imbalance: float = 1.0
    label_imbalance: float = 1.0
    imbalance_order: str = "same"
    junk: float = 0.0
    label_modes: int | None = None

    @property
    def changes_pool(self) -> bool:
        return self.imbalance > 1 or self.junk > 0


def class_order(classes: Sequence[str], seed: int) -> Indices:
    """Return the classes from the most to the least frequent one, in a random order."""
    return drawn_order(classes, seed, "order of classes\0" + "\0".join(sorted(classes)))


def falling(largest: float, ratio: float, K: int) -> NDArray[np.float64]:
    """Return K numbers that fall exponentially from ``largest`` to ``largest / ratio``."""
    return largest * ratio ** (-np.arange(K) / max(K - 1, 1))


def label_counts(classes: Sequence[str], labels_per_class: int, ratio: float, seed: int) -> Indices:
    """Return the number of labels of each class: from ``labels_per_class`` down to a ``ratio``-th, at least 1."""
    counts = np.empty(len(classes), np.int64)
    counts[class_order(classes, seed)] = _rounded(falling(labels_per_class, ratio, len(classes)))
    return counts


def pool_counts(available: Indices, order: Indices, ratio: float) -> Indices:
    """Return how many images of each class stay in a long-tailed pool; ``order`` is from frequent to rare classes.

    The class at rank r keeps n ratio^(-r/(K-1)) images, at least 1, or all of its images if it has fewer. n is the
    median of ``available`` (the lower one of two): where classes are equally frequent, the first class keeps all of its
    images; where they are not, at least half of the classes have n images, so that the ratio holds up to one or two
    classes at the top, and pools of different draws are of similar size.
    """
    known = np.sort(available[available > 0])
    if not len(known):
        return np.zeros_like(available)
    counts = np.empty_like(available)
    counts[order] = _rounded(falling(float(known[(len(known) - 1) // 2]), ratio, len(order)))
    return np.minimum(counts, available)


def long_tail(
    hidden: Indices, truth: Indices, names: Sequence[str], classes: Sequence[str], seed: int, pile: Pile
) -> Indices:
    """Return the images of ``hidden`` that stay in a long-tailed pool, sorted.

    A class keeps the first ones in the order in which its labels are drawn, so a larger pool contains a smaller one.
    """
    order = class_order(classes, seed)
    order = order[::-1] if pile.imbalance_order == "reversed" else order
    counts = pool_counts(np.bincount(truth[hidden], minlength=len(classes)), order, pile.imbalance)
    is_hidden = np.zeros(len(truth), bool)
    is_hidden[hidden] = True
    kept = []
    for k, count in enumerate(counts.tolist()):
        images = np.flatnonzero(truth == k)
        drawn = images[drawn_order([names[i] for i in images.tolist()], seed, classes[k])]
        kept.append(drawn[is_hidden[drawn]][:count])
    return np.sort(np.concatenate(kept))


class Mixture(NamedTuple):
    """How many images of no class, and how many hidden images of a class, a pool has."""

    junk: int
    hidden: int


def mixture(share: float, junk: int, hidden: int, labeled: int) -> Mixture:
    """Return the pool in which ``share`` of the images are junk, where ``labeled`` others are always in the pool.

    All hidden images stay if there is junk enough, otherwise all junk is taken and some of them are left out.
    """
    wanted = round((hidden + labeled) * share / (1 - share))
    if wanted <= junk:
        return Mixture(wanted, hidden)
    rest = round(junk * (1 - share) / share) - labeled
    if rest < 0 or rest + labeled == 0:
        most = junk / (junk + max(labeled, 1))
        raise UserError(
            f"`data.junk={share:g}`: there are only {plural(junk, 'image')} in data.junk_from, and "
            f"{plural(labeled, 'labeled image')} in the pool. Name more folders, or take a share of at most {most:.2f}."
        )
    return Mixture(junk, rest)


def draw(indices: Indices, count: int, names: Sequence[str], seed: int, about: str) -> Indices:
    """Return ``count`` of these images at random, sorted."""
    if count >= len(indices):
        return indices
    return np.sort(indices[drawn_order([names[i] for i in indices.tolist()], seed, about)[:count]])


def near_duplicates(looks: NDArray[np.float32], count: int, modes: int) -> Indices:
    """Return ``count`` rows of ``looks``: the first ``modes`` rows, and the rows that are nearest to each of them.

    The modes take turns, so that each has as many rows as any other, or one more.
    """
    modes = min(modes, count)
    far = np.stack([((looks - looks[i]) ** 2).sum(axis=1) for i in range(modes)])
    queues = [np.argsort(row, kind="stable").tolist() for row in far]
    chosen = list(range(modes))
    taken = set(chosen)
    while len(chosen) < min(count, len(looks)):
        queue = queues[len(chosen) % modes]
        nearest = next(i for i in queue if i not in taken)
        taken.add(nearest)
        chosen.append(nearest)
    return np.array(chosen, np.int64)


def _rounded(values: NDArray[np.float64]) -> Indices:
    return np.maximum(np.floor(values + 0.5), 1).astype(np.int64)
