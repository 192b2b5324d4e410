"""Labels of any kind: which values mean unlabeled, and that the others keep their type."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from selftrain.data.sources.labels import read_labels
from selftrain.errors import UserError

NAN, NOTHING = float("nan"), None


@pytest.mark.parametrize(
    ("y", "classes", "positions"),
    [
        ([2, -1, 0], np.array([0, 2]), [1, -1, 0]),
        (np.array([2, 7, 2], np.uint8), np.array([2, 7], np.uint8), [0, 1, 0]),
        (np.array([2, -1, 0], np.int8), np.array([0, 2], np.int8), [1, -1, 0]),
        (np.array([1.0, NAN, -1.0, 0.0], np.float32), np.array([0, 1], np.float32), [1, -1, -1, 0]),
        (np.array([True, False]), np.array([False, True]), [1, 0]),
        ([True, None, False], np.array([False, True]), [1, -1, 0]),
        ([1, None, 0, NAN], np.array([0, 1]), [1, -1, 0, -1]),
        ([1, None, 0, -1], np.array([0, 1]), [1, -1, 0, -1]),
        (["b", "", "a"], np.array(["a", "b"], object), [1, -1, 0]),
        (["b", NAN, "a", None, -1], np.array(["a", "b"], object), [1, -1, 0, -1, -1]),
        (np.array(["b", "", "a", "-1"]), np.array(["a", "b"], "U2"), [1, -1, 0, -1]),
        (np.array(["b", pd.NA, "a", pd.NaT], object), np.array(["a", "b"], object), [1, -1, 0, -1]),
        (torch.tensor([3, -1, 1]), np.array([1, 3]), [1, -1, 0]),
        (np.array(["2026-01-02", "NaT", "2026-01-01"], "M8[D]"), np.array(["2026-01-01", "2026-01-02"], "M8[D]"),
         [1, -1, 0]),
        (pd.Series([3, None, 1], dtype="Int64"), np.array([1, 3]), [1, -1, 0]),
        (pd.Series([3, -1, 1], dtype="Int16"), np.array([1, 3], np.int16), [1, -1, 0]),
        (pd.Series([1.0, None, 0.0]), np.array([0.0, 1.0]), [1, -1, 0]),
        (pd.Series([True, None, False], dtype="boolean"), np.array([False, True]), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype="string"), np.array(["a", "b"], object), [1, -1, 0]),
        (pd.Series(["b", NAN, "a", ""]), np.array(["a", "b"], object), [1, -1, 0, -1]),
        (pd.Series(["b", None, "a"], dtype="category"), np.array(["a", "b"], object), [1, -1, 0]),
        (pd.Categorical([3, None, 1]), np.array([1, 3]), [1, -1, 0]),
        (pd.Series(["b", None, "a"], dtype="string[pyarrow]"), np.array(["a", "b"], object), [1, -1, 0]),
        (pl.Series([3, None, 1]), np.array([1, 3]), [1, -1, 0]),
        (pl.Series(["b", None, "a", ""]), np.array(["a", "b"], object), [1, -1, 0, -1]),
        (pl.Series([1.0, None, NAN, 0.0]), np.array([0.0, 1.0]), [1, -1, -1, 0]),
        (pl.Series([True, None, False]), np.array([False, True]), [1, -1, 0]),
        (pl.Series(["b", None, "a"], dtype=pl.Categorical), np.array(["a", "b"], object), [1, -1, 0]),
        ([-1, None, NAN], np.array([]), [-1, -1, -1]),
        ([None, None], np.array([]), [-1, -1]),
    ],
)  # fmt: skip
def test_labels_keep_their_type(y: Any, classes: np.ndarray, positions: list[int]) -> None:
    found = read_labels(y, "y")
    assert found.positions.tolist() == positions
    assert found.classes.tolist() == classes.tolist()
    assert found.classes.dtype == classes.dtype or not len(classes)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([[0, 1]], r"y: must be one label per image; got shape \(1, 2\)"),
        ([[0, 1], [1]], "got rows of different lengths"),
        ([0, -2], "-2 is not a label"),
        ([0.0, 0.5], "got float64 with the value 0.5"),
        ([0.0, np.inf], "got float64 with the value inf"),
        (["a", 1], "mixes integers and strings"),
        ([datetime.date(2026, 1, 1)], "is not a label"),
        (np.array([1j]), "complex128 is no type of labels"),
        (np.array(["a", NAN]), "has 'nan' among its strings"),
    ],
)
def test_what_is_no_label(y: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_labels(y, "y")
