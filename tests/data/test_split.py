"""Drawing, hashing, saving and re-reading splits."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selftrain.data.corpus import Corpus
from selftrain.data.images import ArrayImages
from selftrain.data.source import Source
from selftrain.data.split import Split, make_split
from selftrain.data.split_file import load_split, save_split
from selftrain.errors import UserError


def corpus_of(per_class: dict[str, int], *, unlabeled: int = 0, is_benchmark: bool = True) -> Corpus:
    """Tiny images named as in a folder."""
    classes = tuple(sorted(per_class))
    top = "train" if is_benchmark else "labeled"
    names = [f"{top}/{name}/{i:03d}.png" for name in classes for i in range(per_class[name])]
    labels = [k for k, name in enumerate(classes) for _ in range(per_class[name])]
    names += [f"unlabeled/{i:03d}.png" for i in range(unlabeled)]
    known = np.array(labels + [-1] * unlabeled, np.int64)
    pixels = np.zeros((len(names), 2, 2), np.uint8)
    return Corpus("tiny", classes, ArrayImages(pixels, names), known, known, is_benchmark=is_benchmark)


def shown(split: Split, corpus: Corpus) -> dict[str, str]:
    pairs = zip(split.labeled.tolist(), split.labels.tolist(), strict=True)
    return {corpus.images.names[i]: corpus.classes[k] for i, k in pairs}


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return root


# --- the draw -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 10])
def test_a_benchmark_has_exactly_n_labels_a_class(count: int) -> None:
    corpus = corpus_of({"a": 12, "b": 30, "c": 10})
    split = make_split(corpus, labels_per_class=count)
    assert np.bincount(split.labels).tolist() == [count] * 3
    assert np.array_equal(split.labels, corpus.labels[split.labeled])
    assert len(np.unique(split.labeled)) == 3 * count
    assert np.array_equal(np.sort(split.labeled), split.labeled)
    assert np.array_equal(split.unlabeled, np.arange(52))
    assert (split.seed, split.labels_per_class, split.include_labeled) == (0, count, True)
    assert split.validation.tolist() == split.validation_labels.tolist() == []
    assert {array.dtype for array in (split.labeled, split.unlabeled, split.labels)} == {np.dtype(np.int64)}


def test_without_the_labeled_ones() -> None:
    corpus = corpus_of({"a": 5, "b": 5})
    split = make_split(corpus, labels_per_class=2, include_labeled=False)
    assert np.array_equal(np.sort(np.concatenate([split.labeled, split.unlabeled])), np.arange(10))
    both = make_split(corpus, labels_per_class=2)
    assert np.array_equal(split.labeled, both.labeled)
    assert split.hash != both.hash


def test_the_literal_draw_and_hash() -> None:
    """A change here breaks every saved run: the draw and the hash are a promise across versions and platforms."""
    corpus = corpus_of({"cat": 6, "dog": 5, "größe": 4})
    split = make_split(corpus, labels_per_class=2, seed=0, validation_per_class=1)

    def drawn(indices: np.ndarray) -> list[str]:
        return [corpus.images.names[i].removeprefix("train/").removesuffix(".png") for i in indices]

    assert drawn(split.labeled) == ["cat/000", "cat/001", "dog/002", "dog/003", "größe/000", "größe/002"]
    assert drawn(split.validation) == ["cat/003", "dog/004", "größe/003"]
    assert split.hash == "c53ec3b3da2d50f75e39d0c4e9f6cc409d68c3ceccf08007fc08caedec03fdc0"


def test_the_hash_equals_a_retyped_reference() -> None:
    corpus = corpus_of({"a": 999, "b": 999}, unlabeled=5000)
    split = make_split(corpus, labels_per_class=2, validation_per_class=1)
    names = corpus.images.names
    text = "selftrain split 1\nclasses 2\na\0b\0\nlabeled 4\n"
    text += "".join(f"{names[i]}\0{'ab'[k]}\0" for i, k in zip(split.labeled, split.labels, strict=True))
    text += "\nvalidation 2\n"
    text += "".join(f"{names[i]}\0{'ab'[k]}\0" for i, k in zip(split.validation, split.validation_labels, strict=True))
    text += "\nunlabeled 6996\n" + "".join(f"{names[i]}\0" for i in sorted(split.unlabeled, key=names.__getitem__))
    assert split.hash == hashlib.sha256(text.encode()).hexdigest()


def test_the_same_twice_and_another_seed_differs() -> None:
    corpus = corpus_of({"a": 40, "b": 40})
    first, again = make_split(corpus, labels_per_class=4, seed=3), make_split(corpus, labels_per_class=4, seed=3)
    assert np.array_equal(first.labeled, again.labeled)
    assert first.hash == again.hash
    other = make_split(corpus, labels_per_class=4, seed=4)
    assert not np.array_equal(first.labeled, other.labeled)
    assert first.hash != other.hash
    hashes = {make_split(corpus, labels_per_class=4, seed=seed).hash for seed in range(20)}
    assert len(hashes) == 20


@pytest.mark.parametrize("validation", [0, 3])
@pytest.mark.parametrize("is_benchmark", [True, False])
def test_fewer_labels_are_among_more_labels(validation: int, is_benchmark: bool) -> None:
    corpus = corpus_of({"a": 20, "b": 15, "c": 40}, is_benchmark=is_benchmark)
    splits = [make_split(corpus, labels_per_class=n, validation_per_class=validation) for n in (1, 2, 4, 10)]
    for fewer, more in itertools.pairwise(splits):
        assert set(fewer.labeled) < set(more.labeled)
        assert np.array_equal(fewer.validation, more.validation)


def test_a_class_is_drawn_alike_whatever_the_other_classes_and_the_order_of_files() -> None:
    alone = corpus_of({"a": 20, "b": 20})
    among = corpus_of({"0": 7, "a": 20, "b": 20, "c": 9}, unlabeled=5)
    first = {n for n, c in shown(make_split(alone, labels_per_class=3, seed=1), alone).items() if c in "ab"}
    second = {n for n, c in shown(make_split(among, labels_per_class=3, seed=1), among).items() if c in "ab"}
    assert first == second

    order = np.random.default_rng(0).permutation(40)
    shuffled = replace(alone, images=alone.images.subset(order), labels=alone.labels[order], truth=alone.truth[order])
    split, other = make_split(alone, labels_per_class=3), make_split(shuffled, labels_per_class=3)
    assert shown(split, alone) == shown(other, shuffled)
    assert split.hash == other.hash


def test_the_hash_follows_names_and_classes_and_not_pixels_or_truth() -> None:
    corpus = corpus_of({"a": 4, "b": 4}, unlabeled=4, is_benchmark=False)
    base = make_split(corpus, labels_per_class=None).hash
    names = list(corpus.images.names)
    brighter = replace(corpus, images=ArrayImages(np.full((12, 2, 2), 9, np.uint8), names))
    known = replace(corpus, truth=np.where(corpus.truth < 0, 0, corpus.truth))
    assert make_split(brighter, labels_per_class=None).hash == base
    assert make_split(known, labels_per_class=None).hash == base
    renamed = replace(corpus, images=ArrayImages(np.zeros((12, 2, 2), np.uint8), [*names[:-1], "unlabeled/new.png"]))
    assert make_split(renamed, labels_per_class=None).hash != base
    labels = corpus.labels.copy()
    labels[0] = 1
    assert make_split(replace(corpus, labels=labels), labels_per_class=None).hash != base
    assert make_split(replace(corpus, classes=("a", "c")), labels_per_class=None).hash != base
    assert len(base) == 64


# --- known labels (layouts 1 and 3) -------------------------------------------------------------------------------


def test_all_known_labels_by_default() -> None:
    corpus = corpus_of({"a": 1, "b": 7}, unlabeled=10, is_benchmark=False)
    split = make_split(corpus, labels_per_class=None)
    assert split.labeled.tolist() == list(range(8))
    assert split.labels.tolist() == [0] + [1] * 7
    assert len(split.unlabeled) == 18
    assert make_split(corpus, labels_per_class=None, include_labeled=False).unlabeled.tolist() == list(range(8, 18))


def test_at_most_n_of_the_known_labels() -> None:
    corpus = corpus_of({"a": 2, "b": 7}, unlabeled=3, is_benchmark=False)
    split = make_split(corpus, labels_per_class=4, include_labeled=False)
    assert np.bincount(split.labels).tolist() == [2, 4]
    assert len(split.unlabeled) == 3 + 3
    dropped = np.setdiff1d(np.arange(9), split.labeled)
    assert set(dropped) < set(split.unlabeled)
    assert (corpus.truth[dropped] == 1).all()


def test_no_unlabeled_images_is_no_error() -> None:
    split = make_split(corpus_of({"a": 2, "b": 2}, is_benchmark=False), labels_per_class=None, include_labeled=False)
    assert len(split.unlabeled) == 0
    assert split.unlabeled.dtype == np.int64


# --- validation ---------------------------------------------------------------------------------------------------


def test_validation_in_a_benchmark_comes_on_top() -> None:
    corpus = corpus_of({"a": 9, "b": 6})
    split = make_split(corpus, labels_per_class=4, validation_per_class=2)
    assert np.bincount(split.labels).tolist() == [4, 4]
    assert np.bincount(split.validation_labels).tolist() == [2, 2]
    assert np.array_equal(split.validation_labels, corpus.labels[split.validation])
    assert not set(split.validation) & (set(split.labeled) | set(split.unlabeled))
    assert len(split.unlabeled) == 15 - 4
    assert np.array_equal(split.labeled, make_split(corpus, labels_per_class=4).labeled)


def test_validation_elsewhere_is_held_out_of_the_known_labels() -> None:
    corpus = corpus_of({"a": 3, "b": 6}, unlabeled=4, is_benchmark=False)
    split = make_split(corpus, labels_per_class=None, validation_per_class=2)
    assert np.bincount(split.labels).tolist() == [1, 4]
    assert np.bincount(split.validation_labels).tolist() == [2, 2]
    assert not set(split.validation) & (set(split.labeled) | set(split.unlabeled))
    split = make_split(corpus, labels_per_class=2, validation_per_class=2)
    assert np.bincount(split.labels).tolist() == [1, 2]


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("corpus", "options", "match"),
    [
        (
            corpus_of({"a": 9, "b": 3}),
            {"labels_per_class": 4},
            r"class 'b' has 3 images, fewer than `labels_per_class=4`",
        ),
        (
            corpus_of({"a": 9, "b": 5}),
            {"labels_per_class": 4, "validation_per_class": 2},
            r"class 'b' has 5 images, .*=4` plus 2 to hold out",
        ),
        (
            corpus_of({"a": 9, "b": 3}),
            {"labels_per_class": None},
            r"pass `labels_per_class`, for example `labels_per_class=4`",
        ),
        (corpus_of({"a": 9}), {"labels_per_class": 4}, "has 1 class; at least two"),
        (corpus_of({"a": 9, "b": 0}, is_benchmark=False), {"labels_per_class": None}, "class 'b' has no labeled image"),
        (corpus_of({"a": 9, "b": 0}), {"labels_per_class": 1}, "class 'b' has no labeled image"),
        (
            corpus_of({"a": 9, "b": 2}, is_benchmark=False),
            {"labels_per_class": None, "validation_per_class": 2},
            "class 'b' has 2 labeled images; `data.validation_per_class=2` would leave none",
        ),
        (corpus_of({"a": 9, "b": 3}), {"labels_per_class": 0}, "`labels_per_class=0`: must be at least 1"),
        (corpus_of({"a": 9, "b": 3}), {"labels_per_class": 1, "seed": -1}, "`data.split_seed=-1`: must be 0 or more"),
        (
            corpus_of({"a": 9, "b": 3}),
            {"labels_per_class": 1, "validation_per_class": -1},
            "`data.validation_per_class=-1`",
        ),
    ],
)
def test_splits_that_cannot_be_drawn(corpus: Corpus, options: dict[str, int], match: str) -> None:
    with pytest.raises(UserError, match=match):
        make_split(corpus, **options)  # type: ignore[arg-type]


# --- split.json ---------------------------------------------------------------------------------------------------


def same(a: Split, b: Split) -> bool:
    arrays = ("labeled", "unlabeled", "labels", "validation", "validation_labels")
    plain = ("seed", "labels_per_class", "include_labeled", "hash")
    return all(np.array_equal(getattr(a, x), getattr(b, x)) for x in arrays) and all(
        getattr(a, x) == getattr(b, x) for x in plain
    )


@pytest.mark.parametrize("include_labeled", [True, False])
@pytest.mark.parametrize("validation", [0, 2])
@pytest.mark.parametrize("is_benchmark", [True, False])
def test_round_trip(tmp_path: Path, include_labeled: bool, validation: int, is_benchmark: bool) -> None:
    corpus = corpus_of({"a": 9, "b": 6}, unlabeled=4, is_benchmark=is_benchmark)
    split = make_split(
        corpus, labels_per_class=3, seed=5, include_labeled=include_labeled, validation_per_class=validation
    )
    save_split(split, corpus, tmp_path / "split.json")
    assert same(load_split(tmp_path / "split.json", corpus), split)
    assert os.listdir(tmp_path) == ["split.json"]


def test_the_file_is_for_people_and_short(tmp_path: Path) -> None:
    corpus = replace(corpus_of({"größe": 900, "b": 900}), skipped=("train/b/bad.png",))
    split = make_split(corpus, labels_per_class=2, validation_per_class=1)
    save_split(split, corpus, tmp_path / "split.json")
    text = (tmp_path / "split.json").read_text(encoding="utf-8")
    assert len(text) < 2000
    assert "größe" in text
    saved = json.loads(text)
    assert saved["hash"] == split.hash
    assert (saved["seed"], saved["labels_per_class"], saved["include_labeled"]) == (0, 2, True)
    assert saved["classes"] == ["b", "größe"]
    assert [entry["label"] for entry in saved["labeled"]] == ["b", "b", "größe", "größe"]
    assert saved["labeled"][0]["path"] == corpus.images.names[split.labeled[0]]
    assert len(saved["validation"]) == 2
    assert saved["unlabeled"] == "all others"
    assert saved["skipped"] == ["train/b/bad.png"]
    expected = {"classes": 2, "images": 1800, "labeled": 4, "unlabeled": 1798, "validation": 2, "skipped": 1}
    assert saved["counts"] == expected


def test_unlabeled_files_are_listed_where_they_are_not_simply_the_others(tmp_path: Path) -> None:
    corpus = corpus_of({"a": 4, "b": 4}, unlabeled=6, is_benchmark=False)
    split = replace(make_split(corpus, labels_per_class=None), unlabeled=np.array([8, 10]))
    save_split(split, corpus, tmp_path / "split.json")
    assert json.loads((tmp_path / "split.json").read_text())["unlabeled"] == [corpus.images.names[i] for i in (8, 10)]
    with pytest.raises(UserError, match="changed"):  # its hash is still that of the whole
        load_split(tmp_path / "split.json", corpus)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    corpus = corpus_of({"a": 2, "b": 2}, is_benchmark=False)
    names = [name.replace("000", "\udcff") for name in corpus.images.names]
    corpus = replace(corpus, images=ArrayImages(np.zeros((4, 2, 2), np.uint8), names))
    split = make_split(corpus, labels_per_class=None)
    save_split(split, corpus, tmp_path / "split.json")
    assert same(load_split(tmp_path / "split.json", corpus), split)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of({"a": 4, "b": 4})
    path = tmp_path / "split.json"
    save_split(make_split(corpus, labels_per_class=1), corpus, path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="disk full"):
        save_split(make_split(corpus, labels_per_class=2), corpus, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["split.json"]


@pytest.mark.parametrize(
    "field", ["hash", "seed", "labels_per_class", "include_labeled", "counts", "classes", "pictures"]
)
def test_a_field_that_is_missing(tmp_path: Path, field: str) -> None:
    """One that may be null ended in a traceback."""
    corpus = corpus_of({"a": 4, "b": 4})
    path = tmp_path / "split.json"
    save_split(make_split(corpus, labels_per_class=2), corpus, path)
    saved = json.loads(path.read_text())
    del saved[field]
    path.write_text(json.dumps(saved))
    if field in ("labels_per_class", "pictures"):  # older runs lack them
        load_split(path, corpus)
        return
    with pytest.raises(UserError, match=rf"field {field}: .* found nothing"):
        load_split(path, corpus)


def test_files_that_are_no_split(tmp_path: Path) -> None:
    corpus = corpus_of({"a": 4, "b": 4})
    path = tmp_path / "split.json"
    with pytest.raises(UserError, match=r"split.json: cannot be read \(No such file"):
        load_split(path, corpus)
    for content in ("", "{", "[]", "{}", "\xff"):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(UserError, match=r"split.json: not a saved split"):
            load_split(path, corpus)
    save_split(make_split(corpus, labels_per_class=1), corpus, path)
    saved = json.loads(path.read_text())
    for field, value, where in (
        ("seed", "0", "seed"), ("labeled", [{"path": "x"}], r"labeled\[0\].label"), ("skipped", [1], r"skipped\[0\]"),
        ("pictures", ["x"], "pictures"), ("counts", {"images": "x"}, r"counts.images"),
    ):  # fmt: skip
        path.write_text(json.dumps({**saved, field: value}))
        with pytest.raises(UserError, match=rf"split.json: not a saved split: (field {where}: )?expected"):
            load_split(path, corpus)
    del saved["pictures"]
    path.write_text(json.dumps(saved))
    load_split(path, corpus)


@pytest.fixture
def started(tmp_path: Path) -> tuple[Path, Path]:
    """A folder in layout 1 and the split of a run on it."""
    data = put(
        tmp_path / "photos",
        *(f"labeled/{c}/{i}.png" for c in ("cat", "dog") for i in range(2)),
        *(f"unlabeled/{i}.png" for i in range(5)),
    )
    corpus = Source.parse(data).corpus()
    save_split(make_split(corpus, labels_per_class=None), corpus, tmp_path / "split.json")
    return data, tmp_path / "split.json"


def test_unchanged_data_load(started: tuple[Path, Path]) -> None:
    data, path = started
    corpus = Source.parse(data).corpus()
    assert same(load_split(path, corpus), make_split(corpus, labels_per_class=None))


def change_error(data: Path, path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_split(path, Source.parse(data).corpus())
    message = str(caught.value)
    assert "\n" not in message
    assert "the images of 'photos' have changed since this run was started" in message
    return message


def test_labeled_files_gone(started: tuple[Path, Path]) -> None:
    (started[0] / "labeled/cat/1.png").unlink()
    (started[0] / "unlabeled/1.png").unlink()
    (started[0] / "unlabeled/2.png").unlink()
    assert "3 files are missing, e.g. labeled/cat/1.png" in change_error(*started)


def test_an_unlabeled_file_gone(started: tuple[Path, Path]) -> None:
    (started[0] / "unlabeled/1.png").unlink()
    assert "1 file is missing" in change_error(*started)


def test_new_files(started: tuple[Path, Path]) -> None:
    put(started[0], "unlabeled/8.png", "unlabeled/9.png")
    assert "2 files are new" in change_error(*started)


def test_a_renamed_file(started: tuple[Path, Path]) -> None:
    (started[0] / "unlabeled/1.png").rename(started[0] / "unlabeled/9.png")
    assert "the number of files is the same, but their names differ" in change_error(*started)


def test_a_file_that_broke_and_one_that_was_mended(started: tuple[Path, Path]) -> None:
    data, path = started
    (data / "unlabeled/1.png").write_bytes(b"")
    assert "1 file can no longer be read, e.g. unlabeled/1.png." in change_error(data, path)
    (data / "labeled/dog/1.png").write_bytes(b"")
    message = change_error(data, path)
    assert "2 files can no longer be read, e.g. labeled/dog/1.png." in message
    assert "missing" not in message

    corpus = Source.parse(data).corpus()
    save_split(make_split(corpus, labels_per_class=None), corpus, path)
    put(data, "unlabeled/1.png")
    message = change_error(data, path)
    assert "1 unreadable file can be read now or was removed, e.g. unlabeled/1.png" in message
    assert "new" not in message.replace("new run", "")


def test_classes_that_changed(started: tuple[Path, Path]) -> None:
    data, path = started
    put(data, "labeled/eel/1.png")
    assert "class 'eel' is new" in change_error(data, path)
    (data / "labeled/dog").rename(data / "labeled/wolf")
    assert "class 'dog' is missing; class 'eel' is new" in change_error(data, path)


def test_a_label_that_changed(tmp_path: Path) -> None:
    data = put(tmp_path / "photos", *(f"{i}.png" for i in range(5)))
    file = tmp_path / "labels.csv"
    file.write_text("path,label\n0.png,a\n1.png,b\n2.png,b\n")
    corpus = Source.parse(data, labels=file).corpus()
    save_split(make_split(corpus, labels_per_class=None), corpus, tmp_path / "split.json")
    for rows, expected in (
        ("0.png,a\n1.png,b\n2.png,a\n", "2.png was labeled 'b' and is now 'a'"),
        ("0.png,a\n1.png,b\n", "2.png was labeled 'b' and is now unlabeled"),
    ):
        file.write_text("path,label\n" + rows)
        with pytest.raises(UserError, match=expected):
            load_split(tmp_path / "split.json", Source.parse(data, labels=file).corpus())


def test_new_labels_do_not_disturb_a_run_that_was_started(tmp_path: Path) -> None:
    data = put(tmp_path / "photos", *(f"{i}.png" for i in range(5)))
    file = tmp_path / "labels.csv"
    file.write_text("path,label\n0.png,a\n1.png,b\n")
    corpus = Source.parse(data, labels=file).corpus()
    split = make_split(corpus, labels_per_class=None)
    save_split(split, corpus, tmp_path / "split.json")
    file.write_text("path,label\n0.png,a\n1.png,b\n3.png,a\n")
    assert same(load_split(tmp_path / "split.json", Source.parse(data, labels=file).corpus()), split)


def test_digits_split_is_a_promise(tmp_path: Path) -> None:
    corpus = Source.parse("digits").corpus()
    split = make_split(corpus, labels_per_class=4)
    assert np.bincount(split.labels).tolist() == [4] * 10
    assert split.hash == "39f35c88a8b3c5ab0d15d559e140b1343f2b77a5e66ea54356714d010fa93f74"
    save_split(split, corpus, tmp_path / "split.json")
    assert same(load_split(tmp_path / "split.json", corpus), split)
    assert "labeled" in repr(split)
