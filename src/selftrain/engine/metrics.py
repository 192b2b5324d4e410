"""Measures from counts: a confusion matrix, pseudo labels, confidence against accuracy.

Knows nothing of models or files: counts in, plain numbers out (None where a value cannot be known).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from selftrain.errors import UserError


def summarise(confusion: np.ndarray) -> dict[str, Any]:
    """Return the measures of a (K, K) matrix of counts: true classes by row, predicted classes by column."""
    confusion = np.asarray(confusion, dtype=np.float64)
    support = confusion.sum(axis=1)
    if support.sum() == 0:
        return {
            "accuracy": None, "mean_per_class": None, "per_class": None, "worst10": None, "worst20": None,
            "worst20_percent": None, "imbalance_ratio": None,
        }  # fmt: skip
    present = support > 0
    with np.errstate(invalid="ignore"):
        recall = np.where(present, confusion.diagonal() / np.maximum(support, 1), np.nan)
    known = np.sort(recall[present])

    def worst(k: int) -> float:
        return float(known[: max(1, min(k, len(known)))].mean())

    return {
        "accuracy": float(confusion.diagonal().sum() / support.sum()),
        "mean_per_class": float(known.mean()),
        "per_class": [None if math.isnan(r) else float(r) for r in recall],
        "worst10": worst(10),
        "worst20": worst(20),
        "worst20_percent": worst(math.ceil(0.2 * len(known))),
        "imbalance_ratio": imbalance_ratio(confusion),
    }


def imbalance_ratio(confusion: np.ndarray) -> float:
    """Return I = max_c N(c) / min_c N(c), where N(c) counts predictions of class c on a class-balanced set.

    It is infinite if a class is never predicted. Every class with samples has the same weight; classes without samples
    are left out.
    """
    confusion = np.asarray(confusion, dtype=np.float64)
    support = confusion.sum(axis=1)
    present = support > 0
    predicted = (confusion[present] / support[present, None]).sum(axis=0)[present]
    return float(predicted.max() / predicted.min()) if predicted.min() > 0 else math.inf


def triples(confusion: np.ndarray) -> list[list[int]]:
    """Return ``[true, predicted, count]`` for every nonzero cell, row by row."""
    rows, columns = np.nonzero(confusion)
    counts = np.asarray(confusion)[rows, columns]
    cells: list[list[int]] = np.stack([rows, columns, counts], axis=1).astype(int).tolist()
    return cells


BINS = 15


def calibration(bins: np.ndarray) -> dict[str, Any]:
    """Return ``calibration`` and ``ece`` from an array (bins, 3): count, sum of confidences, number correct per bin.

    ``calibration`` is a list of ``[count, mean confidence, accuracy]`` (None where a bin is empty); ``ece`` is the
    expected calibration error sum_b n_b/n |accuracy_b - confidence_b|.
    """
    bins = np.asarray(bins, dtype=np.float64)
    n = bins[:, 0].sum()
    if n == 0:
        return {"ece": None, "calibration": None}
    return {
        "ece": float(np.abs(bins[:, 2] - bins[:, 1]).sum() / n),
        "calibration": [[int(c), s / c if c else None, r / c if c else None] for c, s, r in bins.tolist()],
    }


def pseudo_label_measures(seen: Any, kept: Any, right: Any) -> dict[str, Any]:
    """Return quantity (kept / seen) and quality (right / kept) of pseudo labels from their counts per true class.

    Overall, per class, and on the worst classes: those with the smallest share of samples whose label is kept and
    right. The value is None for a class without samples seen (or, for its quality, without labels kept).
    """
    if seen is None or kept is None or right is None:
        raise UserError(
            "pseudo labels: there are no counts per true class, because the true classes of these images are unknown."
        )
    counts = np.array([seen, kept, right], dtype=np.float64)
    present = counts[0] > 0
    order = np.flatnonzero(present)[np.argsort(counts[2, present] / counts[0, present], kind="stable")]

    def measures(rows: np.ndarray, suffix: str = "") -> dict[str, float | None]:
        n_seen, n_kept, n_right = counts[:, rows].sum(axis=1).tolist()
        return {
            f"quantity{suffix}": n_kept / n_seen if n_seen else None,
            f"quality{suffix}": n_right / n_kept if n_kept else None,
        }

    one_by_one = [measures(np.array([k])) for k in range(counts.shape[1])]
    return {
        **measures(order),
        "quantity_per_class": [one["quantity"] for one in one_by_one],
        "quality_per_class": [one["quality"] for one in one_by_one],
        **measures(order[:10], "_worst10"),
        **measures(order[:20], "_worst20"),
        **measures(order[: max(1, math.ceil(0.2 * len(order)))], "_worst20_percent"),
    }


def as_json(value: Any) -> Any:
    """Return the value with numbers that JSON lacks replaced: infinity by the text "inf", NaN by null."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, (np.floating, float)):
        return None if math.isnan(value) else str(float(value)) if math.isinf(value) else float(value)
    return value.item() if isinstance(value, np.generic) else value
