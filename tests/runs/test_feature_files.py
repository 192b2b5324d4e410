"""Features in files: written from images, trained on, predicted and evaluated."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import selftrain
from selftrain.config.regimes import REGIMES, VECTORS
from selftrain.console import Reporter
from selftrain.data.features.feature_file import FeatureFile
from selftrain.data.features.housekeeping import list_caches
from selftrain.errors import UserError
from selftrain.runs.embed import embed
from selftrain.runs.model import load_model
from selftrain.runs.resolve import resolve
from tests.folders import CLASSES, layout_2
from tests.runs.small_runs import SMALL, same_weights, weights

SMALL_IMAGES: dict[str, Any] = {"backbone": "lite0", "size": 32}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images ``data``, their features ``train.npz`` and ``test``, and labels of all of them."""
    home = tmp_path_factory.mktemp("home")
    data = layout_2(home / "data")
    for image in (data / "test").rglob("*.png"):
        image.rename(image.with_name(f"new-{image.name}"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SELFTRAIN_CACHE", str(home / "cache"))
        embed(data / "train", home / "train.npz", **SMALL_IMAGES)
        embed(data / "test", home / "test", **SMALL_IMAGES)
    for name in ("train", "test"):
        rows = FeatureFile.read(home / ("train.npz" if name == "train" else "test")).rows.names
        write_labels(home / f"{name}.csv", rows)
    return home


def write_labels(path: Path, names: Any) -> None:
    path.write_text("path,label\n" + "".join(f"{name},{name.partition('/')[0]}\n" for name in names))


def train(data: Any, out: Path, **options: Any) -> selftrain.Run:
    settings = {**SMALL, **options.pop("settings", {})}
    return selftrain.train(data, out=out, settings=settings, **{"steps": 8, "quiet": True, **options})


def test_a_file_holds_features_names_views_and_the_backbone(home: Path) -> None:
    with np.load(home / "train.npz", allow_pickle=False) as file:
        assert file.files == ["features", "names", "views", "card"]
        assert file["features"].dtype == np.float32
        assert file["features"].shape == (len(file["names"]), 1280)
        assert file["views"].tolist() == ["clean"]
        assert file["names"][0].startswith(f"{CLASSES[0]}/")
        card = json.loads(str(file["card"]))
    assert (card["backbone"], card["preprocessing"]["size"]) == ("lite0", 32)
    features = np.load(home / "test" / "features.npy", mmap_mode="r")
    names = json.loads((home / "test" / "names.json").read_text())
    assert features.shape == (len(names), 1280)
    assert json.loads((home / "test" / "card.json").read_text())["weights"] == card["weights"]


def test_features_are_those_that_training_extracts(home: Path, tmp_path: Path) -> None:
    written = embed(home / "data" / "train", tmp_path / "views.npz", weak=2, strong=4, dtype="float16", **SMALL_IMAGES)
    assert written.views[:2] == ("clean", "weak_1")
    labels = home / "train.csv"
    options: dict[str, Any] = {"labels_per_class": 2, "labels": labels}
    as_images = {"optim.lr": REGIMES["frozen"]["optim.lr"]}  # vectors have a learning rate of their own
    on_file = train(tmp_path / "views.npz", tmp_path / "file", **options, settings=as_images)
    on_images = train(
        home / "data" / "train", tmp_path / "images", regime="frozen", **options, **SMALL_IMAGES,
        settings={"data.flip": True},
    )  # fmt: skip
    own, whole = weights(on_file), weights(on_images)
    assert same_weights(own, {name.removeprefix("predictor."): whole[f"predictor.{name}"] for name in own})
    assert list_caches(home / "cache")[0].views == ("clean",)  # not this test's
    one, other = (run.predict(home / "data" / "test").probabilities for run in (on_file, on_images))
    assert np.array_equal(one, other)


def test_training_on_a_file_as_a_newcomer_would(home: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.csv"
    both.write_text((home / "train.csv").read_text() + "".join((home / "test.csv").read_text().splitlines(True)[1:]))
    run = train(home / "train.npz", tmp_path / "run", labels=both, test=home / "test", labels_per_class=3)
    assert run.results["backbone"] == "features"
    assert run.results["size"] is None
    assert run.config["data"]["path"] == str((home / "train.npz").resolve())
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "unlabeled rows, frozen regime, features of 1280 numbers, seed 0" in log
    predictions = run.predict(home / "test")
    assert predictions.paths == tuple(FeatureFile.read(home / "test").rows.names)
    assert predictions.noun == "row"
    evaluated = run.evaluate(home / "test", home / "test.csv")
    assert evaluated["accuracy"] == run.results["accuracy"]
    # the model knows its backbone, so that images will do as well
    on_images = run.predict(home / "data" / "test")
    # features in files may come from another engine (onnxruntime or torch)
    assert np.allclose(on_images.probabilities, predictions.probabilities, atol=1e-3)
    assert on_images.paths == predictions.paths
    assert run.evaluate(home / "data" / "test")["accuracy"] == evaluated["accuracy"]
    page = run.report().read_text()
    assert "labeled and" in page
    assert "unlabeled rows" in page
    assert "There are no images to show" in page


def test_labels_that_could_be_of_either_file_are_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.npz").write_bytes((home / "train.npz").read_bytes())
    with pytest.raises(UserError, match=r"train.csv, line 2: .* is a row of .*train.npz and of .*copy.npz; it is not"):
        train(home / "train.npz", tmp_path / "run", labels=home / "train.csv", test=tmp_path / "copy.npz")
    assert not (tmp_path / "run").exists()


def test_a_second_label_file_names_rows_to_test_on(home: Path, tmp_path: Path) -> None:
    names = FeatureFile.read(home / "train.npz").rows.names
    write_labels(tmp_path / "labels.csv", names[::2])
    write_labels(tmp_path / "test.csv", names[1::4])
    run = train(home / "train.npz", tmp_path / "run", labels=tmp_path / "labels.csv", test=tmp_path / "test.csv")
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert split["counts"]["images"] == len(names) - len(names[1::4])
    assert run.evaluate(home / "train.npz", tmp_path / "test.csv")["accuracy"] == run.results["accuracy"]
    write_labels(tmp_path / "test.csv", names[:9])
    with pytest.raises(UserError, match=r"labels.csv: 5 problems\. Line 2: .* belongs to the test set"):
        train(home / "train.npz", tmp_path / "b", labels=tmp_path / "labels.csv", test=tmp_path / "test.csv")


def own_features(tmp_path: Path, n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    return np.eye(3, 20)[y] * 3 + rng.normal(size=(n, 20)), y


@pytest.mark.parametrize("form", ["npz", "compressed", "npy", "folder", "fortran"])
def test_every_form_of_file_gives_the_same_run(tmp_path: Path, form: str) -> None:
    x, y = own_features(tmp_path)
    known = np.where(np.arange(90) < 15, y, -1)
    expected = weights(train((x, known), tmp_path / "arrays"))
    labels, data = tmp_path / "labels.csv", tmp_path / "x.npz"
    labels.write_text("path,label\n" + "".join(f"{i},{y[i]}\n" for i in range(15)))
    given: dict[str, Any] = {}
    if form == "npz":
        np.savez(data, features=x.astype(np.float32), y=known)
    elif form == "compressed":
        np.savez_compressed(data, x=x, y=np.where(known < 0, "", known.astype(str)))
    elif form == "npy":
        data, given = tmp_path / "x.npy", {"labels": labels}
        np.save(data, x.astype(">f8"))
    elif form == "fortran":
        data, given = tmp_path / "x.npy", {"labels": labels}
        np.save(data, np.asfortranarray(x))
    else:
        data, given = tmp_path / "folder", {"labels": labels}
        data.mkdir()
        np.save(data / "features.npy", x)
    run = train(data, tmp_path / "run", **given)
    assert same_weights(weights(run), expected)
    assert run.predict(data).paths[7] == "07"


def test_a_changed_file_is_not_resumed(tmp_path: Path) -> None:
    x, y = own_features(tmp_path)
    np.savez(tmp_path / "x.npz", x=x, y=np.where(np.arange(90) < 15, y, -1))

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "x.npz", tmp_path / "run", watch=stop, settings={"train.checkpoint_every": 2})
    whole = weights(train(tmp_path / "x.npz", tmp_path / "whole"))
    x[3] += 1
    np.savez(tmp_path / "y.npz", x=x, y=np.where(np.arange(90) < 15, y, -1))
    kept = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes((tmp_path / "y.npz").read_bytes())
    with pytest.raises(UserError, match="some train images were replaced, edited or removed"):
        selftrain.train(out=tmp_path / "run", resume=True, quiet=True)
    (tmp_path / "x.npz").write_bytes(kept)
    assert same_weights(weights(selftrain.train(out=tmp_path / "run", resume=True, quiet=True)), whole)


def test_integer_labels_come_back_as_integers(tmp_path: Path) -> None:
    x, y = own_features(tmp_path)
    known = np.where(np.arange(90) < 15, y, -1)
    for name, labels, expected in (("int", known, int), ("text", np.where(known < 0, "", known.astype(str)), str)):
        run = train((x, labels), tmp_path / name)
        found = run.predict(x).labels
        assert {type(label) for label in found} == {expected}
        assert np.mean(np.array(found) == y.astype(expected)) > 0.8
        assert selftrain.Run(tmp_path / name).predict(x).labels == found
        run.predict(x).save(tmp_path / f"{name}.csv")
    assert (tmp_path / "int.csv").read_text().splitlines()[0] == (tmp_path / "text.csv").read_text().splitlines()[0]
    card = json.loads((tmp_path / "int" / "model" / "model.json").read_text())
    del card["integer_classes"], card["origin"], card["checksum"]  # as older versions wrote it
    (tmp_path / "int" / "model" / "model.json").write_text(json.dumps(card))
    assert selftrain.Run(tmp_path / "int").predict(x[:1]).labels[0] in ("0", "1", "2")


def test_a_run_can_be_pickled_after_a_prediction(home: Path, tmp_path: Path) -> None:
    x, y = own_features(tmp_path)
    runs = [
        train((x, np.where(np.arange(90) < 15, y, -1)), tmp_path / "features"),
        train(home / "data", tmp_path / "frozen", regime="frozen", labels_per_class=2, **SMALL_IMAGES),
    ]
    for run, new in zip(runs, (x, home / "data" / "test"), strict=True):
        run.reporter = Reporter(quiet=True)
        expected = run.predict(new).probabilities
        for same in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
            assert same.folder == run.folder
            assert np.array_equal(same.predict(new).probabilities, expected)


def test_features_of_another_backbone_are_refused(home: Path, tmp_path: Path) -> None:
    embed(home / "data" / "test", tmp_path / "large.npz", backbone="lite0", size=64)
    with pytest.raises(UserError, match=r"`test` .*large.npz: these are features of lite0 at 64 px, but the training"):
        train(home / "train.npz", tmp_path / "run", labels=home / "train.csv", test=tmp_path / "large.npz")
    run = train(home / "train.npz", tmp_path / "run", labels=home / "train.csv", labels_per_class=2)
    with pytest.raises(UserError, match="features of lite0 at 64 px, but those that the model was trained on are"):
        run.predict(tmp_path / "large.npz")
    card = json.loads((run.model / "model.json").read_text())
    card["origin"]["weights"] = "other"
    del card["checksum"]
    (run.model / "model.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="backbone lite0: these are not the weights that made the features"):
        selftrain.Run(run.folder).predict(home / "data" / "test")
    assert load_model(run.model)[1].origin is not None


@pytest.mark.parametrize(
    ("output", "options", "words"),
    [
        ("x.csv", {}, r"`output` .*x.csv: features are written to a .npz file or to a folder"),
        ("data", {}, r"`output` .*data: exists already"),
        ("x.npz", {"weak": 2}, r"`weak=2`: methods compare weak views with strong ones. Add `strong=4`"),
        ("x.npz", {"dtype": "int8"}, '`dtype="int8"`: expected float32 or float16'),
        ("x.npz", {"backbone": "wrn-28-2"}, "`backbone` wrn-28-2: has random weights"),
        ("x.npz", {"settings": {"data.siez": 3}}, "data.size"),
        ("x.npz", {"settings": {"regime": "scratch"}}, "`regime`: features are those of the frozen regime"),
    ],
)
def test_what_cannot_be_embedded(home: Path, tmp_path: Path, output: str, options: Any, words: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").touch()
    with pytest.raises(UserError, match=words):
        embed(home / "data" / "test", tmp_path / output, **{**SMALL_IMAGES, **options})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    with pytest.raises(UserError, match="these are features already"):
        embed(home / "train.npz", tmp_path / "x.npz")


@pytest.mark.long
@pytest.mark.parametrize("output", ["x.npz", "x"])
def test_a_kill_while_writing_leaves_no_file(home: Path, tmp_path: Path, output: str) -> None:
    code = f"""
import time
from selftrain.data.features import feature_writer
from selftrain.runs.embed import embed
def slow(file, *rest):
    file.write(b"half")
    open({str(tmp_path / "writing")!r}, "w").close()
    time.sleep(60)
feature_writer._write_array = slow
embed({str(home / "data" / "test")!r}, {str(tmp_path / output)!r}, backbone="lite0", size=32)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not (tmp_path / "writing").exists() and process.poll() is None:
            time.sleep(0.05)
        assert process.poll() is None
        process.kill()
    assert not (tmp_path / output).exists()
    embed(home / "data" / "test", tmp_path / output, **SMALL_IMAGES)
    assert len(FeatureFile.read(tmp_path / output).rows) > 0


def test_vectors_train_in_fewer_steps_than_images_unless_told_otherwise() -> None:
    on_vectors = {"network.backbone": "features"}
    vectors, images = (resolve({"data.path": "photos", "regime": "frozen", **more})[0] for more in (on_vectors, {}))
    assert (vectors.train.steps, vectors.optim.lr) == (VECTORS["train.steps"], VECTORS["optim.lr"])
    assert (images.train.steps, images.optim.lr) == (1000, 0.01)
    given, _ = resolve({"data.path": "photos", "regime": "frozen", **on_vectors, "train.steps": 50})
    assert (given.train.steps, given.optim.lr) == (50, VECTORS["optim.lr"])
