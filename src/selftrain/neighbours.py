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
MANY, GROUP = 4096, 16
"""columns from which the largest are searched in groups, and columns of a group"""


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
    own = torch.full((n,), -1, device=values.device)  # the place of a row among the candidates
    own[candidates] = torch.arange(len(candidates), device=values.device)
    buffer = unit.new_empty(min(CHUNK, n), len(candidates))  # fresh memory for each chunk would cost page faults
    for start in range(0, n, CHUNK):
        rows = slice(start, min(start + CHUNK, n))
        all_pairs = torch.mm(unit[rows], keys, out=buffer[: rows.stop - start])
        among = torch.nonzero(own[rows] >= 0)[:, 0]
        all_pairs[among, own[rows][among]] = -2
        likeness[rows], places = largest(all_pairs, k)
        near[rows] = candidates[places]
    return Nearest(near, likeness)


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row, largest first, and their columns, as ``topk`` does.

    In wide rows, only the k groups of columns with the largest maxima are searched: no other group holds one of the k
    largest values.
    """
    width = x.shape[1] // GROUP
    if x.shape[1] < MANY or k > width:
        values, places = x.topk(k, dim=1)
        return values, places
    grouped = width * GROUP
    best = x[:, :grouped].view(len(x), GROUP, width).amax(dim=1).topk(k, dim=1, sorted=False).indices
    columns = (best[:, None] + torch.arange(0, grouped, width, device=x.device)[:, None]).flatten(1)
    rest = torch.arange(grouped, x.shape[1], device=x.device).expand(len(x), -1)
    columns = torch.cat([columns, rest], dim=1)
    values, places = x.gather(1, columns).topk(k, dim=1)
    return values, columns.gather(1, places)
