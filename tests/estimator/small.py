"""A quick classifier, and a small pile of rows of three classes, for tests of the estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain import DSTClassifier
from tests.runs.feature_piles import K, features

METHOD = "dst(fixmatch, width=16)"
QUICK = {"train.batch": 16, "train.unlabeled_batch": 16, "network.bottleneck": 16}

Array = NDArray[Any]


def quick(method: Any = METHOD, **options: Any) -> DSTClassifier:
    """Return a classifier that is fitted in a fraction of a second."""
    settings = {**QUICK, **options.pop("settings", {})}
    return DSTClassifier(method, settings=settings, **{"steps": 20, "random_state": 0, **options})


def pile(labels: int = 6) -> tuple[Array, Array, Array]:
    """Return rows, labels of a few of them with -1 for the others, and the true class of every row."""
    x, truth = features(50, 40, 30)
    y = np.full(len(x), -1)
    for k in range(K):
        y[np.flatnonzero(truth == k)[:labels]] = k
    return x, y, truth
