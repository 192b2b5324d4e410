"""Datasets of Hugging Face: made here with its own package and opened from disk, and every way to be wrong."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import selftrain
from selftrain.data.images import fingerprint
from selftrain.data.source import Source
from selftrain.data.sources.hub import HubImages, HubName
from selftrain.errors import UserError

hub = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline_and_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    hub.disable_progress_bars()


def image(colour: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (colour, 0, 0))


def table(colours: range, labels: list[Any] | None = None, kind: Any = None, **more: Any) -> Any:
    """Rows of an image and a label, by default of three classes in turn."""
    kind = kind or hub.ClassLabel(names=["eel", "cat", "dog"])
    labels = [i % 3 for i in colours] if labels is None else labels
    columns = {
        "img": [image(i) for i in colours],
        "label": labels,
        **{name: values for name, (values, _) in more.items()},
    }
    features = {"img": hub.Image(), "label": kind, **{name: feature for name, (_, feature) in more.items()}}
    return hub.Dataset.from_dict(columns, features=hub.Features(features))


def saved(folder: Path, **splits: Any) -> str:
    hub.DatasetDict(splits).save_to_disk(str(folder))
    return f"hf:{folder}"


def colours(images: Any) -> list[int]:
    return [np.asarray(images.load(i))[0, 0, 0].item() for i in range(len(images))]


def error_of(text: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        Source.parse(text).corpus(**options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_saved_dataset(tmp_path: Path) -> None:
    data = saved(tmp_path / "beasts", train=table(range(9)), test=table(range(20, 26)))
    corpus = Source.parse(data).corpus()
    assert (corpus.name, corpus.classes, corpus.is_benchmark) == ("beasts", ("eel", "cat", "dog"), True)
    assert isinstance(corpus.images, HubImages)
    assert corpus.images.names[:2] == ["train/0000000", "train/0000001"]
    assert corpus.labels.tolist() == [0, 1, 2] * 3
    assert colours(corpus.images) == list(range(9))
    assert colours(corpus.images.subset([8, 2])) == [8, 2]
    assert corpus.test is not None
    assert colours(corpus.test) == list(range(20, 26))
    assert fingerprint(corpus.images) == fingerprint(Source.parse(data).corpus().images)
    assert fingerprint(corpus.images.subset([1])) != fingerprint(corpus.images.subset([2]))
    assert corpus.images.table.cache_files  # the rows are in mapped files, not in memory


def test_parquet_and_image_folders(tmp_path: Path) -> None:
    (tmp_path / "parquet").mkdir()
    table(range(6)).to_parquet(str(tmp_path / "parquet/train-00000.parquet"))
    table(range(30, 33)).to_parquet(str(tmp_path / "parquet/test-00000.parquet"))
    corpus = Source.parse(f"hf:{tmp_path / 'parquet'}").corpus()
    assert colours(corpus.images) == list(range(6))
    assert corpus.test is not None
    assert colours(corpus.test) == [30, 31, 32]

    for split, name, i in (("train", "cat", 1), ("train", "dog", 2), ("test", "cat", 3), ("test", "dog", 4)):
        path = tmp_path / "folder" / split / name / f"{i}.png"
        path.parent.mkdir(parents=True)
        image(i).save(path)
    corpus = Source.parse(f"hf:{tmp_path / 'folder'}").corpus()
    assert corpus.classes == ("cat", "dog")
    assert colours(corpus.images) == [1, 2]  # paths instead of bytes
    assert corpus.test_labels is not None
    assert corpus.test_labels.tolist() == [0, 1]


def test_which_splits_are_used(tmp_path: Path) -> None:
    parts = {"train": table(range(6)), "validation": table(range(10, 13)), "unlabeled": table(range(40, 44), [-1] * 4)}
    hidden = table(range(20, 23), [-1] * 3)
    data = saved(tmp_path / "a", test=hidden, **parts)
    corpus = Source.parse(data).corpus()
    assert corpus.test is not None
    assert corpus.test.names[0].startswith("validation/")  # the labels of the test set are secret
    assert corpus.labels.tolist() == [0, 1, 2] * 2 + [-1] * 4
    assert colours(corpus.images)[-4:] == [40, 41, 42, 43]
    assert corpus.is_benchmark
    assert colours(Source.parse(f"{data}@validation").corpus().images)[:3] == [10, 11, 12]
    assert "no split 'trian' (the splits are test, train, validation, unlabeled)" in error_of(f"{data}@trian")
    images, labels, _ = Source.parse(f"{data}@train").test_set(["dog", "cat", "eel"])
    assert (len(images), labels.tolist()) == (6, [2, 1, 0] * 2)  # that split and nothing else
    odd = saved(tmp_path / "odd", a=table(range(3)), b=table(range(3)))
    assert "no split 'train' (the splits are a, b); choose one with @SPLIT" in error_of(odd)
    assert Source.parse(f"{odd}@b").corpus().test is None


def test_labels_that_are_words_or_numbers(tmp_path: Path) -> None:
    words = table(range(4), ["fox", None, "ape", ""], hub.Value("string"))
    corpus = Source.parse(saved(tmp_path / "words", train=words)).corpus()
    assert corpus.classes == ("ape", "fox")
    assert corpus.labels.tolist() == [1, -1, 0, -1]
    assert not corpus.is_benchmark
    numbers = table(range(4), [10, 9, -1, 2], hub.Value("int64"))
    corpus = Source.parse(
        saved(tmp_path / "numbers", train=numbers, test=table(range(2), [2, 9], hub.Value("int64")))
    ).corpus()
    assert corpus.classes == ("2", "9", "10")
    assert corpus.labels.tolist() == [2, 1, -1, 0]
    assert corpus.test_labels is not None
    assert corpus.test_labels.tolist() == [0, 1]
    other = saved(tmp_path / "other", train=words, test=table(range(1), ["hen"], hub.Value("string")))
    assert "'hen' in 'label' is not a class of the training split" in error_of(other)


def test_columns(tmp_path: Path) -> None:
    kind = hub.ClassLabel(names=["x", "y"])
    two = saved(tmp_path / "two", train=table(range(4), coarse=([0, 1, 1, 0], kind)).rename_column("label", "fine"))
    assert "several label columns (fine, coarse); choose one with ,label=COLUMN" in error_of(two)
    assert Source.parse(f"{two},label=coarse").corpus().classes == ("x", "y")
    assert Source.parse(f"{two}@train,label=fine,image=img").corpus().labels.tolist() == [0, 1, 2, 0]
    assert "'corse' is not a label column" in error_of(f"{two},label=corse")
    assert "Did you mean 'coarse'?" in error_of(f"{two},label=corse")
    assert "write image=COLUMN or label=COLUMN, not 'fine'" in error_of(f"{two},fine")
    images = table(range(4), other=([image(9)] * 4, hub.Image()))
    several = saved(tmp_path / "several", train=images)
    assert "several image columns (img, other); choose one with ,image=COLUMN" in error_of(several)
    assert colours(Source.parse(f"{several},image=other").corpus().images) == [9] * 4
    assert "'label' is not an image column" in error_of(f"{several},image=label")
    none = saved(tmp_path / "none", train=table(range(4)).remove_columns("img"))
    assert "no image column (label is ClassLabel)" in error_of(none)
    bare = saved(tmp_path / "bare", train=table(range(4)).remove_columns("label"))
    assert "no label column (img is Image); choose one with ,label=COLUMN" in error_of(bare)
    one = saved(tmp_path / "one", train=table(range(4), [0] * 4, hub.ClassLabel(names=["a"])))
    assert "only one class (a)" in error_of(one)


def test_as_unlabeled_images(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", train=table(range(3)).remove_columns("label"))
    corpus = Source.parse("digits").corpus(unlabeled=plain)
    assert corpus.images.names[-1] == "unlabeled:train/0000002"
    assert corpus.labels[-3:].tolist() == [-1] * 3
    both = saved(tmp_path / "both", train=table(range(3)), unlabeled=table(range(4)).remove_columns("label"))
    assert Source.parse("digits").corpus(unlabeled=both).images.names[-1] == "unlabeled:unlabeled/0000003"
    assert Source.parse("digits").corpus(unlabeled=f"{both}@train").images.names[-1] == "unlabeled:train/0000002"


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    rows = {"img": [{"bytes": b"x", "path": None}, None], "label": [0, 1]}
    kinds = hub.Features({"img": hub.Image(), "label": hub.ClassLabel(names=["a", "b", "c"])})
    broken = hub.Dataset.from_dict(rows, features=kinds)
    good = table(range(2)).cast_column("label", hub.ClassLabel(names=["a", "b", "c"]))
    data = saved(tmp_path / "a", train=hub.concatenate_datasets([good, broken]))
    corpus = Source.parse(data).corpus()
    assert corpus.skipped == ("train/0000002", "train/0000003")
    assert colours(corpus.images) == [0, 1]
    assert "train/0000002: it " in error_of(data, strict=True)
    assert len(Source.parse(data).corpus(check="none").images) == 4


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = error_of("hf:nobody/nothing")
    assert "Hugging Face cannot be reached" in message
    assert "save_to_disk(FOLDER), and use hf:FOLDER" in message
    assert "write hf:NAME" in error_of("hf:")
    assert "a name has at most three parts" in error_of("hf:a/b/c/d")
    (tmp_path / "empty").mkdir()
    assert "hf:" in error_of(f"hf:{tmp_path / 'empty'}")
    for error, match in (
        (
            hub.exceptions.DatasetNotFoundError("Dataset 'x' doesn't exist on the Hub"),
            "neither a dataset nor a folder of this name exists",
        ),
        (ValueError("Config name is missing. Please pick one among: ['a', 'b']"), "hf:beans/CONFIG"),
        (OSError("disk on fire"), "cannot be opened (disk on fire)"),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(hub, "load_dataset", fail)
        assert match in error_of("hf:beans")


def test_owner_and_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def load(*names: str) -> Any:
        asked.append(names)
        if names == ("glue/cola",):
            raise hub.exceptions.DatasetNotFoundError("no")
        return hub.DatasetDict(train=table(range(3)))

    monkeypatch.setattr(hub, "load_dataset", load)
    for text in ("hf:beans", "hf:uoft-cs/cifar10", "hf:owner/name/config@train", "hf:glue/cola"):
        assert len(Source.parse(text).corpus().images) == 3
    assert asked == [("beans",), ("uoft-cs/cifar10",), ("owner/name", "config"), ("glue/cola",), ("glue", "cola")]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "run pip install 'selftrain[hf]'" in error_of("hf:beans")


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "a", train=table(range(3)))
    monkeypatch.chdir(tmp_path)
    assert Source.parse("hf:a@train,label=x").absolute() == f"hf:{tmp_path / 'a'}@train,label=x"
    assert Source.parse("hf:owner/name@train").absolute() == "hf:owner/name@train"
    name = HubName.parse("hf:owner/name/config@test,image=img")
    assert (name.path, name.split, name.columns) == ("owner/name/config", "test", {"image": "img"})


def test_a_run(tmp_path: Path) -> None:
    data = saved(tmp_path / "beasts", train=table(range(12)), test=table(range(20, 26)))
    run = selftrain.train(
        data, labels_per_class=2, backbone="wrn-tiny", steps=2, out=tmp_path / "run", quiet=True,
        settings={"train.batch": 4, "train.unlabeled_batch": 6, "data.workers": 2},
    )  # fmt: skip
    assert run.results["evaluated_on"] == "test"
    assert (run.results["labeled"], run.results["unlabeled"]) == (6, 12)
    assert run.evaluate(data)["accuracy"] == run.results["accuracy"]
