"""Labels that the user brings: lists, arrays, tensors and columns of tables, with unlabeled rows among them.

The one place that decides which values mean "unlabeled". Knows nothing of images, features or training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.errors import UserError

Array = NDArray[Any]
AS_TEXT = ("", "-1")
"""unlabeled among strings; NumPy turns -1 among strings into "-1" """
EXPECTED = "use integers from 0, or strings, and -1, None or NaN for unlabeled"


@dataclass(frozen=True)
class GivenLabels:
    """Labels as positions in their classes."""

    classes: Array
    """the values that occur, sorted, in their own type"""
    positions: NDArray[np.int64]
    """the class of each row; -1 if it is unlabeled"""


def read_labels(y: Any, argument: str) -> GivenLabels:
    """Return one label per row. Unlabeled are -1, None, NaN, NA and NaT, and among strings also ``""``."""
    values, missing = _values_and_missing(y, argument)
    known = values if values.dtype != object else _same_kind(values, argument)
    unlabeled = _marked(known, argument)
    classes, inverse = np.unique(known[~unlabeled], return_inverse=True)
    positions = np.full(len(missing), -1, np.int64)
    positions[np.flatnonzero(~missing)[~unlabeled]] = inverse
    return GivenLabels(classes, positions)


def _values_and_missing(y: Any, argument: str) -> tuple[Array, NDArray[np.bool_]]:
    """Return the values that are not missing, in their own type, and which rows are missing."""
    if hasattr(y, "is_null") and hasattr(y, "drop_nulls"):  # polars
        values, missing = np.asarray(y.drop_nulls().to_numpy()), np.array(y.is_null().to_numpy(), bool)
    elif hasattr(y, "isna") and hasattr(y, "dropna") and np.ndim(y) == 1:  # pandas
        values = np.asarray(y.dropna(), getattr(y.dtype, "numpy_dtype", None))
        missing = np.array(y.isna(), bool)
    else:
        values = _as_array(y, argument)
        missing = np.zeros(len(values), bool)
    more = _missing(values)
    missing[np.flatnonzero(~missing)[more]] = True
    return values[~more], missing


def _missing(values: Array) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype == object:
        return np.fromiter(map(_is_missing, values), bool, len(values))
    return np.zeros(len(values), bool)


def _as_array(y: Any, argument: str) -> Array:
    y = y.detach().cpu() if hasattr(y, "detach") else y  # a tensor
    try:
        array = np.asarray(y)
        if array.dtype.kind in "US" and isinstance(y, (list, tuple)):
            array = np.asarray(y, object)  # otherwise None and NaN become text
    except ValueError:
        raise UserError(f"{argument}: must be one label per image; got rows of different lengths.") from None
    if array.ndim != 1:
        raise UserError(f"{argument}: must be one label per image; got shape {array.shape}.")
    return array


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:  # the NA of pandas is neither true nor false
        return True


def _same_kind(values: Array, argument: str) -> Array:
    """Return objects as an array of integers or numbers; strings stay objects."""
    labels = [value for value in values.tolist() if not _is_mark(value)]
    text = [isinstance(value, str) for value in labels]
    if all(text):
        return values
    if any(text):
        raise UserError(f"{argument}: mixes integers and strings; use only one kind.")
    for value in labels:
        if not isinstance(value, (bool, int, float, np.number, np.bool_)):
            raise UserError(f"{argument}: {value!r} is not a label; {EXPECTED}.")
    return np.asarray(values.tolist())


def _is_mark(value: Any) -> bool:
    return value in AS_TEXT if isinstance(value, str) else bool(np.isscalar(value) and value == -1)


def _marked(known: Array, argument: str) -> NDArray[np.bool_]:
    """Return which values mean unlabeled, once it is clear that the others are labels."""
    kind = known.dtype.kind
    if kind == "O":
        return np.fromiter(map(_is_mark, known), bool, len(known))
    if kind == "U":
        if (known == "nan").any():
            raise UserError(
                f"{argument}: has 'nan' among its strings, which is how NumPy writes NaN there. For unlabeled rows use "
                f"'', or None in an array of type object."
            )
        return np.isin(known, AS_TEXT)
    odd = known[(known != np.rint(known)) | np.isinf(known)] if kind == "f" else known[:0]
    if len(odd):
        raise UserError(
            f"{argument}: must be integers or strings; got {known.dtype} with the value {odd[0]:g} (-1 and NaN mark "
            f"unlabeled images)."
        )
    if kind in "if":
        if (known < -1).any():
            raise UserError(f"{argument}: {known[known < -1][0]:g} is not a label; {EXPECTED}.")
        return np.asarray(known == -1)
    if kind not in "bumM":
        raise UserError(f"{argument}: {known.dtype} is no type of labels; {EXPECTED}.")
    return np.zeros(len(known), bool)
