"""Files of features: read whoever wrote them, without running code and without loading what is not asked for."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selftrain.data.features import npy
from selftrain.data.features.feature_file import FeatureFile, is_feature_path
from selftrain.data.features.feature_writer import check_output, write_features
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.origin import Origin, check_origins
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.features.views import FeatureViews, VectorFile
from selftrain.data.images import fingerprint
from selftrain.data.source import Source
from selftrain.errors import UserError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
CARD = {
    "backbone": "lite0",
    "weights": "abc",
    "channels": 3,
    "preprocessing": {
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "size": 32,
        "interpolation": "bicubic",
        "crop": 1.0,
    },
    "views": ["clean", "weak_1", "strong_1"],
}


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize("output", ["x.npz", "x"])
@pytest.mark.parametrize("joined", [False, True])
def test_what_is_written_is_read(tmp_path: Path, output: str, joined: bool) -> None:
    features: Any = np.random.default_rng(0).normal(size=(50, 3, 8)).astype(np.float16)
    names = [f"a/{i} é\udcff.jpg" for i in range(50)]
    given = (
        JoinedFeatures.of([(features[:20], np.arange(20)), (features[20:], np.arange(20, 50))]) if joined else features
    )
    done: list[int] = []
    check_output(tmp_path / output)
    write_features(tmp_path / output, given, names, CARD, dtype="float32", progress=done.append)
    assert done[-1] == 50
    file = FeatureFile.read(tmp_path / output)
    assert isinstance(file.rows.values, np.memmap)
    assert np.array_equal(file.rows.values, features.astype(np.float32))
    assert file.rows.names == names
    assert file.rows.views == ("clean", "weak_1", "strong_1")
    assert file.rows.origin == Origin.parse(CARD)
    assert is_feature_path(tmp_path / output)
    assert [path.name for path in tmp_path.iterdir()] == [output]
    views = FeatureViews(file.rows.values, file.rows.views, np.arange(50))
    assert isinstance(views.features, VectorFile)
    made = views.make(np.array([7, 3]), ("strong", "weak"), np.random.default_rng(0))
    assert np.array_equal(made["strong"].numpy(), features[[7, 3], 2].astype(np.float32))
    if output == "x":
        with pytest.raises(UserError, match="exists already"):
            check_output(tmp_path / output)
    else:
        check_output(tmp_path / output)


def test_an_existing_file_survives_an_error_while_writing(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"old")

    def fail(done: int) -> None:
        raise RuntimeError("disk")

    for output in ("x.npz", "x"):
        with pytest.raises(RuntimeError, match="disk"):
            write_features(
                tmp_path / output, X[:, None], list("abcdef"), {"views": ["clean"]}, dtype="float32", progress=fail
            )
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    assert (tmp_path / "x.npz").read_bytes() == b"old"


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_files_of_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("objects.npz", features=np.array([[Harmful()]], dtype=object))
    np.save("objects.npy", np.array([[Harmful()]], dtype=object))
    np.savez("names.npz", features=X, names=np.array([Harmful()] * 6, dtype=object))
    np.savez("several.npz", a=X, b=X)
    np.savez("text.npz", features=np.array(["a", "b"]))
    np.savez("twice.npz", features=X, names=list("abcdda"))
    np.savez("few.npz", features=X, names=list("abc"))
    np.savez("labels.npz", features=X, y=[1, 2])
    np.savez("views.npz", features=X[:, None], views=["strong"])
    np.savez("nan.npz", features=np.where(X == 9, np.nan, X))
    np.save("large.npy", np.full((3, 2), 1e300))
    np.savez("empty.npz", features=X[:0])
    Path("claim.npy").write_bytes(header((10**15, 10**6)) + bytes(100))
    Path("negative.npy").write_bytes(header((1, 2)).replace(b"(1, 2)", b"(-1,2)") + bytes(100))
    Path("long.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100)
    with zipfile.ZipFile("claim.npz", "w") as file:
        file.writestr("features.npy", header((10**9, 10**3)) + bytes(100))
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("features.npy", header((3000, 1000)) + bytes(12_000_000))
    with zipfile.ZipFile("packed_claim.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("features.npy", header((10**9, 10**3)) + bytes(100))
    good = io.BytesIO()
    np.savez_compressed(good, features=np.random.default_rng(0).random((50, 9)))
    Path("cut.npz").write_bytes(good.getvalue()[:-30])
    Path("damaged.npz").write_bytes(good.getvalue().replace(good.getvalue()[300:340], bytes(40)))
    monkeypatch.setattr(npy, "LARGEST_COMPRESSED", 10_000_000)
    for name, words in (
        ("objects.npz", "array 'features': contains Python objects"),
        ("objects.npy", "contains Python objects"),
        ("names.npz", "array 'names': contains Python objects"),
        ("several.npz", r"no array is called 'features' \(arrays: a, b\)"),
        ("text.npz", r"expected numbers of shape \(n, dim\)"),
        ("twice.npz", "the name 'd' occurs twice"),
        ("few.npz", "3 names for 6 rows"),
        ("labels.npz", r"6 rows, but labels of shape \(2,\)"),
        ("views.npz", "views must be 'clean'"),
        ("nan.npz", "1 of 6 rows are not finite, the first is row 2"),
        ("large.npy", "3 of 3 rows are not finite"),
        ("empty.npz", r"is empty \(shape \(0, 4\)\)"),
        ("claim.npy", "not an array written by numpy.save"),
        ("negative.npy", "not an array written by numpy.save"),
        ("long.npy", "not an array written by numpy.save"),
        ("claim.npz", "not an array written by numpy.save"),
        ("packed_claim.npz", "not an array written by numpy.save"),
        ("bomb.npz", "is compressed, and too large for that"),
        ("cut.npz", "not a file written by numpy.savez"),
        ("damaged.npz", "is damaged"),
        ("none.npz", "cannot be read"),
        ("none.npy", "cannot be read"),
    ):
        with pytest.raises(UserError, match=words) as error:
            FeatureFile.read(Path(name))
        assert str(error.value).startswith(name)
        assert "\n" not in str(error.value)
    assert not Path("harm").exists()


def test_a_folder_with_broken_companions(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", X)
    for name, text, words in (
        ("names.json", "{}", "names.json: expected a list of names"),
        ("names.json", "[", "names.json: not a JSON file"),
        ("card.json", '{"views": 3}', "'views' must be a list"),
        ("card.json", '{"views": ["clean", "weak"]}', "2 names of views for 1 views"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=words):
            FeatureFile.read(tmp_path)
        (tmp_path / name).unlink()
    np.save(tmp_path / "features.npy", np.array(3.0))
    (tmp_path / "names.json").write_text('["a"]')
    with pytest.raises(UserError, match="expected rows of features, got a single float64"):
        FeatureFile.read(tmp_path)
    np.save(tmp_path / "features.npy", X)
    (tmp_path / "names.json").unlink()
    (tmp_path / "card.json").write_text(json.dumps({"backbone": "lite0", "weights": 3}))
    assert FeatureFile.read(tmp_path).rows.origin is None


def test_an_origin_must_be_usable() -> None:
    assert str(Origin.parse(CARD)) == "lite0 at 32 px"
    like = CARD["preprocessing"]
    assert isinstance(like, dict)
    for change in ({"size": 10**9}, {"size": "x"}, {"mean": [1]}, {"interpolation": "evil"}, {"crop": None}):
        assert Origin.parse({**CARD, "preprocessing": {**like, **change}}) is None
    other = Origin.parse({**CARD, "weights": "other"})
    check_origins(Origin.parse(CARD), None, "a", "b")
    half = Origin.parse({**CARD, "precision": "bf16"})
    assert half is not None
    assert half.precision == "bf16"
    check_origins(half, Origin.parse(CARD), "a", "b")  # nearly the same numbers
    assert Origin.parse({**CARD, "precision": "int3"}) is None
    with pytest.raises(UserError, match="a: these are features of lite0 at 32 px with other weights"):
        check_origins(other, Origin.parse(CARD), "a", "those")


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "<i2", "|u1", "|b1"])
def test_numbers_of_every_format_stay_in_the_file(tmp_path: Path, dtype: str) -> None:
    x = (X % 2 if dtype == "|b1" else X).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    rows = FeatureFile.read(tmp_path / "x.npy").rows
    assert isinstance(rows.values, np.memmap)
    assert rows.values.dtype == np.dtype(dtype)
    assert np.array_equal(np.concatenate([batch.numpy() for batch in feature_batches(rows.values, 4)]), x)
    assert fingerprint(rows) == fingerprint(FeatureRows(x.astype(np.float32)))


def test_many_rows_of_a_map_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((100, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    rows = FeatureFile.read(tmp_path / "x.npy").rows
    picked = np.arange(99, 9, -2)
    assert isinstance(rows.subset(picked).values, np.ndarray)
    monkeypatch.setattr("selftrain.data.features.rows.CHUNK", 64)
    for part in (rows.subset(picked), rows.subset(np.arange(100)).subset(picked)):
        assert isinstance(part.values, JoinedFeatures)
        assert np.array_equal(part.values[:], x[picked])
        assert np.array_equal(np.concatenate([b.numpy() for b in feature_batches(part.values, 7)]), x[picked, 0])
        assert fingerprint(part) == fingerprint(FeatureRows(x[picked]))


@pytest.mark.long
def test_a_map_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    n, dim = 400_000, 256  # 0.4 GB, of which the process below may not hold a fifth
    with (tmp_path / "x.npy").open("wb") as file:
        file.write(header((n, dim)))
        file.truncate(file.tell() + 4 * n * dim)
    code = f"""
