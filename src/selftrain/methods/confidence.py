"""Probabilities that can be taken at their word: temperatures, coverage, and other class frequencies.

Knows nothing of models, runs or files: arrays in, arrays out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.methods.folds import softmax

Array = NDArray[Any]
LOWEST, HIGHEST = 0.05, 20.0
"""temperatures that are considered"""
HALVINGS = 40
COVERAGES = tuple(round(0.05 * i, 2) for i in range(1, 21))
"""shares of the images at which a risk-coverage curve is stored"""
EM_ROUNDS, EM_ENOUGH = 200, 1e-6


def tempered(p: Array, temperature: float | Array, doubt: float = 0.0) -> Array:
    """Return softmax(log p / T), where T is the temperature * (1 + doubt (1 - max p)).

    There is one temperature for all classes, or one per predicted class. With doubt, an image of which p is less sure
    has a higher T.
    """
    T = np.asarray(temperature, np.float64)
    if T.ndim:
        T = T[p.argmax(axis=1)][:, None]
    if doubt:
        T = T * (1 + doubt * (1 - np.asarray(p, np.float64).max(axis=1, keepdims=True)))
    return softmax(np.log(np.maximum(np.asarray(p, np.float64), 1e-12)) / T)


def matching_temperature(p: Array, accuracy: float, weight: Array | None = None, doubt: float = 0.0) -> float:
    """Return the temperature at which the mean confidence is the accuracy; confidence falls as it rises."""
    weight = np.ones(len(p)) if weight is None else weight
    if not weight.sum() > 0:
        return 1.0
    low, high = np.log(LOWEST), np.log(HIGHEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if np.average(tempered(p, float(np.exp(middle)), doubt).max(axis=1), weights=weight) > accuracy:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def surest(confidence: Array, coverage: float) -> Array:
    """Return which images (n,) bool are the surest ones, a share ``coverage`` of all, rounded to whole images."""
    kept = np.zeros(len(confidence), bool)
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    kept[order[: round(coverage * len(confidence))]] = True
    return kept


def risk_coverage(confidence: Array, right: Array) -> list[list[float]]:
    """Return ``[coverage, accuracy, lowest confidence]`` of the surest images, for coverages from 5 to 100%."""
    if not len(confidence):
        return []
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    correct, sure = np.cumsum(np.asarray(right, np.float64)[order]), np.asarray(confidence, np.float64)[order]
    counts = sorted({max(1, round(share * len(order))) for share in COVERAGES})
    return [[n / len(order), float(correct[n - 1] / n), float(sure[n - 1])] for n in counts]


def with_prior(p: Array, old: Array, new: Array) -> Array:
    """Return probabilities for images with other class frequencies: p_k new_k / old_k, normalised."""
    p = np.asarray(p, np.float64) * (np.asarray(new, np.float64) / np.maximum(np.asarray(old, np.float64), 1e-9))
    total = p.sum(axis=1, keepdims=True)
    return np.where(total > 0, p / np.where(total > 0, total, 1), 1 / p.shape[1])


def estimate_prior(p: Array, old: Array) -> Array:
    """Return the class frequencies of images whose probabilities p assume the frequencies ``old``.

    (Saerens et al., Neural Computation 2002: expectation maximisation.) Half an image per class is added, so that no
    class is ruled out by a few images.
    """
    pi = np.asarray(old, np.float64) / np.sum(old)
    for _ in range(EM_ROUNDS):
        counts = with_prior(p, old, pi).sum(axis=0) + 0.5
        new = counts / counts.sum()
        if np.abs(new - pi).sum() < EM_ENOUGH:
            return np.asarray(new)
        pi = new
    return np.asarray(pi)
