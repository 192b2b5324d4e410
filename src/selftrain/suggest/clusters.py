"""Clusters of images, and the image that represents each of them.

Knows nothing of labels or models.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_ROWS = 20_000
"""rows to which centres are fitted; of more, a random sample"""
ITERATIONS = 30
SAME = 0.95
"""images whose centred features have a higher cosine are near-duplicates"""


def clusters(z: Array, count: int, seed: int, weight: Array | None = None) -> tuple[Array, Array]:
    """Return the cluster of each row and the centres, by k-means; fewer clusters if rows are identical."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rng = np.random.default_rng(seed)
    some = np.arange(len(z))
    if len(z) > max(MOST_ROWS, 4 * count):
        some = np.sort(rng.choice(len(z), max(MOST_ROWS, 4 * count), replace=False))
    means = KMeans(min(count, len(some)), n_init=1, max_iter=ITERATIONS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        means.fit(z[some], sample_weight=None if weight is None else weight[some])
    return means.predict(z), means.cluster_centers_


def nearest_to_centres(z: Array, of: Array, centres: Array) -> Array:
    """Return the row nearest to each centre that has rows, in the order of the centres."""
    distance = np.square(z - centres[of]).sum(axis=1)
    order = np.lexsort((distance, of))
    first = np.unique(of[order], return_index=True)[1]
    return order[first]


def near_duplicates(x: Array, near: Array, rows: Array) -> list[list[int]]:
    """Return, for each row, those of its nearest images that are nearly the same as it."""
    return [near[row][x[near[row]] @ x[row] >= SAME].tolist() for row in rows.tolist()]


def apart(z: Array, rows: Array, known: Array, count: int) -> Array:
    """Return the first ``count`` rows that are near-duplicates neither of each other nor of known rows.

    If there are too few, the others follow in their order.
    """
    kept: list[int] = []
    left: list[int] = []
    reference = z[known]
    for row in rows.tolist():
        if len(kept) == count:
            break
        alike = bool(len(reference)) and float((reference @ z[row]).max()) >= SAME
        if alike:
            left.append(row)
        else:
            kept.append(row)
            reference = np.concatenate([reference, z[row : row + 1]])
    return np.array((kept + left)[:count], np.int64)
