"""A model of the labels that takes a second: logistic regression and graph diffusion on the same features.

Suggestions use it where no trained model is at hand. Knows nothing of images or runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.methods.diffusion import Diffusion, diffuse, normalised
from selftrain.methods.folds import fit_logistic
from selftrain.methods.graph import adjacency, shares
from selftrain.neighbours import Nearest
from selftrain.suggest.pool import Pool

Array = NDArray[Any]
GRAPH = Diffusion()


@dataclass(frozen=True, eq=False)
class Answers:
    """What models say about each image of a pool."""

    p: Array
    """(n, K) probabilities"""
    disagree: Array
    """(n,) how much two models of the same labels disagree on the class, 0 to 1"""
    novelty: Array | None = None
    """(n,) above 0.5, an image looks like none of the classes"""


def quick_answers(pool: Pool, labels: Array, classes: int) -> Answers:
    """Return the mean probabilities of logistic regression and diffusion; labels (n,) are -1 where unknown."""
    known = np.flatnonzero(labels >= 0)
    y = labels[known]
    logistic = fit_logistic(pool.unit(known), y, classes)
    linear = np.concatenate([logistic.probabilities(part) for part in pool.units()])
    k = min(GRAPH.k, pool.near.shape[1])
    graph = Nearest(torch.from_numpy(pool.near[:, :k]), torch.from_numpy(pool.likeness[:, :k]))
    start = np.zeros((len(pool), classes))
    start[known, y] = 1 / np.bincount(y, minlength=classes)[y]
    present = np.unique(y)
    spread = np.zeros((len(pool), classes))
    spread[:, present] = diffuse(normalised(adjacency(graph, GRAPH.gamma)), start[:, present], GRAPH.alpha)
    diffused = shares(spread)
    diffused[known] = start[known] > 0
    return Answers((linear + diffused) / 2, linear.argmax(axis=1) != diffused.argmax(axis=1))
