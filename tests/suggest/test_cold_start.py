"""The first images to label: typical ones that cover the pile."""

from __future__ import annotations

import numpy as np

from selftrain.suggest.cold_start import evened


def test_directions_vary_more_equally_and_vectors_keep_their_length() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 4)) * [9.0, 4.0, 1.0, 0.0]
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    even = evened(z)
    np.testing.assert_allclose(np.linalg.norm(even, axis=1), 1, rtol=1e-6)
    before, after = z.std(axis=0), even.std(axis=0)
    assert 1 < after[0] / after[1] < before[0] / before[1]
    assert 1 < after[1] / after[2] < before[1] / before[2]
    assert np.isfinite(even).all()  # also in a direction in which nothing varies
