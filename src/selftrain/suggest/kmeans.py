"""Centres of clusters by k-means: scikit-learn's algorithm, step by step, up to rounding.

Written here because loading scikit-learn takes a second, a third of the wait for the first suggestions of the labeling
page. Knows nothing of images or labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
CHUNK = 1 << 22
"""distances that are computed at a time"""
TOLERANCE = 1e-4
"""of the mean variance: the sum of squared shifts of the centres at which they are taken to be at rest"""


def kmeans_centres(x: Array, count: int, seed: int, iterations: int, weight: Array | None = None) -> Array:
    """Return at most ``iterations`` steps of Lloyd's algorithm (count, d) from centres of greedy k-means++."""
    values = torch.from_numpy(np.array(x, np.float32))
    mean = values.mean(dim=0)
    values -= mean
    w = torch.ones(len(values)) if weight is None else torch.from_numpy(np.asarray(weight, np.float32))
    centres = _lloyd(values, w, _plus_plus(values, w, count, np.random.RandomState(seed)), iterations)
    found: Array = (centres + mean).numpy()
    return found


def nearest_centres(x: Array, centres: Array) -> Array:
    """Return the number (n,) of the nearest centre of each row."""
    found: Array = _assigned(torch.from_numpy(np.asarray(x, np.float32)), torch.from_numpy(centres)).numpy()
    return found


def _plus_plus(x: Tensor, w: Tensor, count: int, random: np.random.RandomState) -> Tensor:
    """Return rows far from each other: each is the best of some that were drawn by weight and squared distance."""
    trials, norms, weight = 2 + int(np.log(count)), x.square().sum(dim=1), w.numpy()
    chosen = [int(random.choice(len(x), p=weight / weight.sum()))]
    closest = _squared(x[chosen], x, norms)[0]
    for _ in range(1, count):
        drawn = random.uniform(size=trials) * float(closest @ w)
        rows = np.searchsorted(np.cumsum(weight * closest.numpy()), drawn).clip(max=len(x) - 1)
        distance = torch.minimum(closest, _squared(x[torch.from_numpy(rows)], x, norms))
        best = int((distance @ w).argmin())
        closest = distance[best]
        chosen.append(int(rows[best]))
    return x[chosen]


def _squared(some: Tensor, x: Tensor, norms: Tensor) -> Tensor:
    """Return the squared distances (m, n) of some rows to all."""
    distance = torch.addmm(norms, some, x.T, alpha=-2)
    return distance.add_(some.square().sum(dim=1, keepdim=True)).clamp_(min=0)


def _assigned(x: Tensor, centres: Tensor) -> Tensor:
    norms, step = centres.square().sum(dim=1), max(1, CHUNK // len(centres))
    return torch.cat([torch.addmm(norms, part, centres.T, alpha=-2).argmin(dim=1) for part in torch.split(x, step)])


def _lloyd(x: Tensor, w: Tensor, centres: Tensor, iterations: int) -> Tensor:
    tolerance = TOLERANCE * float(x.var(dim=0, correction=0).mean())
    weighted, before = x * w[:, None], None
    for _ in range(iterations):
        of = _assigned(x, centres)
        size = torch.zeros(len(centres)).index_add_(0, of, w)
        total = torch.zeros_like(centres).index_add_(0, of, weighted)
        _fill_empty(x, w, centres, of, size, total)
        moved = torch.where(size[:, None] > 0, total / size.clamp(min=1e-30)[:, None], centres[size.argmax()])
        shift = float((moved - centres).square().sum())
        centres = moved
        if (before is not None and torch.equal(of, before)) or shift <= tolerance:
            break
        before = of
    return centres


def _fill_empty(x: Tensor, w: Tensor, centres: Tensor, of: Tensor, size: Tensor, total: Tensor) -> None:
    """Move clusters without rows to the rows that are farthest from their centres; sizes and sums are changed."""
    empty = torch.nonzero(size == 0)[:, 0].tolist()
    if not empty:
        return
    distance = (x - centres[of]).square().sum(dim=1)
    if not float(distance.max()):
        return
    for k, row in zip(empty, distance.topk(len(empty)).indices.tolist(), strict=True):
        old = int(of[row])
        total[old] -= x[row] * w[row]
        size[old] -= w[row]
        total[k], size[k] = x[row] * w[row], w[row]
