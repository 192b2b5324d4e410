"""X and y of an estimator, checked as scikit-learn does, without a copy of large arrays.

Knows nothing of training. X may be an array, a memory map, a tensor, a table or a sparse matrix.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from selftrain.errors import UserError, UserValueError

Array = NDArray[Any]
NOTED, LARGEST = 1 << 28, 1 << 32
"""bytes of a sparse matrix as a dense array: above the first there is a warning, above the second an error"""
SEEDS = 2**32
"""a seed is smaller than this"""


@contextmanager
def value_errors() -> Iterator[None]:
    """Inside, errors that the user can fix are ``ValueError``s as well."""
    try:
        yield
    except ValueError:
        raise
    except UserError as error:
        raise UserValueError(str(error)) from None


def read_rows(estimator: BaseEstimator, X: Any, *, reset: bool) -> Any:
    """Return X as an array (n, dim) or (n, views, dim), or as a sparse matrix, whose numbers are finite.

    With ``reset``, remember the number and the names of the features; otherwise compare them with the remembered ones.
    """
    X = _without_torch(X)
    if getattr(X, "ndim", None) == 3:
        X = X if isinstance(X, np.memmap) else check_array(X, allow_nd=True, ensure_all_finite=False, input_name="X")
        if not X.shape[1]:
            raise ValueError(f"Found array with 0 view(s) (shape={X.shape}) while a minimum of 1 is required.")
        validate_data(estimator, X[:, 0], ensure_all_finite=False, reset=reset)
        rows = X
    else:
        checked = validate_data(estimator, X, accept_sparse="csr", ensure_all_finite=False, reset=reset)
        rows = X if isinstance(X, np.memmap) and X.dtype.kind in "biuf" else checked
    _check_finite(rows)
    return rows


def _without_torch(X: Any) -> Any:
    """Return a tensor as an array; anything else is returned as it is."""
    if not hasattr(X, "detach"):
        return X
    X = X.detach().cpu()
    return (X.float() if str(X.dtype) == "torch.bfloat16" else X).numpy()


def _check_finite(rows: Any) -> None:
    from selftrain.data.features.rows import not_finite

    bad = not_finite(rows.data[:, None] if sparse.issparse(rows) else rows)
    if bad and sparse.issparse(rows):
        raise UserValueError(f"Input X contains NaN or infinity in {len(bad)} of its stored values.")
    if bad:
        raise UserValueError(
            f"Input X contains NaN or infinity (as float32): {len(bad)} of {len(rows)} rows, the first is row {bad[0]}."
        )


def dense(rows: Any) -> Any:
    """Return a sparse matrix as an array of float32, if it fits into memory; an array is returned as it is."""
    if not sparse.issparse(rows):
        return rows
    nbytes = 4 * rows.shape[0] * rows.shape[1]
    in_words = f"X is sparse; as an array of {rows.shape[0]:,} x {rows.shape[1]:,} it takes {nbytes / 2**30:.1f} GB"
    advice = "Reduce it first, for example with TruncatedSVD in a Pipeline"
    if nbytes > LARGEST:
        raise UserValueError(f"{in_words}, more than {LARGEST / 2**30:.0f} GB. {advice}.")
    if nbytes > NOTED:
        warnings.warn(f"{in_words} of memory. {advice} if that is too much.", stacklevel=4)
    return np.asarray(rows.astype(np.float32).toarray())


def read_targets(estimator: BaseEstimator, y: Any, rows: Any) -> Any:
    """Return the labels of the rows, as ``read_labels`` does."""
    from selftrain.data.sources.labels import read_labels

    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    y = _one_column(y)
    if getattr(y, "dtype", None) is not None and getattr(y.dtype, "kind", "") == "f":
        check_classification_targets(np.asarray(y)[np.isfinite(np.asarray(y))])
    found = read_labels(y, "y")
    check_consistent_length(rows, found.positions)
    if len(found.classes) < 2:
        have = f"only one class ({found.classes[0]})" if len(found.classes) else "no labeled row"
        raise UserValueError(f"y: {have}; at least two classes are needed (-1, None and NaN mark unlabeled rows).")
    return found


def _one_column(y: Any) -> Any:
    """Return the only column of a table or of an array (n, 1), with scikit-learn's warning."""
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) != 2 or shape[1] != 1:
        return y
    message = "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,)."
    warnings.warn(message, DataConversionWarning, stacklevel=4)
    if hasattr(y, "iloc"):
        return y.iloc[:, 0]
    return y.to_series(0) if hasattr(y, "to_series") else np.asarray(y)[:, 0]


def seed_of(random_state: Any) -> int:
    """Return the seed of a fit: an integer as it is, a draw from a generator, or a new one for None."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(SEEDS))
    return int(check_random_state(random_state).randint(SEEDS, dtype=np.uint32))
