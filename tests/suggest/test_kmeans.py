"""Clusters are those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from selftrain.suggest.clusters import ITERATIONS, clusters


def unit_rows(n: int, dim: int, groups: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(groups, dim))[rng.integers(groups, size=n)] + 0.7 * rng.normal(size=(n, dim))
    unit: np.ndarray = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    return unit


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "count"), [(400, 12), (600, 40), (90, 30)])
def test_the_same_images_are_together_as_with_scikit_learn(n: int, count: int, weighted: bool) -> None:
    z = unit_rows(n, 24, 10)
    weight = np.random.default_rng(1).random(n).astype(np.float32) if weighted else None
    found, centres = clusters(z, count, 3, weight)
    theirs = KMeans(count, n_init=1, max_iter=ITERATIONS, random_state=3).fit(z, sample_weight=weight)
    np.testing.assert_array_equal(found, theirs.predict(z))
    np.testing.assert_allclose(centres, theirs.cluster_centers_, atol=1e-4)


def test_identical_images_share_a_cluster() -> None:
    z = np.repeat(unit_rows(3, 8, 3), 20, axis=0)
    found, centres = clusters(z, 10, 0)
    assert len(centres) == 10
    assert all(len(np.unique(found[start : start + 20])) == 1 for start in (0, 20, 40))
    assert len(np.unique(found[::20])) == 3


def test_as_many_clusters_as_images() -> None:
    z = unit_rows(50, 24, 10)
    assert sorted(clusters(z, 50, 3)[0].tolist()) == list(range(50))
