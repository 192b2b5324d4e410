"""What a confusion matrix says: accuracy, classes left behind, imbalance of the predictions.

Knows nothing of models or files: counts in, plain numbers out (None where a figure can't be known).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def summarise(confusion: np.ndarray) -> dict[str, Any]:
    """Measures of a (K, K) matrix that counts true classes by row and predicted ones by column."""
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
    """I = max_c N(c) / min_c N(c), N(c) the predictions of class c on a class-balanced set; infinite if one is 0.

    Classes weigh the same however many samples each has; a class without samples has no say in it.
    """
    confusion = np.asarray(confusion, dtype=np.float64)
    support = confusion.sum(axis=1)
    present = support > 0
    predicted = (confusion[present] / support[present, None]).sum(axis=0)[present]
    return float(predicted.max() / predicted.min()) if predicted.min() > 0 else math.inf


def as_json(value: Any) -> Any:
    """The same with what JSON has no word for replaced: infinity by the text "inf", NaN by null."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, (np.floating, float)):
        return None if math.isnan(value) else str(float(value)) if math.isinf(value) else float(value)
    return value.item() if isinstance(value, np.generic) else value
