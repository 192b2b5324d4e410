"""How much a label of each image would help: doubt, density, and the need of the class that it seems to be.

Knows nothing of images: it is given the answers of models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.suggest.pool import Pool
from selftrain.suggest.quick import Answers

Array = NDArray[Any]
DISAGREEMENT = 0.5
"""weight of the disagreement of two models beside that of a small margin"""
DENSITY = 0.5
"""power of the density: odd images teach little about others"""


def margins(p: Array) -> Array:
    """Return the difference (n,) between the two highest probabilities; 1 if there is a single class."""
    if p.shape[1] < 2:
        return np.ones(len(p))
    top = np.partition(p, -2, axis=1)[:, -2:]
    margin: Array = top[:, 1] - top[:, 0]
    return margin


def class_need(labels: Array, p: Array) -> Array:
    """Return the need (K,) for labels of each class: the fewer labels, the higher; 1 on the mean over the pool."""
    count = np.bincount(labels[labels >= 0], minlength=p.shape[1])
    need = 1 / (count + 1.0)
    relative: Array = need / need[p.argmax(axis=1)].mean()
    return relative


def usefulness(pool: Pool, labels: Array, answers: Answers) -> Array:
    """Return how much a label of each image (n,) would help."""
    doubt = (1 - DISAGREEMENT) * (1 - margins(answers.p)) + DISAGREEMENT * answers.disagree
    need = class_need(labels, answers.p)[answers.p.argmax(axis=1)]
    useful: Array = doubt * pool.density**DENSITY * need
    return useful
