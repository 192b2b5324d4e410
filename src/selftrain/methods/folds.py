"""Logistic regression on features, its predictions out of fold, and the temperature that calibrates them.

Knows nothing of networks or runs: arrays in, arrays out.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ABSENT = -1e4
"""the logit of a class without labels"""
CS, USUAL_C = (1.0, 10.0, 100.0), 10.0
TEMPERATURES = np.geomspace(0.05, 5, 93)


class Linear(NamedTuple):
    """Logits ``x @ weight.T + bias``."""

    weight: Array
    """(K, dim)"""
    bias: Array
    """(K,)"""

    def probabilities(self, x: Array) -> Array:
        """Return softmax(W x + b)."""
        return softmax(x @ self.weight.T + self.bias)


def softmax(z: Array) -> Array:
    z = np.exp(z - z.max(axis=1, keepdims=True))
    shares: Array = z / z.sum(axis=1, keepdims=True)
    return shares


def fit_logistic(x: Array, y: Array, classes: int, C: float = USUAL_C, weight: Array | None = None) -> Linear:
    """Return multinomial logistic regression with L2 penalty; classes without labels get the logit ``ABSENT``.

    C multiplies the sum of the losses, each times its ``weight``.
    """
    basis, z = _reduced(np.asarray(x, np.float64))
    return _expanded(_fit(z, y, classes, C, weight), basis)


def _reduced(x: Array) -> tuple[Array | None, Array]:
    """Return an orthonormal basis in which the weights lie, and x in it; no basis if there are no fewer dimensions."""
    if len(x) >= x.shape[1]:
        return None, x
    basis, triangle = np.linalg.qr(x.T)
    return basis, np.ascontiguousarray(triangle.T)


def _expanded(found: Linear, basis: Array | None) -> Linear:
    return found if basis is None else Linear(found.weight @ basis.T, found.bias)


def _fit(x: Array, y: Array, classes: int, C: float, weight: Array | None = None) -> Linear:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights, bias = np.zeros((classes, x.shape[1])), np.full(classes, ABSENT)
    present = np.unique(y)
    if len(present) < 2:
        bias[present] = 0.0
        return Linear(weights, bias)
    # tol is the largest gradient of the *mean* loss: 1e-3 would stop at weights of 0 with many classes
    model = LogisticRegression(C=C, tol=1e-5, max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y, sample_weight=weight)
    if len(present) == 2:  # scikit-learn has one logit for two classes
        weights[present[1]], bias[present] = model.coef_[0], (0.0, model.intercept_[0])
    else:
        weights[present], bias[present] = model.coef_, model.intercept_
    return Linear(weights, bias)


def assign_folds(y: Array, folds: int = 4, seed: int = 0) -> Array:
    """Return the fold of each label, 0 to folds - 1; -1 for the only label of a class, which cannot be held out.

    The labels of each class are dealt to the folds in random order, so that every fold leaves labels of every class.
    """
    if folds < 2:
        raise ValueError(f"folds={folds}: there must be at least 2")
    rng = np.random.default_rng(seed)
    fold, dealt = np.full(len(y), -1), 0
    for k in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == k))
        if len(rows) > 1:
            fold[rows] = (dealt + np.arange(len(rows))) % folds
            dealt += len(rows)
    return fold


def out_of_fold(
    x: Array, y: Array, classes: int, folds: int = 4, seed: int = 0, *, C: float = USUAL_C
) -> tuple[Array, Array]:
    """Return probabilities (n, K) of each label from logistic regression without its fold, and the folds.

    Labels that cannot be held out have fold -1 and NaN as probabilities; see ``assign_folds``.
    """
    fold = assign_folds(y, folds, seed)
    return _out_of_fold(_reduced(np.asarray(x, np.float64))[1], y, classes, fold, C), fold


def _out_of_fold(z: Array, y: Array, classes: int, fold: Array, C: float) -> Array:
    p = np.full((len(y), classes), np.nan)
    for i in np.unique(fold[fold >= 0]):
        mine = fold == i
        p[mine] = _fit(z[~mine], y[~mine], classes, C).probabilities(z[mine])
    return p


def negative_log_likelihood(p: Array, y: Array) -> float:
    """Return the mean of -log p_y over the rows that are not NaN."""
    right = p[np.arange(len(y)), y]
    return float(-np.log(np.maximum(right[~np.isnan(right)], 1e-12)).mean())


def choose_c(x: Array, y: Array, classes: int, folds: int = 4, seed: int = 0) -> float:
    """Return the C of ``CS`` with the best likelihood out of fold; 10 in a tie, or if no label can be held out."""
    fold = assign_folds(y, folds, seed)
    if (fold < 0).all():
        return USUAL_C
    z = _reduced(np.asarray(x, np.float64))[1]
    losses = {C: negative_log_likelihood(_out_of_fold(z, y, classes, fold, C), y) for C in CS}
    best = min(losses.values())
    return USUAL_C if losses[USUAL_C] <= best + 1e-6 else min(losses, key=lambda C: losses[C])


def choose_temperature(p: Array, y: Array) -> float:
    """Return the T from 0.05 to 5 for which softmax(log p / T) has the best likelihood; 1 if all rows are NaN."""
    known = ~np.isnan(p).any(axis=1)
    if not known.any():
        return 1.0
    z = np.log(np.maximum(p[known], 1e-12))
    return float(min(TEMPERATURES, key=lambda T: negative_log_likelihood(softmax(z / T), y[known])))