import resource
from pathlib import Path
from selftrain.data.features.feature_file import FeatureFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = FeatureFile.read(Path({str(tmp_path / "x.npy")!r})).rows
assert len(rows) == {n}
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 150_000, grown
"""
    assert hasattr(resource, "getrusage")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_features_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", features=X, names=[f"a/{i}.jpg" for i in range(6)], y=["p", "q", "", "p", "q", "q"])
    source = Source.parse("x.npz")
    assert (source.kind, source.is_features, source.absolute()) == ("features", True, str(tmp_path / "x.npz"))
    corpus = source.corpus()
    assert (corpus.name, corpus.classes, corpus.labels.tolist()) == ("x", ("p", "q"), [0, 1, -1, 0, 1, 1])
    Path("labels.csv").write_text("path,label\na\\1.jpg,r\n./a/2.jpg,s\n")
    corpus = Source.parse("x.npz", labels="labels.csv").corpus()
    assert (corpus.classes, corpus.labels.tolist()) == (("r", "s"), [-1, 0, 1, -1, -1, -1])
    for text, words in (
        ("a/1.png,r\na/2.jpg,s", "line 2: there is no row 'a/1.png' in x.npz. Did you mean 'a/1.jpg'"),
        ("a/1.jpg,r\na/1.jpg,s", "line 3: 'a/1.jpg' already has a row, line 2"),
        ("a/1.jpg,r\na/2.jpg,R", "line 3: the label 'R' differs from 'r'"),
        ("a/1.jpg,r", r"only one class \(r\)"),
    ):
        Path("labels.csv").write_text(f"path,label\n{text}\n")
        with pytest.raises(UserError, match=words):
            Source.parse("x.npz", labels="labels.csv").corpus()
    with pytest.raises(UserError, match=r"`data` 'y\.npz': there is no such file"):
        Source.parse("y.npz").corpus()
    with pytest.raises(UserError, match="these are features, but this needs images"):
        Source.parse("x.npz", argument="images").images()
