"""Cross-validation on labels: unlabeled rows are in every training part and in no test part.

Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from selftrain.estimator.inputs import value_errors

Rows = NDArray[np.int64]


class LabeledStratifiedKFold(StratifiedKFold):  # type: ignore[misc]
    """Stratified folds over the labeled rows; every training part also holds all unlabeled rows.

    Scores are thus computed on rows whose label is known, and self-training always has its pool.

    Parameters
    ----------
    n_splits : int, default=5
        The number of folds: at least 2, and at most the number of labels of the class with most labels.
    shuffle : bool, default=False
        Whether to shuffle the labeled rows of each class first.
    random_state : int, RandomState instance or None, default=None
        The order, with ``shuffle=True``.

    Examples
    --------
    >>> import numpy as np
    >>> from selftrain import LabeledStratifiedKFold
    >>> y = np.array([0, 1, -1, 0, 1, -1])
    >>> for train, test in LabeledStratifiedKFold(n_splits=2).split(y, y):
    ...     print(train, test)
    [2 3 4 5] [0 1]
    [0 1 2 5] [3 4]
    """

    def split(self, X: Any, y: Any, groups: Any = None) -> Iterator[tuple[Rows, Rows]]:
        """Yield the rows to train on and the labeled rows to test on, fold by fold.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            The rows; only their number matters.
        y : array-like of shape (n_samples,)
            Their labels; -1, None and NaN are unlabeled, as in ``DSTClassifier``.
        groups : object
            Ignored.

        Yields
        ------
        train : ndarray
            The labeled rows of the other folds, and all unlabeled rows.
        test : ndarray
            The labeled rows of this fold.
        """
        from selftrain.data.sources.labels import read_labels

        with value_errors():
            positions = read_labels(y, "y").positions
        labeled, unlabeled = np.flatnonzero(positions >= 0), np.flatnonzero(positions < 0)
        for train, test in super().split(np.empty(len(labeled)), positions[labeled]):
            yield np.sort(np.concatenate([labeled[train], unlabeled])), labeled[test]
