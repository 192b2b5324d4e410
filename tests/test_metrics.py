"""Measures of a confusion matrix against values worked out by hand and scikit-learn's."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from selftrain.metrics import as_json, imbalance_ratio, summarise


def test_against_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    truth = rng.choice(12, 500, p=np.arange(1, 13) / 78)
    guess = np.where(rng.random(500) < 0.6, truth, rng.integers(0, 12, 500))
    measures = summarise(confusion_matrix(truth, guess, labels=range(12)))
    assert measures["accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert measures["mean_per_class"] == pytest.approx(balanced_accuracy_score(truth, guess))
    recalls = sorted(measures["per_class"])
    assert measures["worst10"] == pytest.approx(np.mean(recalls[:10]))
    assert measures["worst20"] == pytest.approx(np.mean(recalls))
    assert measures["worst20_percent"] == pytest.approx(np.mean(recalls[:3]))
    assert measures["worst10"] < measures["worst20"]


def test_imbalance_ratio() -> None:
    # predictions (5, 3, 2) on a class-balanced set
    balanced = np.array([[2, 1, 0], [2, 1, 0], [1, 1, 2]]) * np.array([[4], [4], [3]])
    assert imbalance_ratio(balanced) == pytest.approx((2 / 3 + 2 / 3 + 1 / 4) / (2 / 4))
    assert imbalance_ratio(np.array([[1, 0], [1, 0]])) == math.inf
    assert imbalance_ratio(np.diag([1, 50])) == pytest.approx(1.0)  # many samples are not many predictions


def test_a_class_without_samples_has_no_say() -> None:
    measures = summarise(np.array([[3, 1, 0], [0, 0, 0], [0, 0, 4]]))
    assert measures["per_class"] == [0.75, None, 1.0]
    assert measures["mean_per_class"] == pytest.approx(0.875)
    assert summarise(np.zeros((2, 2)))["accuracy"] is None


def test_json_stays_valid() -> None:
    text = json.dumps(as_json({"a": math.inf, "b": [math.nan, np.float32(0.5)], "c": np.int64(2)}), allow_nan=False)
    assert json.loads(text) == {"a": "inf", "b": [None, 0.5], "c": 2}
