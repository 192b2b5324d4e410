"""Labels that are likely wrong and classes that cannot be told apart, on features that are made up."""

from __future__ import annotations

import numpy as np
import pytest

from selftrain.check import labels
from selftrain.check.labels import hard_pairs, leave_out, suspects

K, DIM = 6, 40


def clusters(spread: float, per_class: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features around one direction per class, and their classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(K, DIM))
    y = np.arange(K).repeat(per_class)
    return (centres[y] + spread * rng.normal(size=(len(y), DIM))).astype(np.float32), y


def labeled_rows(y: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([np.flatnonzero(y == k)[:n] for k in range(K)])


@pytest.mark.parametrize("seed", range(3))
def test_planted_labels_are_found(seed: int) -> None:
    x, truth = clusters(0.8, seed=seed)
    rows = labeled_rows(truth, 5)
    y = truth[rows].copy()
    wrong = np.random.default_rng(seed).choice(len(y), 3, replace=False)
    y[wrong] = (y[wrong] + 2) % K
    left_out = leave_out(x, rows, y, K)
    found = suspects(left_out, y)
    assert {one.row for one in found} == set(wrong.tolist())
    assert all(one.instead == truth[rows][one.row] for one in found)
    assert [one.margin for one in found] == sorted((one.margin for one in found), reverse=True)
    assert left_out.found == pytest.approx(1 - 3 / len(y))


def test_a_label_says_nothing_about_itself() -> None:
    x, truth = clusters(0.5)
    rows = labeled_rows(truth, 3)
    p = leave_out(x, rows, truth[rows], K).probabilities
    changed = truth[rows].copy()
    changed[0] = 4  # only the numbers of labels of two classes change for the first image
    again = leave_out(x, rows, changed, K).probabilities
    assert p[0].argmax() == again[0].argmax() == 0
    assert np.allclose(p.sum(axis=1), 1)


def test_the_only_label_of_a_class_is_no_suspect() -> None:
    x, truth = clusters(0.5)
    rows = labeled_rows(truth, 3)
    y = truth[rows].copy()
    y[0] = K  # a class of its own
    left_out = leave_out(x, rows, y, K + 1)
    assert not [one for one in suspects(left_out, y) if one.row == 0]


def test_features_that_say_little_raise_few_suspicions() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, DIM)).astype(np.float32)
    y = np.arange(48) % K
    left_out = leave_out(x, np.arange(48), y, K)
    assert left_out.found < 0.4
    assert len(suspects(left_out, y)) <= 5


def test_classes_of_one_cluster_cannot_be_told_apart() -> None:
    x, truth = clusters(0.5)
    rows = labeled_rows(truth, 8)
    y = truth[rows].copy()
    mixed = np.flatnonzero(y == 5)
    y[mixed[::2]] = 4  # half of the labels of one cluster, and none of another
    keep = truth[rows] != 4
    left_out = leave_out(x, rows[keep], y[keep], K)
    pairs = hard_pairs(left_out, y[keep], [])
    assert [(j, k) for j, k, _, _ in pairs] == [(4, 5)]
    clear = leave_out(x, rows, truth[rows], K)
    assert not hard_pairs(clear, truth[rows], [])


def test_many_labels_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = clusters(0.5)
    monkeypatch.setattr(labels, "MOST_LABELS", 20)
    monkeypatch.setattr(labels, "MOST_IMAGES", 30)
    rows = labeled_rows(truth, 10)
    left_out = leave_out(x, rows, truth[rows], K)
    assert len(left_out.rows) == len(left_out.probabilities) == 20
    assert left_out.found == 1
