"""``Source``: what DATA means, in one table, and what follows from it."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows
from selftrain.data.images import ArrayImages, FileImages
from selftrain.data.paths import absolute_path
from selftrain.data.source import ARRAYS, Kind, Source
from selftrain.data.sources.named import DATASETS
from selftrain.errors import UserError
from tests.folders import layout_2, layout_3

X, Y = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, -1, -1])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one thing of each kind, and a root beside it."""
    folder = tmp_path / "here"
    layout_2(folder / "photos", per_class=2)
    layout_2(folder / "svhn", per_class=2)  # the name of a dataset, and in layout 2
    (folder / "dtd").mkdir()  # the name of a dataset, and not in a layout
    (folder / "pets").mkdir()
    (folder / "file.txt").touch()
    (folder / "folder.tar").mkdir()
    with tarfile.open(folder / "shard.tar", "w") as tar:
        tar.add(folder / "photos/test/ant/ant000.png", "1.png")
    layout_2(tmp_path / "root" / "pets", per_class=2)  # in layout 2 inside the root only
    layout_2(tmp_path / "root" / "mine", per_class=2)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("data", "options", "kind", "absolute"),
    [
        ("photos", {}, "folder", "{here}/photos"),
        (Path("photos/"), {}, "folder", "{here}/photos"),
        (".", {}, "folder", "{here}"),
        ("digits", {}, "dataset", "digits"),
        ("svhn", {}, "folder", "{here}/svhn"),
        ("dtd", {}, "dataset", "dtd"),
        ("dtd", {"labels": "labels.csv"}, "folder", "{here}/dtd"),
        ("digits", {"labels": "labels.csv"}, "dataset", "digits"),
        ("pets", {}, "dataset", "pets"),
        ("pets", {"root": "../root"}, "folder", "pets"),
        ("mine", {"root": "../root"}, "folder", "mine"),
        ("mine", {}, "missing", "mine"),
        ("mine", {"root": "../none"}, "missing", "mine"),
        ("photos", {"root": "../root"}, "folder", "{here}/photos"),
        ("hf:photos@train", {}, "hub", "hf:{here}/photos@train"),
        ("hf:owner/name", {}, "hub", "hf:owner/name"),
        ("shard.tar", {}, "shards", "{here}/shard.tar"),
        ("s-{0..9}.tar", {}, "shards", "{here}/s-{{0..9}}.tar"),
        ("folder.tar", {}, "folder", "{here}/folder.tar"),
        ("file.txt", {}, "file", "{here}/file.txt"),
        ("nothing", {}, "missing", "nothing"),
        ("", {}, "missing", ""),
        ((X, Y), {}, "arrays", "arrays"),
        ([X, Y], {}, "arrays", "arrays"),
        ("dtd", {"argument": "unlabeled"}, "folder", "{here}/dtd"),
        ("digits", {"argument": "unlabeled"}, "missing", "digits"),
        ("dtd", {"argument": "images"}, "folder", "{here}/dtd"),
        (["a.png", Path("b.png")], {"argument": "images"}, "files", None),
        (X, {"argument": "images"}, "arrays", "arrays"),
    ],
)
def test_kind_and_absolute(here: Path, data: Any, options: dict[str, Any], kind: Kind, absolute: str | None) -> None:
    source = Source.parse(data, **options)
    assert source.kind == kind
    assert source.spec == (DATASETS[data] if kind == "dataset" else None)
    if absolute is not None:
        assert source.absolute() == absolute.format(here=here)


def test_absolute_text_means_the_same_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name: Source.parse(name).absolute() for name in ("photos", "svhn", "digits", "dtd", "shard.tar")}
    kinds = {name: Source.parse(name).kind for name in texts}
    monkeypatch.chdir("/")
    assert {name: Source.parse(text).kind for name, text in texts.items()} == kinds


def test_the_word_arrays(here: Path) -> None:
    """In settings it stands for arrays; typed by a user it is a folder like any other."""
    layout_2(here / "arrays", per_class=2)
    assert Source.parse("arrays").kind == "folder"
    assert Source.parse("arrays").absolute() == str(here / "arrays")
    saved = Source.from_settings(ARRAYS)
    assert saved.kind == "arrays"
    with pytest.raises(UserError, match="this run was trained on arrays: pass them again"):
        saved.corpus()


def test_a_source_from_settings(here: Path) -> None:
    root = str(here.parent / "root")
    assert Source.from_settings(None).kind == "missing"
    assert Source.from_settings("digits").spec == DATASETS["digits"]
    assert Source.from_settings("pets", root=root).corpus().classes == ("ant", "bee", "cat")
    folder, labels = layout_3(here / "tree")
    assert Source.from_settings(str(folder), labels=labels).corpus().labels.max() == 2


