"""The nearest rows of each row of a matrix by cosine similarity.

Knows nothing of what the rows are: features of images, of the user, or of a pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

CANDIDATES, CHUNK = 20_000, 1024
"""rows that are searched if there are more, and rows that are compared with all of them at once"""
COMPONENTS = 64
"""directions in which a few rows at a time are compared with the candidates"""


class Nearest(NamedTuple):
    """The nearest rows of each row, nearest first, and their cosine similarities; both (n, k)."""

    rows: Tensor
    likeness: Tensor


def candidate_rows(n: int, first: int = 0) -> Tensor:
    """Return the rows among which neighbours are searched: the first ones, and at most ``CANDIDATES`` of the others."""
    others = np.arange(n - first)
    if len(others) > CANDIDATES:
        others = np.sort(np.random.default_rng(0).choice(len(others), CANDIDATES, replace=False))
    return torch.from_numpy(np.concatenate([np.arange(first), first + others]))


def nearest_rows(values: Tensor, k: int, first: int = 0) -> Nearest:
    """Return the k nearest candidates of each row (fewer if there are fewer); a row is not its own neighbour."""
    unit = normalize(values, dim=1)
    n = len(unit)
    candidates = candidate_rows(n, first).to(values.device)
    k = min(k, len(candidates) - 1)
    near = torch.empty(n, k, dtype=torch.int64, device=values.device)
    likeness = torch.empty(n, k, dtype=unit.dtype, device=values.device)
    keys = unit[candidates].T
    for start in range(0, n, CHUNK):
        rows = torch.arange(start, min(start + CHUNK, n), device=values.device)
        all_pairs = unit[rows] @ keys
        all_pairs[rows[:, None] == candidates[None]] = -2
        likeness[rows], places = all_pairs.topk(k, dim=1)
        near[rows] = candidates[places]
    return Nearest(near, likeness)


class Search:
    """The nearest candidates of a few rows at a time, for more rows than it pays to compare beforehand.

    Rows are compared in the directions in which the candidates vary most.
    """

    def __init__(self, candidates: Tensor, values: Tensor):
        """``candidates`` are row numbers, and ``values`` these rows."""
        unit = normalize(values, dim=1)
        self.candidates, self.basis = candidates, principal_directions(unit, COMPONENTS)
        self.keys = project(unit, self.basis).T.contiguous()

    def __call__(self, rows: Tensor, values: Tensor, k: int) -> Tensor:
        """Return the k nearest candidates (n, k) of these rows; a row is not its own neighbour."""
        likeness = project(normalize(values, dim=1), self.basis) @ self.keys
        likeness[rows[:, None] == self.candidates[None]] = -2
        return self.candidates[likeness.topk(k, dim=1).indices]


def principal_directions(x: Tensor, count: int) -> Tensor:
    """Return the directions (dim, count) in which features vary most; empty if there are no more than count."""
    if not 0 < count < min(x.shape):
        return x.new_zeros(0)
    found: Tensor = torch.linalg.eigh(x.T @ x).eigenvectors
    return found[:, -count:].contiguous()


def project(x: Tensor, basis: Tensor) -> Tensor:
    """Return features in a basis, of unit length again; as they are if the basis is empty."""
    return normalize(x @ basis, dim=1) if len(basis) else x
