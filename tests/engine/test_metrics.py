"""Measures against values computed by hand and by scikit-learn, on random and on degenerate counts."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, recall_score
from torch import nn

from selftrain.engine.evaluate import tally
from selftrain.engine.metrics import (
    BINS,
    as_json,
    calibration,
    imbalance_ratio,
    pseudo_label_measures,
    summarise,
    triples,
)


@pytest.mark.parametrize("seed", range(5))
def test_against_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.choice(12, 500, p=np.arange(1, 13) / 78)
    guess = np.where(rng.random(500) < 0.6, truth, rng.integers(0, 12, 500))
    measures = summarise(confusion_matrix(truth, guess, labels=range(12)))
    assert measures["accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert measures["mean_per_class"] == pytest.approx(balanced_accuracy_score(truth, guess))
    assert measures["per_class"] == pytest.approx(recall_score(truth, guess, average=None, labels=range(12)))
    recalls = sorted(measures["per_class"])
    assert measures["worst10"] == pytest.approx(np.mean(recalls[:10]))
    assert measures["worst20"] == pytest.approx(np.mean(recalls))
    assert measures["worst20_percent"] == pytest.approx(np.mean(recalls[:3]))
    assert measures["worst10"] < measures["worst20"]


@pytest.mark.parametrize(
    ("truth", "guess", "K"),
    [
        ([0, 0, 2, 2], [0, 1, 2, 2], 3),  # a class without samples
        ([1, 1, 1], [1, 1, 1], 2),  # one class, all right
        ([1, 1, 1], [0, 0, 0], 2),  # one class, all wrong
        ([0, 1, 2], [1, 2, 0], 3),  # all wrong
        ([0], [0], 1),  # one of one
        ([0, 1] * 30, [0] * 60, 2),  # a class never predicted
    ],
)
def test_degenerate_sets_against_scikit_learn(truth: list[int], guess: list[int], K: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about degenerate sets
        measures = summarise(confusion_matrix(truth, guess, labels=range(K)))
        assert measures["accuracy"] == pytest.approx(accuracy_score(truth, guess))
        assert measures["mean_per_class"] == pytest.approx(balanced_accuracy_score(truth, guess))
    json.dumps(as_json(measures), allow_nan=False)


def test_imbalance_ratio() -> None:
    # predictions (5, 3, 2) on a class-balanced set
    balanced = np.array([[2, 1, 0], [2, 1, 0], [1, 1, 2]]) * np.array([[4], [4], [3]])
    assert imbalance_ratio(balanced) == pytest.approx((2 / 3 + 2 / 3 + 1 / 4) / (2 / 4))
    assert imbalance_ratio(np.array([[1, 0], [1, 0]])) == math.inf
    assert imbalance_ratio(np.diag([1, 50])) == pytest.approx(1.0)  # a class with many samples does not count more
    assert imbalance_ratio(np.array([[2, 2], [2, 2]])) == 1.0  # a tie
    assert imbalance_ratio(np.array([[0, 3], [0, 0]])) == math.inf  # the only class with samples, never predicted
    assert summarise(np.array([[1, 0], [1, 0]]))["imbalance_ratio"] == math.inf


def test_classes_without_samples_are_left_out() -> None:
    measures = summarise(np.array([[3, 1, 0], [0, 0, 0], [0, 0, 4]]))
    assert measures["per_class"] == [0.75, None, 1.0]
    assert measures["mean_per_class"] == pytest.approx(0.875)
    assert set(summarise(np.zeros((2, 2))).values()) == {None}


def test_triples_are_the_matrix() -> None:
    matrix = np.random.default_rng(0).integers(0, 3, (7, 7))
    again = np.zeros_like(matrix)
    for true, predicted, count in triples(matrix):
        assert count > 0
        again[true, predicted] = count
    assert np.array_equal(matrix, again)
    assert triples(np.zeros((3, 3))) == []


def bins_of(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    logits = torch.from_numpy(p).clamp(min=1e-30).log()
    return tally(nn.Identity(), [logits], truth, p.shape[1], torch.device("cpu")).bins


def naive_ece(p: np.ndarray, truth: np.ndarray) -> float:
    """Guo et al. 2017, one sample at a time: bins (0, 1/15], (1/15, 2/15], ..."""
    total = 0.0
    for b in range(BINS):
        inside = [i for i in range(len(p)) if b / BINS < p[i].max() <= (b + 1) / BINS]
        if inside:
            right = sum(p[i].argmax() == truth[i] for i in inside) / len(inside)
            confidence = sum(p[i].max() for i in inside) / len(inside)
            total += len(inside) / len(p) * abs(right - confidence)
    return total


@pytest.mark.parametrize("K", [2, 5])
def test_calibration_error_against_its_definition(K: int) -> None:
    rng = np.random.default_rng(K)
    p = rng.dirichlet(np.full(K, 0.4), 300)
    truth = np.array([rng.choice(K, p=row) for row in p])
    measures = calibration(bins_of(p, truth))
    assert measures["ece"] == pytest.approx(naive_ece(p, truth), abs=1e-6)
    assert measures["ece"] < 0.15  # the truth was drawn from p itself
    assert calibration(bins_of(p, (truth + 1) % K))["ece"] > 0.3
    assert sum(count for count, *_ in measures["calibration"]) == 300
    right, confidence = calibration_curve(p.argmax(axis=1) == truth, p.max(axis=1), n_bins=BINS)  # scikit-learn's
    filled = [entry for entry in measures["calibration"] if entry[0]]
    assert [entry[1] for entry in filled] == pytest.approx(confidence, abs=1e-6)
    assert [entry[2] for entry in filled] == pytest.approx(right)


def test_calibration_of_extremes() -> None:
    sure = np.eye(2)[[0, 0, 1]]
    assert calibration(bins_of(sure, np.array([0, 0, 1])))["ece"] == pytest.approx(0)
    all_wrong = calibration(bins_of(sure, np.array([1, 1, 0])))
    assert all_wrong["ece"] == pytest.approx(1)
    assert all_wrong["calibration"][-1] == [3, pytest.approx(1), 0]
    assert all_wrong["calibration"][0] == [0, None, None]
    assert calibration(np.zeros((BINS, 3))) == {"ece": None, "calibration": None}


def test_pseudo_labels_by_hand() -> None:
    #   class        a    b   c  d
    seen, kept, right = [100, 50, 10, 0], [80, 10, 0, 0], [72, 4, 0, 0]
    measures = pseudo_label_measures(seen, kept, right)
    assert measures["quantity"] == pytest.approx(90 / 160)
    assert measures["quality"] == pytest.approx(76 / 90)
    assert measures["quantity_per_class"] == [0.8, 0.2, 0.0, None]
    assert measures["quality_per_class"] == [0.9, 0.4, None, None]
    # the worst fifth of three classes is one class, c, and no label of c is kept
    assert (measures["quantity_worst20_percent"], measures["quality_worst20_percent"]) == (0.0, None)
    assert measures["quality_worst10"] == measures["quality"]  # there are fewer than ten


def test_the_worst_classes_are_those_with_the_fewest_right_labels() -> None:
    rng = np.random.default_rng(0)
    seen = rng.integers(50, 100, 30)
    kept = rng.binomial(seen, 0.7)
    right = rng.binomial(kept, rng.random(30))
    measures = pseudo_label_measures(seen, kept, right)
    worst = sorted(range(30), key=lambda k: right[k] / seen[k])[:10]
    assert measures["quantity_worst10"] == pytest.approx(kept[worst].sum() / seen[worst].sum())
    assert measures["quality_worst10"] == pytest.approx(right[worst].sum() / kept[worst].sum())


@pytest.mark.parametrize("counts", [[0, 0, 0], []])
def test_without_pseudo_labels_there_are_no_measures(counts: list[int]) -> None:
    measures: dict[str, Any] = pseudo_label_measures(counts, counts, counts)
    assert all(value is None or value == [None] * len(counts) for value in measures.values())


def test_json_stays_valid() -> None:
    text = json.dumps(as_json({"a": math.inf, "b": [math.nan, np.float32(0.5)], "c": np.int64(2)}), allow_nan=False)
    assert json.loads(text) == {"a": "inf", "b": [None, 0.5], "c": 2}
