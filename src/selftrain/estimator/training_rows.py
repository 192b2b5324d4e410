"""The probabilities of the rows that a classifier was fitted to, computed at most once.

Knows nothing of how a model predicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from selftrain.runs.in_memory import Fitted

Probabilities = NDArray[np.float32]


class Predicts(Protocol):
    def _probabilities(self, rows: Any) -> Iterator[NDArray[Any]]: ...


class TrainingRows:
    """The rows X until their probabilities are known; then only these."""

    def __init__(self, X: Any, positions: NDArray[np.int64], classes: int):
        self.X, self.positions, self.classes = X, positions, classes
        self.known: Probabilities | None = None

    @classmethod
    def of(cls, X: Any, positions: NDArray[np.int64], fitted: Fitted) -> TrainingRows:
        """Return the training rows of a fit, which has computed the probabilities of some or all of them."""
        rows = cls(X, positions, len(fitted.card.classes))
        if np.array_equal(fitted.rows, np.arange(len(positions))):
            rows._keep(fitted.probabilities)
        return rows

    def probabilities(self, classifier: Predicts) -> Probabilities:
        """Return the probabilities (n, K) of the rows, 1 for a given label."""
        if self.known is None:
            if self.X is None:
                raise AttributeError(
                    f"The labels of the {len(self.positions):,} training rows were not used before the classifier was "
                    "pickled, and are lost. Call predict_proba with the same rows."
                )
            p, done = np.empty((len(self.positions), self.classes), np.float32), 0
            for part in classifier._probabilities(self.X):
                p[done : done + len(part)] = part
                done += len(part)
            self._keep(p)
        assert self.known is not None
        return self.known

    def _keep(self, p: Probabilities) -> None:
        labeled = np.flatnonzero(self.positions >= 0)
        p[labeled] = 0
        p[labeled, self.positions[labeled]] = 1
        self.known, self.X = p, None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "X": None}  # a pickle must not hold the training data
