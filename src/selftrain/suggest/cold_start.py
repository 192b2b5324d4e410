"""Which images to label first: typical images that cover the pile (TypiClust, Hacohen et al., ICML 2022).

Knows nothing of classes or models: it sees features and which images have an answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.suggest.clusters import clusters
from selftrain.suggest.pool import NEIGHBOURS, Pool

Array = NDArray[Any]
SMALLEST = 5
"""clusters of at most so many images are asked about last"""
MOST_CLUSTERS = 1000


def typical_images(pool: Pool, count: int, answered: Array, seed: int = 0) -> tuple[Array, Array]:
    """Return the most typical images of the largest clusters without an answer, and the size of each cluster.

    There are as many clusters as answers and suggestions together. If more images are wanted than there are clusters,
    the clusters take turns.
    """
    reduced = pool.z.shape[1] < pool.features.shape[1]  # else weak directions may be noise
    z, known = evened(pool.z) if reduced else pool.z, np.zeros(len(pool), bool)
    known[answered] = True
    of, _ = clusters(z, min(len(answered) + count, MOST_CLUSTERS, len(pool)), seed)
    size = np.bincount(of)
    taken = np.bincount(of[known], minlength=len(size))
    ranked = {k: _by_typicality(z, np.flatnonzero((of == k) & ~known)) for k in np.unique(of[~known]).tolist()}
    chosen: list[int] = []
    sizes: list[int] = []
    while len(chosen) < count and ranked:
        k = min(ranked, key=lambda k: (taken[k], size[k] <= SMALLEST, -size[k]))
        chosen.append(int(ranked[k][0]))
        sizes.append(int(size[k]))
        taken[k] += 1
        ranked[k] = ranked[k][1:]
        if not len(ranked[k]):
            del ranked[k]
    return np.array(chosen, np.int64), np.array(sizes, np.int64)


def evened(z: Array) -> Array:
    """Return unit vectors whose directions vary more equally.

    The directions in which a pile varies most are often light and background; without this, they make the clusters.
    """
    z = z / np.sqrt(np.maximum(z.std(axis=0), 1e-6))
    even: Array = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-9)
    return even


def _by_typicality(z: Array, rows: Array) -> Array:
    """Return rows of one cluster, those with the nearest neighbours in it first."""
    if len(rows) < 3:
        return rows
    some = z[rows[:: max(1, len(rows) // 2000)]]
    cosines = z[rows] @ some.T
    k = min(NEIGHBOURS + 1, cosines.shape[1])
    mean = np.partition(cosines, -k, axis=1)[:, -k:].mean(axis=1)
    return rows[np.argsort(-mean, kind="stable")]
