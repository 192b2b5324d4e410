"""Every kind of X and y that DSTClassifier takes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse

from selftrain.data.features import rows as feature_rows
from selftrain.data.features.mapped import place_in_file
from selftrain.data.features.rows import RowNames, chunks, not_finite
from selftrain.estimator import inputs
from tests.estimator.small import Array, pile, quick


def mapped(array: Array, path: Path) -> Array:
    """Return an array as a memory map of a ``.npy`` file."""
    np.save(path, array)
    found: Array = np.load(path, mmap_mode="r")
    return found


def frame(x: Array) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])


KINDS: dict[str, Any] = {
    "float64": lambda x: x.astype(np.float64),
    "fortran": np.asfortranarray,
    "big-endian": lambda x: x.astype(">f4"),
    "long double": lambda x: x.astype(np.longdouble),
    "list": lambda x: x.tolist(),
    "tensor": torch.from_numpy,
    "tensor with gradient": lambda x: torch.from_numpy(x).requires_grad_(),
    "pandas": frame,
    "nullable pandas": lambda x: frame(x).astype("Float32"),
    "polars": lambda x: pl.DataFrame({f"f{i}": column for i, column in enumerate(x.T)}),
    "csr": sparse.csr_matrix,
    "csc array": sparse.csc_array,
    "coo": sparse.coo_matrix,
    "read-only": lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    "one view": lambda x: x[:, None],
}


@pytest.fixture(scope="module")
def expected() -> Array:
    x, y, _ = pile()
    return np.asarray(quick().fit(x, y).predict_proba(x))


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_rows(kind: str, expected: Array) -> None:
    x, y, _ = pile()
    rows = KINDS[kind](x)
    clf = quick().fit(rows, y)
    assert clf.n_features_in_ == x.shape[1]
    assert np.allclose(clf.predict_proba(rows), expected, atol=1e-5)
    assert np.allclose(clf.predict_proba(x) if not hasattr(clf, "feature_names_in_") else expected, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint16, np.int64, bool])
def test_types_of_numbers(dtype: Any) -> None:
    x, y, _ = pile()
    x = (10 * np.abs(x)).astype(dtype) if dtype is not bool else x > 1
    p = quick().fit(x, y).predict_proba(x)
    assert np.allclose(p, quick().fit(x.astype(np.float32), y).predict_proba(x), atol=1e-5)


def test_bfloat16() -> None:
    x, y, truth = pile()
    clf = quick(steps=60).fit(torch.from_numpy(x).bfloat16(), y)
    assert clf.score(torch.from_numpy(x).bfloat16(), truth) > 0.9


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_memory_maps_are_not_loaded(
    dtype: Any, expected: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = pile()
    x = x.astype(dtype)
    p = quick().fit(x, y).predict_proba(x)
    monkeypatch.setattr(feature_rows, "CHUNK", 1000)
    rows = mapped(x, tmp_path / "x.npy")
    clf = quick().fit(rows, y)
    assert np.allclose(clf.predict_proba(rows), p, atol=1e-4)
    part = quick().fit(rows[3:], y[3:])  # a part of a map is read from its place in the file
    assert np.allclose(part.predict_proba(rows), quick().fit(x[3:], y[3:]).predict_proba(x), atol=1e-4)


def test_a_large_memory_map_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_rows, "CHUNK", 1 << 20)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 100_000)
    x = rng.standard_normal((len(truth), 60), np.float32)
    x[np.arange(len(x)), truth] += 10
    y = np.where(np.arange(len(x)) < 30, truth, -1)
    rows = mapped(x, tmp_path / "x.npy")
    tracemalloc.start()
    clf = quick(settings={"train.guard": "none", "data.screen": False, "data.prior": "labels"}).fit(rows, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 2
    assert clf.score(rows[:500], truth[:500]) > 0.9


def test_places_of_arrays_in_files(tmp_path: Path) -> None:
    x = np.arange(60.0).reshape(10, 6)
    rows = mapped(x, tmp_path / "x.npy")
    for part in (rows, rows[3:], rows[:, None], rows[2:5][1:], np.asarray(rows)):
        place = place_in_file(part)
        assert place is not None
        found = np.fromfile(place.name, np.float64, part.size, offset=place.offset)
        assert (found == np.asarray(part).ravel()).all()
        assert (np.concatenate([piece for _, piece in chunks(part)]) == part).all()
    private: Array = np.load(tmp_path / "x.npy", mmap_mode="c")
    for other in (rows[:, 2:], rows[::2], x, rows + 1, private):
        assert place_in_file(other) is None
    (tmp_path / "x.npy").unlink()  # a map outlives its file
    assert place_in_file(rows) is None
    assert (np.concatenate([piece for _, piece in chunks(rows)]) == x).all()


def test_rows_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_rows, "CHUNK", 100)
    x = np.ones((50, 4), np.float64)
    assert not_finite(x) == []
    x[3, 0], x[40, 3] = np.nan, 1e300
    assert not_finite(x) == [3, 40]
    assert not_finite(mapped(x, tmp_path / "x.npy")) == [3, 40]
    assert not_finite(np.full((2, 2), 7)) == []
    assert list(RowNames(11)[:2]) == ["00", "01"]
    assert RowNames(11)[-1] == "10"
    assert len(list(RowNames(11))) == 11


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_x_must_be_finite(bad: float) -> None:
    x, y, _ = pile()
    clf = quick().fit(x, y)
    broken = x.astype(np.float64)
    broken[7, 2] = bad
    with pytest.raises(ValueError, match=r"contains NaN or infinity .*: 1 of 120 rows, the first is row 7"):
        clf.predict(broken)
    with pytest.raises(ValueError, match="contains NaN or infinity"):
        quick().fit(broken, y)
    with pytest.raises(ValueError, match="1 of its stored values"):
        quick().fit(sparse.csr_array(broken), y)


def test_several_views_per_row() -> None:
    x, y, truth = pile()
    rng = np.random.default_rng(0)
    views = np.stack([x, *(x + 0.3 * rng.standard_normal(x.shape).astype(np.float32) for _ in range(3))], axis=1)
    clf = quick(steps=60).fit(views, y)
    assert clf.n_features_in_ == x.shape[1]
    assert clf.score(x, truth) > 0.9
    assert (clf.predict_proba(views) == clf.predict_proba(x)).all()
    other = quick(steps=60).fit(np.stack([x, *[np.zeros_like(x)] * 3], axis=1), y)  # the other views are trained on
    assert (other.predict_proba(x) != clf.predict_proba(x)).any()
    with pytest.raises(ValueError, match="0 view"):
        quick().fit(views[:, :0], y)
    with pytest.raises(ValueError, match="expecting 12 features"):
        clf.predict(views[:, :, 1:])
    with pytest.raises(ValueError, match="dim 4"):
        clf.predict(views[None])


def test_names_of_features_are_compared() -> None:
    x, y, _ = pile()
    clf = quick().fit(frame(x), y)
    assert clf.feature_names_in_.tolist() == [f"f{i}" for i in range(x.shape[1])]
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(frame(x).rename(columns={"f0": "g0"}))
    table = pl.DataFrame({f"f{i}": column for i, column in enumerate(x.T)})
    assert quick().fit(table, y).feature_names_in_.tolist() == clf.feature_names_in_.tolist()


def test_large_sparse_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = pile()
    monkeypatch.setattr(inputs, "NOTED", 1000)
    with pytest.warns(UserWarning, match="X is sparse; as an array of 120 x 12 it takes 0.0 GB"):
        clf = quick().fit(sparse.csr_array(x), y)
    monkeypatch.setattr(inputs, "LARGEST", 2000)
    with pytest.raises(ValueError, match=r"more than 0 GB. Reduce it first, for example with TruncatedSVD"):
        quick().fit(sparse.csr_array(x), y)
    assert clf.predict(sparse.csr_array(x)).shape == (len(x),)  # in parts


LABELS: dict[str, Any] = {
    "strings": lambda y: np.array(["ant", "bee", "cow"], object)[y],
    "text": lambda y: np.array(["ant", "bee", "cow"])[y],
    "numbers": lambda y: np.array([2.0, 5.0, 7.0])[y],
    "small integers": lambda y: np.array([2, 5, 7], np.int8)[y],
}
MISSING: dict[str, Any] = {"strings": (None, np.nan, "", pd.NA), "text": ("",), "numbers": (-1, np.nan),
                           "small integers": (-1,)}  # fmt: skip


@pytest.mark.parametrize("kind", LABELS)
def test_labels_come_back_as_they_were(kind: str) -> None:
    x, y, truth = pile()
    labels = LABELS[kind](truth)
    for missing in MISSING[kind]:
        given = labels.copy()
        given[y < 0] = missing
        clf = quick(steps=60).fit(x, given)
        assert clf.classes_.tolist() == np.unique(labels).tolist()
        for found in (clf.classes_, clf.predict(x), clf.transduction_):
            assert found.dtype == labels.dtype
        assert (clf.predict(x) == labels).mean() > 0.9
        assert clf.score(x, labels) > 0.9


@pytest.mark.parametrize(
    "make",
    [
        lambda y: pd.Series(y, dtype="Int64").where(y >= 0),
        lambda y: pl.Series([None if k < 0 else int(k) for k in y]),
        lambda y: torch.from_numpy(y),
        lambda y: pd.Series(y, index=np.arange(len(y))[::-1]),  # by position, not by index
        lambda y: y.tolist(),
    ],
)
def test_columns_and_tensors_of_labels(make: Any, expected: Array) -> None:
    x, y, _ = pile()
    clf = quick().fit(x, make(y))
    assert clf.predict(x).dtype == np.int64
    assert np.allclose(clf.predict_proba(x), expected)


def test_booleans_and_categories() -> None:
    x, y, truth = pile()
    two = truth < 2
    clf = quick(steps=60).fit(x[two], truth[two] == 1)
    assert clf.predict(x).dtype == bool
    kinds = pd.Series(pd.Categorical.from_codes(y, ["ant", "bee", "cow"]))
    assert quick(steps=60).fit(x, kinds).score(x, np.array(["ant", "bee", "cow"])[truth]) > 0.9


def test_a_column_vector_is_flattened_with_a_warning(expected: Array) -> None:
    x, y, _ = pile()
    for column in (y[:, None], pd.DataFrame({"y": y}), pl.DataFrame({"y": y})):
        with pytest.warns(match="A column-vector y was passed"):
            assert np.allclose(quick().fit(x, column).predict_proba(x), expected)


def test_what_y_cannot_be() -> None:
    x, y, _ = pile()
    for wrong, words in (
        (y[:-1], "inconsistent numbers of samples"),
        (np.linspace(0, 1, len(y)), "Unknown label type: continuous"),
        (np.where(y < 0, -2, y), "-2 is not a label"),
        (np.stack([y, y], axis=1), "must be one label per"),
        (None, "requires y to be passed"),
    ):
        with pytest.raises(ValueError, match=words):
            quick().fit(x, wrong)
