"""``LabelQuery``: which rows to label next, with the interface of scikit-activeml's query strategies.

Knows nothing of how rows are ranked: it checks X and y, asks a classifier, and passes them on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from selftrain.errors import UserError
from selftrain.estimator.inputs import dense, read_rows, seed_of, value_errors

Array = NDArray[Any]


class LabelQuery(BaseEstimator):  # type: ignore[misc]
    """Query strategy for active learning: the rows whose labels would help most.

    Before there are labels of two classes, these are typical rows that cover the data (TypiClust). After that, they are
    rows on which models disagree or are unsure, of classes with few labels, spread over clusters, and rows that look
    like none of the classes.

    Parameters
    ----------
    random_state : int, RandomState instance, Generator or None, default=None
        Seed of the clusters over which rows are spread.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from selftrain import LabelQuery
    >>> X, truth = load_digits(return_X_y=True)
    >>> y = np.full(len(X), -1)
    >>> rows = LabelQuery(random_state=0).query(X, y, batch_size=20)
    >>> len(rows), len(np.unique(truth[rows]))
    (20, 10)
    >>> y[rows] = truth[rows]
    >>> more = LabelQuery(random_state=0).query(X, y, batch_size=10)
    >>> bool(np.isin(more, rows).any())
    False
    """

    def __init__(self, random_state: Any = None) -> None:
        self.random_state = random_state

    def query(
        self,
        X: Any,
        y: Any,
        clf: Any = None,
        candidates: Any = None,
        batch_size: int = 1,
        return_utilities: bool = False,
    ) -> Any:
        """Return the rows to label next.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            All rows, labeled or not.
        y : array-like of shape (n_samples,)
            Their labels; -1, None and NaN are unlabeled.
        clf : classifier, default=None
            A fitted classifier with ``predict_proba``, such as ``DSTClassifier``. By default, a quick model is fitted
            to the labels.
        candidates : array-like of int, default=None
            Rows that may be chosen; by default all unlabeled ones.
        batch_size : int, default=1
            Number of rows; fewer are returned if there are fewer candidates.
        return_utilities : bool, default=False
            Also return the utilities.

        Returns
        -------
        query_indices : ndarray of shape (batch_size,)
            Rows of X, the most useful first.
        utilities : ndarray of shape (batch_size, n_samples)
            With ``return_utilities``: how much a label of each row would help; NaN for rows that could not be chosen.
        """
        from selftrain.suggest.choose import LEFT_OUT, UNLABELED, choose
        from selftrain.suggest.pool import Pool

        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r}: expected an integer of at least 1.")
        with value_errors():
            rows = dense(read_rows(self, X, reset=True))
            rows = rows if rows.ndim == 2 else rows[:, 0]
            labels, classes = _positions(y, len(rows), clf)
        if candidates is not None:
            allowed = np.zeros(len(rows), bool)
            allowed[np.asarray(candidates, np.int64)] = True
            labels[(labels == UNLABELED) & ~allowed] = LEFT_OUT
        pool = Pool.of(np.asarray(rows, np.float32))
        answers = _answers(pool, labels, len(classes), clf, X)
        seed = seed_of(self.random_state)
        chosen = choose(pool, labels, int(batch_size), classes=classes, answers=answers, seed=seed % 2**32)
        found = np.array([choice.row for choice in chosen], np.int64)
        if not return_utilities:
            return found
        return found, _utilities(pool, labels, answers, found)


def _positions(y: Any, n: int, clf: Any) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels as positions in the classes, -1 for unlabeled rows, and the names of the classes."""
    from selftrain.data.sources.labels import read_labels

    found = read_labels(y, "y")
    if len(found.positions) != n:
        raise UserError(f"y has {len(found.positions)} labels and X has {n} rows.")
    values = found.classes.tolist()
    if clf is None:
        return found.positions, [str(value) for value in values]
    order = list(np.asarray(clf.classes_).tolist())
    unknown = next((value for value in values if value not in order), None)
    if unknown is not None:
        raise UserError(f"y has the label {unknown!r}, which `clf` was not fitted to.")
    place = np.array([*(order.index(value) for value in values), -1], np.int64)
    return place[found.positions], [str(value) for value in order]


def _answers(pool: Any, labels: Array, classes: int, clf: Any, X: Any) -> Any:
    from selftrain.suggest.quick import Answers, quick_answers

    if len(np.unique(labels[labels >= 0])) < 2:
        return None
    quick = quick_answers(pool, labels, classes)
    if clf is None:
        return quick
    p = np.asarray(clf.predict_proba(X))
    return Answers(p, (p.argmax(axis=1) != quick.p.argmax(axis=1)).astype(float))


def _utilities(pool: Any, labels: Array, answers: Any, found: Array) -> Array:
    from selftrain.suggest.choose import UNLABELED
    from selftrain.suggest.ranking import usefulness

    value = pool.density.astype(float) if answers is None else usefulness(pool, labels, answers)
    value = np.where(labels == UNLABELED, value, np.nan)
    table = np.repeat(value[None], len(found), axis=0)
    for i in range(1, len(found)):
        table[i, found[:i]] = np.nan
    return table
