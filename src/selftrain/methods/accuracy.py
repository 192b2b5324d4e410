"""The accuracy of a model without a test set: from labels that a stand-in has not seen, and from unlabeled images.

Knows nothing of models, runs or files: arrays in, numbers out.

A trained model has seen all labels, so it says nothing about its own mistakes. A stand-in that is fitted in seconds can
be fitted without each label in turn. The labels that were left out tell how far its probabilities can be believed
(a temperature), and its believable confidence on the unlabeled images is its accuracy there: every unlabeled image says
how hard it is, so few labels are enough. Where the model and the stand-in predict the same class, they are right or
wrong together; of the images on which they differ, the model wins as many more than it loses as it says itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.methods.confidence import tempered

Array = NDArray[Any]
GAIN_SD = 0.2
"""how unsure the net share of the differing images is that a self-trained model wins over its stand-in"""
STRUCTURE_SD = 0.045
"""standard deviation of what the temperature of few labels cannot tell: other images, other kinds of mistakes"""
LEVEL, Z = 0.9, 1.645
DRAWS = 100
"""resamples of the labels that tell how unsure the temperature is"""
BELIEF = 8.0
"""labels per class that the estimate over all classes is worth in the estimate of a single class"""
GRID = np.geomspace(0.2, 5, 81)
SURE_T, FALL, USUAL_SD = 0.47, 2.3, 0.12
"""a graph of neighbours needs the temperature SURE_T exp(FALL (1 - A)) if it agrees with the labels-only model on a
share A of the pool, whatever the images; USUAL_SD is how much its logarithm varies"""
LEAST = 0.01
"""lowest probability of a label that counts: one odd or wrong label must not decide the temperature"""
BLEND_T, BLEND_FALL, BLEND_SHARE = 0.71, 0.79, 0.40
"""a blend of estimated accuracy a, whose confidence matches it at temperature T, needs BLEND_T exp(BLEND_FALL (1 - a))
T^BLEND_SHARE: what it takes to match says less than what blends of that accuracy usually need"""


@dataclass(frozen=True)
class Estimate:
    """An estimated accuracy with its 90% interval."""

    accuracy: float
    low: float
    high: float
    labels: int
    """labels that were left out in turn"""
    stand_in: float
    """accuracy of the stand-in on the labels that were left out"""
    sd: float
    """standard deviation of the error of the estimate"""

    def moved(self, accuracy: float) -> Estimate:
        """Return another estimate from the same evidence, as unsure as this one."""
        accuracy, low, high = _interval(accuracy, self.sd)
        return replace(self, accuracy=accuracy, low=low, high=high)


def estimate_accuracy(
    left_out: Array,
    y: Array,
    stand_in: Array,
    p: Array,
    *,
    weight: Array,
    label_weight: Array,
    gain: bool,
    agreement: float | None = None,
) -> Estimate | None:
    """Return the accuracy of a model on unlabeled images, or None if no label can be left out.

    Parameters
    ----------
    left_out, y
        Probabilities (n, K) of the stand-in for each label, fitted without it; the labels. Rows that could not be left
        out are NaN.
    stand_in, p
        Probabilities (m, K) of the stand-in and of the model on the unlabeled images.
    weight, label_weight
        How much each unlabeled image and each label counts.
    gain
        Whether the model has learned from unlabeled images more than its stand-in.
    agreement
        Share of the unlabeled images on which the stand-in, a graph of neighbours, and a model that was trained on the
        labels alone agree: evidence that needs no label. None if it is not known.
    """
    known = ~np.isnan(left_out).any(axis=1)
    if not known.any() or not weight.sum() > 0:
        return None
    seen, truth, counts = left_out[known], y[known], label_weight[known]
    losses = _losses(seen, truth)
    confidences = np.array([np.average(tempered(stand_in, T).max(axis=1), weights=weight) for T in GRID])
    usual = np.zeros(len(GRID))
    if agreement is not None:
        usual = ((np.log(GRID / SURE_T) - FALL * (1 - agreement)) / USUAL_SD) ** 2 / 2
    found = confidences[np.argmin(losses @ counts + usual)]
    rng = np.random.default_rng(0)
    draws = rng.poisson(1.0, (DRAWS, len(truth))) * counts
    again = confidences[np.argmin(losses @ draws[draws.sum(axis=1) > 0].T + usual[:, None], axis=0)]
    rows, ours, theirs = np.arange(len(p)), p.argmax(axis=1), stand_in.argmax(axis=1)
    differ = float(np.average(ours != theirs, weights=weight))
    won = float(np.average(p[rows, ours] - p[rows, theirs], weights=weight))
    accuracy = found + (won if gain else 0.0)
    sd = math.sqrt(float(again.var()) + (GAIN_SD * differ) ** 2 + STRUCTURE_SD**2)
    right = float(np.average(seen.argmax(axis=1) == truth, weights=counts))
    return Estimate(*_interval(float(accuracy), sd), len(truth), right, sd)


def usual_temperature(accuracy: float, matching: float) -> float:
    """Return the temperature of a blend from its estimated accuracy and the temperature that matches it."""
    return float(BLEND_T * math.exp(BLEND_FALL * (1 - accuracy)) * matching**BLEND_SHARE)


def _losses(p: Array, y: Array) -> Array:
    """Return -log p_y (temperatures, n) at each temperature of the grid."""
    rows = np.arange(len(y))
    return np.stack([-np.log(np.maximum(tempered(p, float(T))[rows, y], LEAST)) for T in GRID])


def _interval(accuracy: float, sd: float) -> tuple[float, float, float]:
    """Return the accuracy within 0 to 1, and its interval, symmetric in the logarithm of the odds."""
    accuracy = min(max(accuracy, 0.01), 0.99)
    odds, spread = math.log(accuracy / (1 - accuracy)), Z * sd / (accuracy * (1 - accuracy))
    spread = min(spread, 6.0)
    return accuracy, 1 / (1 + math.exp(spread - odds)), 1 / (1 + math.exp(-spread - odds))


def per_class_accuracy(p: Array, weight: Array) -> list[float | None]:
    """Return the expected share of each class that is classified correctly, if the probabilities p can be believed."""
    p = np.asarray(p, np.float64) * np.asarray(weight, np.float64)[:, None]
    own = np.zeros(p.shape[1])
    np.add.at(own, p.argmax(axis=1), p.max(axis=1))
    mass = p.sum(axis=0)
    return [float(min(1.0, r / m)) if m > 0 else None for r, m in zip(own, mass, strict=True)]


def class_interval(expected: float, hits: int, labels: int) -> tuple[float, float]:
    """Return the 90% interval of the accuracy of a class from an expectation and a few labels that were left out."""
    from scipy.special import betaincinv  # importing scipy.stats takes a second

    a, b = 0.5 + BELIEF * expected + hits, 0.5 + BELIEF * (1 - expected) + labels - hits
    low, high = betaincinv(a, b, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
