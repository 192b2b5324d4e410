"""Clusters of images, and the image that represents each of them.

Knows nothing of labels or models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.suggest.kmeans import kmeans_centres, nearest_centres
from selftrain.suggest.pool import Pool

Array = NDArray[Any]
MOST_ROWS = 20_000
"""rows to which centres are fitted; of more, a random sample"""
ITERATIONS = 30
SAME = 0.95
"""images whose centred features have a higher cosine are near-duplicates"""


def clusters(z: Array, count: int, seed: int, weight: Array | None = None) -> tuple[Array, Array]:
    """Return the cluster of each row and the centres, by k-means; fewer clusters if rows are identical."""
    rng = np.random.default_rng(seed)
    some = np.arange(len(z))
    if len(z) > max(MOST_ROWS, 4 * count):
        some = np.sort(rng.choice(len(z), max(MOST_ROWS, 4 * count), replace=False))
    count = min(count, len(some))
    centres = kmeans_centres(z[some], count, seed, ITERATIONS, None if weight is None else weight[some])
    return nearest_centres(z, centres), centres


def nearest_to_centres(z: Array, of: Array, centres: Array) -> Array:
    """Return the row nearest to each centre that has rows, in the order of the centres."""
    distance = np.square(z - centres[of]).sum(axis=1)
    order = np.lexsort((distance, of))
    first = np.unique(of[order], return_index=True)[1]
    return order[first]


def near_duplicates(pool: Pool, rows: Array) -> list[list[int]]:
    """Return, for each row, those of its nearest images that are nearly the same as it."""
    found = []
    for row in rows.tolist():
        near = pool.near[row]
        found.append(near[pool.unit(near) @ pool.unit([row])[0] >= SAME].tolist() if len(near) else [])
    return found


def apart(pool: Pool, rows: Array, known: Array, count: int) -> Array:
    """Return the first ``count`` rows that are near-duplicates neither of each other nor of known rows.

    If there are too few, the others follow in their order.
    """
    kept: list[int] = []
    left: list[int] = []
    reference = np.empty((len(known) + count, pool.features.shape[1]), np.float32)
    reference[: len(known)] = pool.unit(known)
    for row in rows.tolist():
        if len(kept) == count:
            break
        own, others = pool.unit([row])[0], reference[: len(known) + len(kept)]
        if len(others) and float((others @ own).max()) >= SAME:
            left.append(row)
        else:
            reference[len(others)] = own
            kept.append(row)
    return np.array((kept + left)[:count], np.int64)
