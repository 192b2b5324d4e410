"""Paired comparison of two rows of a bench: the same dataset, variant and draw of the labels, with and without.

Knows nothing of tables or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.bench.cells import Cell
from selftrain.bench.table import metric_of

EXACT = 16
"""pairs up to which all signs are tried; with more, as many are drawn"""


@dataclass(frozen=True)
class Paired:
    """Differences of one row to another, in points, one per pair."""

    differences: tuple[float, ...]

    @property
    def wins(self) -> int:
        return sum(d > 0 for d in self.differences)

    @property
    def losses(self) -> int:
        return sum(d < 0 for d in self.differences)

    @property
    def mean(self) -> float:
        return fmean(self.differences)

    @property
    def p(self) -> float:
        """The two-sided p-value of a sign-flip test: how often random signs give a mean at least as far from zero.

        Draws on several datasets count as independent pairs. n pairs cannot give less than 2 / 2^n.
        """
        d = np.array(self.differences)
        means = np.abs(_signs(len(d)) @ d)
        return float(np.mean(means >= abs(d.sum()) - 1e-9))


def _signs(n: int) -> NDArray[np.float64]:
    if n <= EXACT:
        return np.asarray(1.0 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1), np.float64)
    return np.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (2**EXACT, n)), np.float64)


def compare(runs: Mapping[Cell, Mapping[str, Any]], row: str, baseline: str) -> Paired | None:
    """Return the differences of a row to its baseline over all pairs for which both have results; None without any."""
    scores: dict[str, dict[tuple[str, str, int], float]] = {row: {}, baseline: {}}
    for cell, run in runs.items():
        value = run.get(metric_of(run))
        if cell.row.name in scores and value is not None:
            scores[cell.row.name][cell.dataset, cell.variant, cell.seed] = 100 * float(value)
    pairs = sorted(scores[row].keys() & scores[baseline].keys())
    return Paired(tuple(scores[row][key] - scores[baseline][key] for key in pairs)) if pairs else None
