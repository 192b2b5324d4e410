"""Typed records inside ``results.json``: estimates, the pool, the guard, calibration.

Knows nothing of files or of how the records are made; ``runs/layout.py`` says where they stand.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from selftrain.config.options import Between

Share = Annotated[float, Between(0, 1)]
"""a share that was counted; an estimate may be a rounding error outside"""
PerClass = list[float | None]


class CrossValidated(TypedDict):
    """An estimate of the accuracy from folds over the labels."""

    folds: int
    labels: int
    accuracy: float
    accuracy_std: float
    per_class: PerClass


class _Doubt(TypedDict, total=False):
    """What older runs lack."""

    doubt: float
    """how much higher the temperature of an image is if the model is unsure of it"""


class Calibrated(_Doubt):
    """How the probabilities of the final model were calibrated, and what they were like before."""

    temperature: list[float]
    """per predicted class"""
    labels: int
    """labels that training had not seen, from which it was found"""
    ece_before: float | None
    calibration_before: list[list[float | None]] | None


class Estimated(TypedDict):
    """The accuracy as it is estimated without a test set."""

    accuracy: float
    low: float
    high: float
    level: float
    """of the interval from low to high"""
    labels: int
    left_out_accuracy: float
    """accuracy of the stand-in on labels that it has not seen"""
    per_class: PerClass
    per_class_low: PerClass
    per_class_high: PerClass
    risk_coverage: list[list[float]]


class PoolPrior(TypedDict):
    """Class frequencies of the labels and of the unlabeled pool."""

    source: str
    """``data.prior``: ``auto`` if they are estimated"""
    labels: list[float]
    pool: list[float]
    distance: float
    """total variation between both, 0 to 1"""
    agreement: float
    """share of the pool on which the two models of the estimate agree"""
    error: float | None
    """total variation between the estimate and the true frequencies"""


class JunkScreening(TypedDict):
    """The search for unlabeled images of no class."""

    share: float
    """estimated share of such images; 0 if there are too few to be sure"""
    drawn: float
    """mean weight with which unlabeled images are drawn: 1 if all are drawn alike"""
    auroc: float | None
    """how well it tells images that are known to be of no class from the others"""


class Compared(TypedDict):
    """Measures of one of the models that the guard compares."""

    accuracy: Share | None
    mean_per_class: Share | None
    worst20_percent: Share | None
    per_class: list[Share | None] | None


class GuardRecord(TypedDict):
    """The verdict of the guard, its evidence, and the measures of both models."""

    choice: Literal["blend", "labels_only"]
    reason: str
    disagreement: float
    limit: float
    growth: float
    grown: str | None
    left_out_accuracy: float | None
    labels: int
    labels_only: Compared
    self_trained: Compared