def test_a_source_below_a_root(here: Path) -> None:
    root = here.parent / "root"
    assert Source.below(root, "mine").data == str(root / "mine")
    assert Source.below(root, "pets").data == str(root / "pets")
    assert Source.below(root, "dtd").spec == DATASETS["dtd"]
    assert Source.below(None, "hf:beans").data == "hf:beans"
    with pytest.raises(UserError, match=r"dataset photos: there is no such folder in .*root, and no dataset"):
        Source.below(root, "photos")
    with pytest.raises(UserError, match=r"pass the folder that contains it as `root`.*Did you mean 'digits'"):
        Source.below(None, "digit")


@pytest.mark.parametrize(
    ("data", "options", "match"),
    [
        (X, {}, r"`data`: expected .* a pair of arrays \(x, y\) .*; got ndarray alone"),
        (None, {}, "`data`: .* got NoneType alone"),
        (X, {"argument": "unlabeled"}, "`unlabeled`: .* got ndarray alone"),
        ((X, Y, Y), {}, r"`data`: expected a pair of arrays \(x, y\), got 3 items"),
        ((X.astype(str), Y), {}, "`data`: expected real numbers"),
        ((X, Y), {"labels": "labels.csv"}, "`labels`: `data` is a pair of arrays"),
    ],
)
def test_values_that_cannot_be_parsed(data: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        Source.parse(data, **options)


def test_a_constructor_reads_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the file system was touched")

    with monkeypatch.context() as patched:
        for name in ("stat", "scandir", "listdir"):
            patched.setattr(os, name, refuse)
        Source.parse("photos", root="root", labels="labels.csv")
        Source.from_settings("photos", root="root")


def test_arrays_go_together(here: Path) -> None:
    corpus = Source.parse((X, Y)).corpus(test=(X, [0, 1, 0, 1]))
    assert (corpus.name, corpus.classes) == ("arrays", ("0", "1"))
    assert corpus.test is not None
    assert len(corpus.test) == 4
    features = Source.parse((np.ones((4, 3)), Y))
    assert features.is_features
    assert isinstance(features.corpus(features=True).images, FeatureRows)
    assert not Source.parse((X, Y)).is_features
    with pytest.raises(UserError, match=r"`test`: .* must also be a pair of arrays"):
        Source.parse((X, Y)).corpus(test="photos/test")
    with pytest.raises(UserError, match="`test`: a pair of arrays is possible only if `data` is"):
        Source.parse("photos").corpus(test=(X, Y))
    with pytest.raises(UserError, match=r"`unlabeled`: .* set their y to -1"):
        Source.parse((X, Y)).corpus(unlabeled="photos")


def test_images_to_predict(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def images(data: Any, **options: Any) -> Any:
        return Source.parse(data, argument="images").images(**options)

    (here / "photos/a.heic").touch()
    found = images("photos", reporter=Reporter())
    assert isinstance(found, FileImages)
    assert len(found) == 18
    assert "ignored images in unsupported formats (1 .heic)" in capsys.readouterr().err
    assert images("photos/test/ant/ant000.png").names == ["ant000.png"]
    assert images(["photos/test/ant/ant000.png", "x.png"]).names == ["photos/test/ant/ant000.png", "x.png"]
    assert images("shard.tar").names == ["shard.tar/1.png"]
    assert isinstance(images(X), ArrayImages)
    assert images(found) is found
    assert images(np.ones((2, 5)), features=5).values.shape == (2, 1, 5)
    for data, match in (
        ("", "`images` is empty"),
        ("nothing", "there is no such folder or image"),
        ("digits", "there is no such folder or image"),
        ("dtd", "no image in this folder or its subfolders"),
        ([[1], [1, 2]], "do not all have the same size"),
    ):
        with pytest.raises(UserError, match=match):
            images(data)


def test_a_test_set_of_images_and_labels(here: Path) -> None:
    names = ["photos/test/ant/ant000.png", "photos/test/bee/bee000.png"]
    images, labels, skipped = Source.parse(names, labels=["bee", "ant"]).test_set(["ant", "bee"])
    assert (images.names, labels.tolist(), skipped) == (names, [1, 0], ())
    assert Source.parse((X, [0, 1, 1, 0])).test_set(["1", "0"]).labels.tolist() == [1, 0, 0, 1]
    for labels_given, match in (
        (["ant"], "labels: 1 labels for 2 images"),
        (["ant", None], "labels: image 1 has no label"),
        (["ant", "bat"], "labels: 'bat' is not one of the classes"),
    ):
        with pytest.raises(UserError, match=match):
            Source.parse(names, labels=labels_given).test_set(["ant", "bee"])


def test_absolute_paths(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert absolute_path(None, "test") is None
    assert absolute_path("photos", "test") == str(here / "photos")
    assert absolute_path("nothing", "test") == "nothing"
    read, write = os.pipe()
    pipe = f"/dev/fd/{read}"
    assert absolute_path(pipe, "labels") == pipe  # its target is not a path
    os.close(read)
    os.close(write)
    with pytest.raises(UserError, match="`labels`: expected a path, got ndarray"):
        absolute_path(Y, "labels")
