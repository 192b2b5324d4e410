"""DATA in each of its forms, and every way in which it can be wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from selftrain.data.corpus import Corpus
from selftrain.data.images import ArrayImages, FileImages
from selftrain.data.source import Source
from selftrain.data.sources.arrays import corpus_from_arrays
from selftrain.data.sources.label_file import possible_typos
from selftrain.data.sources.named import DATASETS, DatasetSpec
from selftrain.errors import UserError


def put(root: Path, *names: str) -> Path:
    """Small real images."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (len(name), 0, 0)).save(path)
    return root


def put_broken(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\x89PNG\r\n\x1a\n")


def put_labels(path: Path, *rows: str, header: str = "path,label") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def known(corpus: Corpus) -> dict[str, str]:
    """Name to class, for the labeled images."""
    pairs = zip(corpus.images.names, corpus.labels.tolist(), strict=True)
    return {name: corpus.classes[k] for name, k in pairs if k >= 0}


def names_of_test(corpus: Corpus) -> dict[str, str]:
    assert corpus.test is not None
    assert corpus.test_labels is not None
    pairs = zip(corpus.test.names, corpus.test_labels.tolist(), strict=True)
    return {name: corpus.classes[k] for name, k in pairs}


def error_of(data: str | Path, *, root: Path | None = None, labels: Path | None = None, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        Source.parse(data, root=root, labels=labels).corpus(**options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def layout1(tmp_path: Path) -> Path:
    return put(
        tmp_path / "photos",
        *("labeled/dog/1.png", "labeled/cat/2.jpg", "labeled/cat/deep/er/3.png"),
        *("unlabeled/a.png", "unlabeled/sub/b.webp", "test/cat/t.png", "test/dog/x/t.png"),
    )


@pytest.fixture
def layout2(tmp_path: Path) -> Path:
    return put(
        tmp_path / "bench", *(f"train/{c}/{i}.png" for c in "ab" for i in range(3)), "test/a/0.png", "test/b/0.png"
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return put(tmp_path / "tree", "1.png", "x/2.png", "x/3.png", "x/y/4.png", "z/5.png")


# --- layout 1 -----------------------------------------------------------------------------------------------------


def test_layout_1(layout1: Path) -> None:
    corpus = Source.parse(layout1).corpus()
    assert corpus.name == "photos"
    assert corpus.classes == ("cat", "dog")
    assert corpus.images.names == sorted(corpus.images.names)
    assert known(corpus) == {
        "labeled/cat/2.jpg": "cat",
        "labeled/cat/deep/er/3.png": "cat",
        "labeled/dog/1.png": "dog",
    }
    assert (corpus.labels == -1).sum() == 2
    assert np.array_equal(corpus.truth, corpus.labels)
    assert names_of_test(corpus) == {"test/cat/t.png": "cat", "test/dog/x/t.png": "dog"}
    assert (corpus.is_benchmark, corpus.flip, corpus.skipped) == (False, True, ())
    assert corpus.images.load(0).size == (4, 4)
    assert "2 classes, 5 images, 3 labels, test 2" in repr(corpus)
    assert corpus.labels.dtype == np.int64


def test_layout_1_without_unlabeled_or_test(tmp_path: Path) -> None:
    corpus = Source.parse(str(put(tmp_path, "labeled/a/1.png", "labeled/b/1.png"))).corpus()
    assert corpus.test is None
    assert corpus.test_labels is None
    assert corpus.labels.tolist() == [0, 1]


def test_class_names_that_sort_around_a_slash(tmp_path: Path) -> None:
    put(tmp_path, "labeled/a/1.png", "labeled/a b/1.png", "labeled/a.b/1.png", "unlabeled/1.png")
    corpus = Source.parse(tmp_path).corpus()
    assert corpus.classes == ("a", "a b", "a.b")
    assert known(corpus) == {f"labeled/{name}/1.png": name for name in corpus.classes}


def test_a_misspelled_unlabeled_folder_is_not_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "labeled/a/1.png", "labeled/b/1.png", "unlabelled/1.png")
    assert "rename it to 'unlabeled'" in error_of(tmp_path)


def test_labeled_and_train_together(tmp_path: Path) -> None:
    put(tmp_path, "labeled/a/1.png", "labeled/b/1.png", "train/a/1.png")
    assert "both labeled/ and train/" in error_of(tmp_path)


# --- layout 2 -----------------------------------------------------------------------------------------------------


def test_layout_2(layout2: Path) -> None:
    corpus = Source.parse(layout2).corpus()
    assert corpus.is_benchmark
    assert corpus.classes == ("a", "b")
    assert corpus.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert corpus.truth.tolist() == corpus.labels.tolist()
    assert names_of_test(corpus) == {"test/a/0.png": "a", "test/b/0.png": "b"}


def test_layout_2_without_test(tmp_path: Path) -> None:
    corpus = Source.parse(put(tmp_path, "train/a/1.png", "train/b/1.png")).corpus()
    assert corpus.is_benchmark
    assert corpus.test is None


# --- layout 3 -----------------------------------------------------------------------------------------------------


def test_layout_3(tree: Path, tmp_path: Path) -> None:
    file = put_labels(tmp_path / "labels.csv", "1.png,dog", "x/2.png, cat ", "x/y/4.png,dog")
    corpus = Source.parse(tree, labels=file).corpus()
    assert corpus.classes == ("cat", "dog")
    assert corpus.images.names == ["1.png", "x/2.png", "x/3.png", "x/y/4.png", "z/5.png"]
    assert known(corpus) == {"1.png": "dog", "x/2.png": "cat", "x/y/4.png": "dog"}
    assert corpus.truth.tolist() == corpus.labels.tolist()
    assert not corpus.is_benchmark
    assert corpus.test is None


def test_label_paths_in_every_spelling(tree: Path, tmp_path: Path) -> None:
    file = put_labels(
        tree / "x/labels.csv",
        *("1.png,a", "2.png,b", ".\\y\\4.png,a", f'"{tree}/z/5.png",b', "./x//3.png,b"),
    )
    corpus = Source.parse(tree, labels=file).corpus()
    assert known(corpus) == {"1.png": "a", "x/2.png": "b", "x/3.png": "b", "x/y/4.png": "a", "z/5.png": "b"}


def test_labels_beside_the_folder(tree: Path, tmp_path: Path) -> None:
    file = put_labels(tmp_path / "labels.csv", "tree/1.png,a", "tree\\x\\2.png,b")
    assert known(Source.parse(tree, labels=file).corpus()) == {"1.png": "a", "x/2.png": "b"}


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_labels_through_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)
    file = put_labels(tmp_path / "labels.csv", f"{tmp_path}/link/1.png,a", "link/x/2.png,b")
    assert known(Source.parse(tree, labels=file).corpus()) == {"1.png": "a", "x/2.png": "b"}


def test_more_columns_a_byte_order_mark_and_blank_lines(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes('\ufeffid,Label,note,path\r\n1,é,"a, b",1.png\r\n\r\n2,b,,x/2.png\r\n'.encode())
    corpus = Source.parse(tree, labels=file).corpus()
    assert known(corpus) == {"1.png": "é", "x/2.png": "b"}


def test_labels_over_layout_1_and_2_ignore_folder_names(layout1: Path, layout2: Path, tmp_path: Path) -> None:
    file = put_labels(tmp_path / "one.csv", "labeled/dog/1.png,cat", "unlabeled/a.png,dog")
    corpus = Source.parse(layout1, labels=file).corpus()
    assert known(corpus) == {"labeled/dog/1.png": "cat", "unlabeled/a.png": "dog"}
    assert len(corpus.images) == 5
    assert set(names_of_test(corpus)) == {"test/cat/t.png", "test/dog/x/t.png"}

    file = put_labels(tmp_path / "two.csv", "train/a/0.png,a", "train/b/0.png,b")
    corpus = Source.parse(layout2, labels=file).corpus()
    assert not corpus.is_benchmark
    assert len(corpus.images) == 6
    assert (corpus.truth >= 0).sum() == 2
    assert set(names_of_test(corpus)) == {"test/a/0.png", "test/b/0.png"}


def test_a_test_folder_without_class_folders_belongs_to_the_pool(tree: Path, tmp_path: Path) -> None:
    put(tree, "test/6.png", "test/batch/7.png")
    corpus = Source.parse(tree, labels=put_labels(tmp_path / "labels.csv", "1.png,a", "x/2.png,b")).corpus()
    assert corpus.test is None
    assert "test/6.png" in corpus.images.names


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["1.png,a", "x/22.png,b"], r"line 3: there is no image 'x/22.png' in .*Did you mean 'x/2.png'?"),
        (["1.png,a", "x/4.png,b"], r"line 3: there is no image 'x/4.png' in .*Did you mean 'x/y/4.png'?"),
        (["1.PNG,a", "x/2.png,b"], r"line 2: there is no image '1.PNG' in .*Did you mean '1.png'?"),
        (["1.png,a", "quite/other.png,b"], r"line 3: there is no image 'quite/other.png' in \S+$"),
        (["1.png,a", "no.png,b"], r"line 3: there is no image 'no.png' in \S+$"),  # as like 1.png as endings make it
        (["1.png,a", "x/2.png,b", "./1.png,a"], r"line 4: '1.png' already has a row, line 2"),
        (["1.png,a", "x/2.png,"], r"line 3: no label for 'x/2.png'"),
        (["1.png,a", "x/2.png"], r"line 3: no label for 'x/2.png'"),
        (["1.png,a", ",b"], r"line 3: no path"),
        (["1.png,a", "x/2.png,b, c"], r'line 3: 3 values, but the first line names 2 columns.*: x/2.png,"a, b"'),
        (["1.png,a", "notes.txt,b"], r"line 3: 'notes.txt' is not an image in a supported format \(png jpg"),
        (["1.png,a", "../outside.png,b"], r"line 3: '../outside.png' lies outside `data`"),
        (["1.png,a", "x/2.png,a"], r"labels.csv: only one class \(a\)"),
        (
            ["1.png,a b", "x/2.png,c", "x/y/4.png,A  b"],
            r"line 4: the label 'A  b' differs from 'a b' \(line 2\) only in case or spaces",
        ),
        ([], r"labels.csv: no rows"),
    ],
)
def test_wrong_rows(tree: Path, tmp_path: Path, rows: list[str], expected: str) -> None:
    (tree / "notes.txt").touch()
    put(tmp_path, "outside.png")
    with pytest.raises(UserError, match=expected):
        Source.parse(tree, labels=put_labels(tmp_path / "labels.csv", *rows)).corpus()


def test_accents_in_one_piece_or_in_two(tmp_path: Path) -> None:
    one, two = "K\u00e4fer", "Ka\u0308fer"
    data = put(tmp_path / "tree", f"{one}/1.png", f"{two}/{two}.png", "3.png", f"test/{two}/0.png")
    file = put_labels(tmp_path / "l.csv", f"{two}/1.png,{one}", f"{one}/{one}.png,{two}", f"{data}/3.png,b")
    corpus = Source.parse(data, labels=file).corpus()
    assert known(corpus) == {f"{one}/1.png": one, f"{two}/{two}.png": one, "3.png": "b"}
    assert names_of_test(corpus) == {f"test/{two}/0.png": one}
    put_labels(file, f"{one}/1.png,{one}", f"{two}/1.png,{one}", "3.png,b")
    assert f"line 3: '{one}/1.png' already has a row" in error_of(data, labels=file)
    put_labels(file, f"test/{one}/0.png,{one}", "3.png,b")
    assert "line 2" in error_of(data, labels=file)
    assert "belongs to the test set" in error_of(data, labels=file)
    data = put(tmp_path / "folders", f"train/{one}/1.png", f"train/{two}/2.png", "train/b/1.png", f"test/{two}/1.png")
    corpus = Source.parse(data).corpus()
    assert known(corpus) == {f"train/{one}/1.png": one, f"train/{two}/2.png": one, "train/b/1.png": "b"}
    assert names_of_test(corpus) == {f"test/{two}/1.png": one}
    for classes in (("b", one), ("b", two)):
        assert Source.parse(data).test_set(classes)[1].tolist() == [1]


def test_a_row_for_a_test_image(layout2: Path, tmp_path: Path) -> None:
    file = put_labels(tmp_path / "labels.csv", "train/a/0.png,a", "test/b/0.png,b")
    assert "line 3: 'test/b/0.png' belongs to the test set" in error_of(layout2, labels=file)


def test_wrong_label_files(tree: Path, tmp_path: Path) -> None:
    assert "no such file" in error_of(tree, labels=tmp_path / "none.csv")
    assert "it is a folder" in error_of(tree, labels=tmp_path)
    (tmp_path / "latin.csv").write_bytes("path,label\n1.png,é\n".encode("latin-1"))
    assert "latin.csv: not UTF-8" in error_of(tree, labels=tmp_path / "latin.csv")
    (tmp_path / "wide.csv").write_bytes("path,label\n1.png,a\n".encode("utf-16"))
    assert "wide.csv: not UTF-8" in error_of(tree, labels=tmp_path / "wide.csv")
    file = put_labels(tmp_path / "columns.csv", "1.png,a", header="file,label")
    assert "no column path in the first line (found file, label)" in error_of(tree, labels=file)
    for header, column in (("path,label,Label", "label"), (" path ,path,label", "path")):
        file = put_labels(tmp_path / "twice.csv", "1.png,a,b", header=header)
        assert f"twice.csv: 2 columns are called '{column}'; keep one" in error_of(tree, labels=file)
    file = put_labels(tmp_path / "semicolon.csv", "1.png;a", header="path;label")
    assert "no column path and no column label" in error_of(tree, labels=file)
    (tmp_path / "empty.csv").touch()
    assert "found nothing" in error_of(tree, labels=tmp_path / "empty.csv")
    (tmp_path / "long.csv").write_text("path,label\n1.png," + "a" * 200_000)
    assert "long.csv: not a CSV file" in error_of(tree, labels=tmp_path / "long.csv")
    (tmp_path / "bare").mkdir()
    file = put_labels(tmp_path / "ok.csv", "1.png,a", "2.png,b")
    assert "no image in this folder" in error_of(tmp_path / "bare", labels=file)


# --- what DATA means ----------------------------------------------------------------------------------------------


def test_data_is_a_folder_a_name_or_a_folder_in_root(
    layout2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Source.parse("bench", root=tmp_path).corpus().name == "bench"
    assert Source.parse("digits").corpus().name == "digits"
    assert Source.parse("digits", root=tmp_path).corpus().name == "digits"
    monkeypatch.chdir(layout2)
    assert Source.parse(".").corpus().name == "bench"


def test_data_that_is_nothing(layout2: Path, tmp_path: Path) -> None:
    assert "Did you mean 'digits'?" in error_of("digit")
    message = error_of("bensh", root=tmp_path)
    assert f"here or in {tmp_path}" in message
    assert "Did you mean 'bench'?" in message
    assert "the folder does not exist, and there is no dataset of that name" in error_of("")
    assert "`root`" in error_of("bench", root=tmp_path / "none")
    assert "is a file" in error_of(layout2 / "train/a/0.png")


def test_folders_that_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty: no image in this folder (png jpg" in error_of(tmp_path / "empty")
    put(tmp_path / "plain", "cats/1.png", "dogs/1.png", "loose.png")
    message = error_of(tmp_path / "plain")
    assert "layout not recognised (found cats/, dogs/, 1 images directly in it)" in message
    for layout in ("labeled/<class>/*", "train/<class>/*", "`labels`, with the columns path and label"):
        assert layout in message
    put_labels(tmp_path / "plain/labels.csv", "loose.png,a")
    assert f"pass `labels={tmp_path / 'plain/labels.csv'}`" in error_of(tmp_path / "plain")
    put(tmp_path / "only", "unlabeled/1.png")
    assert "layout not recognised (found unlabeled/)" in error_of(tmp_path / "only")


@pytest.mark.parametrize("top", ["labeled", "train"])
def test_class_folders_that_are_wrong(tmp_path: Path, top: str) -> None:
    put(tmp_path / "one", f"{top}/a/1.png")
    assert "only one class (a)" in error_of(tmp_path / "one")
    put(tmp_path / "hollow", f"{top}/a/1.png", f"{top}/b/1.png", "unlabeled/1.png")
    (tmp_path / "hollow" / top / "c").mkdir()
    assert f"{top}/c: no image in this class folder" in error_of(tmp_path / "hollow")
    put(tmp_path / "loose", f"{top}/a/1.png", f"{top}/b/1.png", f"{top}/2.png")
    assert f"{top}/2.png: is not in a class folder" in error_of(tmp_path / "loose")
    put(tmp_path / "flat", f"{top}/1.png")
    assert f"{top}: contains no class folder" in error_of(tmp_path / "flat")
    put(tmp_path / "bare", "unlabeled/1.png")
    (tmp_path / "bare" / top).mkdir()
    assert f"{top}: no image in this folder" in error_of(tmp_path / "bare")


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    put(tmp_path, "labeled/a/1.png", "labeled/b/1.png", "labeled/.thumbs/1.png", "labeled/__MACOSX/1.png")
    assert Source.parse(tmp_path).corpus().classes == ("a", "b")


# --- the test set -------------------------------------------------------------------------------------------------


def test_another_test_folder(layout1: Path, tmp_path: Path) -> None:
    put(tmp_path / "mine", "cat/1.png", "cat/2.png")
    corpus = Source.parse(layout1).corpus(test=tmp_path / "mine")
    assert names_of_test(corpus) == {"cat/1.png": "cat", "cat/2.png": "cat"}
    assert len(corpus.images) == 5


def test_test_images_inside_data_are_kept_out_of_the_pool(layout1: Path, tree: Path, tmp_path: Path) -> None:
    put(layout1, "unlabeled/held/cat/9.png")
    corpus = Source.parse(layout1).corpus(test=layout1 / "unlabeled/held")
    assert names_of_test(corpus) == {"cat/9.png": "cat"}
    assert "unlabeled/a.png" in corpus.images.names
    assert "unlabeled/held/cat/9.png" not in corpus.images.names

    put(tree, "held/b/9.png")
    corpus = Source.parse(tree, labels=put_labels(tmp_path / "l.csv", "1.png,a", "x/2.png,b")).corpus(
        test=tree / "held"
    )
    assert names_of_test(corpus) == {"b/9.png": "b"}
    assert len(corpus.images) == 5


def test_wrong_test_folders(layout1: Path, tree: Path, tmp_path: Path) -> None:
    put(tmp_path / "mine", "cat/1.png", "dogs/1.png")
    message = error_of(layout1, test=tmp_path / "mine")
    assert "mine/dogs: not a class of the training data (cat, dog). Did you mean 'dog'?" in message
    put(layout1, "test/bird/1.png")
    assert "test/bird: not a class" in error_of(layout1)
    assert "there is no such folder" in error_of(layout1, test=tmp_path / "none")
    assert "contains training images" in error_of(layout1, test=layout1 / "labeled")
    (tmp_path / "bare").mkdir()
    assert "bare: no image" in error_of(layout1, test=tmp_path / "bare")
    file = put_labels(tmp_path / "l.csv", "1.png,a", "x/2.png,b")
    assert "is the same folder as `data`" in error_of(tree, labels=file, test=tree)


def test_a_test_set_for_known_classes(layout1: Path, tmp_path: Path) -> None:
    folder = put(tmp_path / "plain", "b/1.png", "b/2.png", "a/3.png")
    put_broken(folder, "b/4.png")
    images, labels, skipped = Source.parse(folder).test_set(["c", "a", "b"])
    assert images.names == ["a/3.png", "b/1.png", "b/2.png"]
    assert labels.tolist() == [1, 2, 2]
    assert skipped == ("b/4.png",)
    assert Source.parse("plain", root=tmp_path).test_set(["a", "b"])[1].tolist() == [0, 1, 1]

    images, labels, _ = Source.parse(layout1).test_set(["cat", "dog"])
    assert images.names == ["test/cat/t.png", "test/dog/x/t.png"]
    assert labels.tolist() == [0, 1]

    put(tmp_path / "odd", "test/1.png", "train/1.png")
    assert Source.parse(tmp_path / "odd").test_set(["test", "train"])[1].tolist() == [0, 1]

    labels = Source.parse("digits").test_set(tuple("9876543210")).labels
    own = Source.parse("digits").corpus().test_labels
    assert own is not None
    assert np.array_equal(9 - labels, own)


def test_test_images_in_a_file_of_their_own(tree: Path, tmp_path: Path) -> None:
    names = Source.parse(tree, labels=put_labels(tmp_path / "all.csv", "1.png,a", "x/2.png,b")).corpus().images.names
    others = [name for name in names if name not in ("1.png", "x/2.png")]
    put(tree, "y/t1.png", "y/t2.png")
    labels = put_labels(tmp_path / "train.csv", "1.png,a", "x/2.png,b")
    test = put_labels(tmp_path / "test.csv", "y/t2.png,a", "y/t1.png,b")
    corpus = Source.parse(tree, labels=labels).corpus(test=test)
    assert corpus.images.names == sorted(["1.png", "x/2.png", *others])  # what is tested on is not trained on
    assert corpus.test is not None
    assert corpus.test_labels is not None
    assert (corpus.test.names, corpus.test_labels.tolist()) == (["y/t1.png", "y/t2.png"], [1, 0])

    images, known, _ = Source.parse(tree, labels=test).test_set(["b", "a"])
    assert (images.names, known.tolist()) == (["y/t1.png", "y/t2.png"], [0, 1])

    both = put_labels(tmp_path / "both.csv", "1.png,a", "x/2.png,b", "y/t1.png,b")
    assert "both.csv, line 4: 'y/t1.png' belongs to the test set" in error_of(tree, labels=both, test=test)
    odd = put_labels(tmp_path / "odd.csv", "y/t1.png,a", "y/t2.png,c")
    assert "odd.csv, line 3: the label 'c' is not a class of the training data (a, b)" in error_of(
        tree, labels=labels, test=odd
    )
    assert "a file is possible only with `labels`" in error_of(tree, test=test)
    with pytest.raises(UserError, match="only a folder of images can have a label file, not 'digits'"):
        Source.parse("digits", labels=test).test_set(["a", "b"])
    with pytest.raises(UserError, match=r"gone\.csv: cannot be read"):
        Source.parse(tree, labels=tmp_path / "gone.csv").test_set(["a", "b"])


def test_labels_that_may_be_misspelt(tmp_path: Path) -> None:
    labels = {"leaf": 3, "laef": 1, "root": 2, "roots": 2, "room1": 1, "room2": 2, "bud": 1}
    rows = [f"{name}{i}.png,{name}" for name, count in labels.items() for i in range(count)]
    tree = put(tmp_path / "tree", *(row.split(",")[0] for row in rows))
    corpus = Source.parse(tree, labels=put_labels(tmp_path / "l.csv", *rows)).corpus()
    assert possible_typos(corpus) == [("laef", "leaf")]


def test_wrong_test_sets(layout1: Path, tmp_path: Path) -> None:
    put(tmp_path / "plain", "b/1.png", "a/3.png")
    put_broken(tmp_path / "plain", "b/4.png")
    put(tmp_path / "trained", "train/a/1.png", "train/b/1.png")
    for data, classes, match in (
        (tmp_path / "plain", ["a", "c"], "plain/b: not a class of the training data"),
        (tmp_path / "none", ["a", "b"], "the folder does not exist"),
        (tmp_path / "trained", ["a", "b"], "contains train/ but no test/<class> folders"),
        (layout1, ["cat", "cow"], "test/dog: not a class"),
        ("digits", ["0", "1"], "digits: '.' is not one of the classes"),
    ):
        with pytest.raises(UserError, match=match):
            Source.parse(data).test_set(classes)
    with pytest.raises(UserError, match="`strict`"):
        Source.parse(tmp_path / "plain").test_set(["a", "b"], strict=True)


# --- images that cannot be read ------------------------------------------------------------------------------------


def test_unreadable_images_are_skipped(layout1: Path) -> None:
    put_broken(layout1, "labeled/cat/bad.png", "unlabeled/bad.png", "test/cat/bad.png")
    calls: list[tuple[int, int]] = []
    corpus = Source.parse(layout1).corpus(progress=lambda done, total: calls.append((done, total)))
    assert corpus.skipped == ("labeled/cat/bad.png", "unlabeled/bad.png", "test/cat/bad.png")
    assert len(corpus.images) == 5
    assert len(known(corpus)) == 3
    assert len(names_of_test(corpus)) == 2
    assert calls == sorted(calls)
    assert calls[-1] == (10, 10)


def test_skipped_files_of_another_folder_are_named_in_full(layout1: Path, tmp_path: Path) -> None:
    put(tmp_path / "mine", "cat/1.png")
    put_broken(tmp_path / "mine", "cat/bad.png")
    assert Source.parse(layout1).corpus(test=tmp_path / "mine").skipped == (str(tmp_path / "mine/cat/bad.png"),)


def test_strict_stops(layout1: Path) -> None:
    put_broken(layout1, "unlabeled/bad.png")
    message = error_of(layout1, strict=True)
    assert "unlabeled/bad.png: it " in message
    assert "Leave out `strict`" in message


def test_a_class_without_a_readable_image(layout1: Path, tree: Path, tmp_path: Path) -> None:
    put_broken(tree, "x/bad.png")
    file = put_labels(tmp_path / "l.csv", "1.png,a", "x/bad.png,b")
    message = error_of(tree, labels=file)
    assert "l.csv, class 'b': this class has no readable image" in message
    assert "x/bad.png" in message
    put_broken(layout1, "test/dog/x/t.png")
    assert "test/dog: this class has no readable image" in error_of(layout1)
    put_broken(layout1, "labeled/dog/1.png")
    message = error_of(layout1)
    assert "labeled/dog: this class has no readable image; the first error is" in message
    assert "labeled/dog/1.png: it " in message


def test_how_much_is_checked(layout1: Path) -> None:
    Image.new("RGB", (64, 64)).save(layout1 / "unlabeled/cut.bmp")
    (layout1 / "unlabeled/cut.bmp").write_bytes((layout1 / "unlabeled/cut.bmp").read_bytes()[:500])
    (layout1 / "unlabeled/empty.png").touch()
    assert Source.parse(layout1).corpus().skipped == ("unlabeled/cut.bmp", "unlabeled/empty.png")
    assert Source.parse(layout1).corpus(check="header").skipped == ("unlabeled/empty.png",)
    assert Source.parse(layout1).corpus(check="none").skipped == ()
    assert "'full', 'header' or 'none'" in error_of(layout1, check="half")


# --- arrays -------------------------------------------------------------------------------------------------------

IMAGES = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)


@pytest.mark.parametrize(
    ("y", "classes", "labels"),
    [
        ([10, 9, -1, 10, 2, -1], ("2", "9", "10"), [2, 1, -1, 2, 0, -1]),
        (np.array([1.0, 0, -1, -1, -1, -1]), ("0", "1"), [1, 0, -1, -1, -1, -1]),
        (np.array([True, False, True, True, False, True]), ("False", "True"), [1, 0, 1, 1, 0, 1]),
        (["b", "a", "", "a", "b", ""], ("a", "b"), [1, 0, -1, 0, 1, -1]),
        (["\u00e4", "b", "a\u0308", "b", "", ""], ("b", "\u00e4"), [1, 0, 1, 0, -1, -1]),
        (["b", "a", None, "a", "b", None], ("a", "b"), [1, 0, -1, 0, 1, -1]),
        (np.array(["b", "a", -1, "a", "b", -1], object), ("a", "b"), [1, 0, -1, 0, 1, -1]),
        (np.array(["b", "a", -1, "a", "b", -1]), ("a", "b"), [1, 0, -1, 0, 1, -1]),
        (np.array([np.int64(3), None, np.int64(1), None, 1, 3], object), ("1", "3"), [1, -1, 0, -1, 0, 1]),
        ([0, 1, np.nan, 0, 0, 1], ("0", "1"), [0, 1, -1, 0, 0, 1]),
        (["b", "a", np.nan, "a", "b", None], ("a", "b"), [1, 0, -1, 0, 1, -1]),
        (pd.Series([3, None, 1, None, 1, 3], dtype="Int64"), ("1", "3"), [1, -1, 0, -1, 0, 1]),
    ],
)
def test_labels_in_arrays(y: object, classes: tuple[str, ...], labels: list[int]) -> None:
    corpus = corpus_from_arrays(IMAGES, y)  # type: ignore[arg-type]
    if classes == ("False", "True"):
        classes = ("0", "1")
    assert corpus.classes == classes
    assert corpus.labels.tolist() == labels
    assert corpus.truth.tolist() == labels
    assert isinstance(corpus.images, ArrayImages)
    assert (corpus.name, corpus.is_benchmark, corpus.flip, corpus.test) == ("arrays", False, True, None)


def test_arrays_with_class_names_and_a_test_set() -> None:
    corpus = corpus_from_arrays(
        IMAGES, [0, 1, -1, -1, -1, 0], test_x=IMAGES[:2], test_y=[2, 0], classes=["cat", "dog", "eel"], flip=False
    )
    assert corpus.classes == ("cat", "dog", "eel")
    assert corpus.test_labels is not None
    assert corpus.test_labels.tolist() == [2, 0]
    assert not corpus.flip
    corpus = corpus_from_arrays(IMAGES, ["dog", "cat", "", "", "", ""], classes=["dog", "cat"])
    assert corpus.classes == ("dog", "cat")
    assert corpus.labels.tolist() == [0, 1, -1, -1, -1, -1]
    assert (corpus_from_arrays(IMAGES, [-1] * 6, classes=["a", "b"]).labels == -1).all()


@pytest.mark.parametrize(
    ("y", "options", "match"),
    [
        ([0, 1], {}, "y: 2 labels for 6 images"),
        ([[0, 1]] * 6, {}, r"y: must be one label per image; got shape \(6, 2\)"),
        ([[0, 1], [1]] * 3, {}, r"y: must be one label per image; got rows of different lengths"),
        ([0, 1, 2, -2, 0, 1], {}, "y: -2 is not a label"),
        ([0, 1, 0.5, 0, 0, 1], {}, "y: must be integers or strings; got float64 with the value 0.5"),
        (np.array(["a", "b", np.nan, "a", "a", "a"]), {}, "y: has 'nan' among its strings"),
        (np.array(["a", 1, None, "a", "a", "a"], object), {}, "y: mixes integers and strings"),
        ([1, 1, 1, -1, -1, -1], {}, r"y: only one class \(1\)"),
        ([-1] * 6, {}, "y: no labeled image"),
        ([0, 1, 2, 0, 0, 1], {"classes": ["a", "b"]}, r"y: 2 is not one of the classes \(a, b\)"),
        (["cat", "dog", "dgo", "", "", ""], {"classes": ["cat", "dog"]}, "Did you mean 'dog'?"),
        ([0, 1, 1, 0, 0, 1], {"classes": ["a", "a"]}, "classes: a name occurs twice"),
        ([0, 1, 1, 0, 0, 1], {"test_x": IMAGES}, "go together"),
        ([0, 1, 1, 0, 0, 1], {"test_x": IMAGES, "test_y": [0]}, "test_y: 1 labels for 6"),
        ([0, 1, 1, 0, 0, 1], {"test_x": IMAGES, "test_y": [0, 1, -1, 0, 0, 0]}, "test_y: image 2 has no label"),
        ([0, 1, 1, 0, 0, 1], {"test_x": IMAGES[:1], "test_y": [5]}, "test_y: 5 is not one of the classes"),
    ],
)
def test_wrong_arrays(y: object, options: dict[str, object], match: str) -> None:
    with pytest.raises(UserError, match=match):
        corpus_from_arrays(IMAGES, y, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="shape"):
        corpus_from_arrays(IMAGES.reshape(6, 16), [0, 1, 0, 1, 0, 1])


def test_a_corpus_checks_itself() -> None:
    images = ArrayImages(IMAGES)
    good = np.zeros(6, np.int64)
    with pytest.raises(ValueError, match="labels must hold one class per image"):
        Corpus("x", ("a", "b"), images, good[:3], good)
    with pytest.raises(ValueError, match="truth must be positions in the 2 classes"):
        Corpus("x", ("a", "b"), images, good, good + 2)
    with pytest.raises(ValueError, match="test_labels"):
        Corpus("x", ("a", "b"), images, good, good, test=images)


# --- datasets by name ---------------------------------------------------------------------------------------------


def test_digits(tmp_path: Path) -> None:
    corpus = Source.parse("digits").corpus()
    again = Source.parse("digits").corpus()
    assert corpus.is_benchmark
    assert not corpus.flip
    assert corpus.classes == tuple("0123456789")
    assert isinstance(corpus.images, ArrayImages)
    assert isinstance(corpus.test, ArrayImages)
    assert corpus.test_labels is not None
    assert len(corpus.images) + len(corpus.test) == 1797
    assert not set(corpus.images.names) & set(corpus.test.names)
    assert corpus.images.pixels.shape[1:] == (1, 8, 8)
    assert (corpus.images.pixels.min(), corpus.images.pixels.max()) == (0, 255)
    everywhere = np.bincount(np.concatenate([corpus.labels, corpus.test_labels]))
    assert np.abs(np.bincount(corpus.test_labels) - everywhere / 5).max() <= 0.5
    # The draw never changes: exactly these images are for testing.
    assert corpus.test.names[:5] == ["0002", "0003", "0011", "0013", "0015"]
    assert again.test is not None
    assert again.test.names == corpus.test.names

    spec = DATASETS["digits"]
    assert isinstance(spec, DatasetSpec)
    assert (spec.name, spec.flip, spec.size, spec.channels) == ("digits", False, 8, 1)

    put(tmp_path / "mine", "3/a.png", "7/b.png")
    with_test = Source.parse("digits").corpus(test=tmp_path / "mine")
    assert isinstance(with_test.test, FileImages)
    assert names_of_test(with_test) == {"3/a.png": "3", "7/b.png": "7"}
    assert "only a folder of images can have a label file" in error_of("digits", labels=tmp_path / "l.csv")


# --- files that are there twice, and kinds that are not read --------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_what_is_tested_on_is_not_trained_on_through_links(tmp_path: Path) -> None:
    everything = put(tmp_path / "all", *(f"{i}.png" for i in range(8)))
    data = tmp_path / "data"
    for part, numbers in (("labeled", (0, 1)), ("test", (2, 3))):
        for name, i in zip(("cat", "dog"), numbers, strict=True):
            (data / part / name).mkdir(parents=True)
            (data / part / name / "x.png").symlink_to(everything / f"{i}.png")
    (data / "unlabeled").symlink_to(everything)
    corpus = Source.parse(data).corpus()
    unlabeled = [name for name, k in zip(corpus.images.names, corpus.labels.tolist(), strict=True) if k < 0]
    assert unlabeled == [f"unlabeled/{i}.png" for i in range(4, 8)]  # neither tested on nor labeled
    (data / "labeled" / "dog" / "y.png").symlink_to(everything / "3.png")
    message = error_of(data)
    assert "labeled/dog/y.png: is a labeled training image and also a test image" in message
    assert "test/dog/x.png" in message


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_links_in_a_tree_with_labels(tmp_path: Path) -> None:
    tree = put(tmp_path / "tree", "1.png", "2.png", "3.png", "4.png")
    labels = put_labels(tmp_path / "labels.csv", "1.png,a", "2.png,b")
    for name, i in (("a", 3), ("b", 4)):
        (tree / "test" / name).mkdir(parents=True)
        (tree / "test" / name / "t.png").symlink_to(tree / f"{i}.png")
    assert Source.parse(tree, labels=labels).corpus().images.names == ["1.png", "2.png"]
    (tree / "again").symlink_to(tree)  # all of it once more
    assert Source.parse(tree, labels=labels).corpus().images.names == ["1.png", "2.png"]


def test_class_folders_that_differ_by_capitals_or_spaces(tmp_path: Path) -> None:
    put(tmp_path, "train/cat/1.png", "train/Cat/1.png", "train/dog/1.png")
    if len(os.listdir(tmp_path / "train")) == 2:
        pytest.skip("this file system knows no capitals")
    assert "'Cat' and 'cat' differ only in case or spaces" in error_of(tmp_path)


def test_minus_one_is_no_class(tree: Path, tmp_path: Path) -> None:
    file = put_labels(tmp_path / "labels.csv", "1.png,a", "x/2.png,b", "x/3.png,-1")
    message = error_of(tree, labels=file)
    assert "line 4: the label -1 for 'x/3.png'" in message
    assert "remove the row to leave the image unlabeled" in message


def test_images_in_unsupported_formats_are_counted(tmp_path: Path) -> None:
    cats = put(tmp_path, "train/cat/1.png", "train/dog/1.png") / "train" / "cat"
    for name in ("a.HEIC", "b.heic", "notes.txt"):
        (cats / name).write_bytes(b"x")
    Image.new("RGB", (4, 4)).save(cats / "c.jfif", "JPEG")
    corpus = Source.parse(tmp_path).corpus()
    assert "train/cat/c.jfif" in corpus.images.names
    (remark,) = corpus.remarks
    assert "(2 .heic)" in remark
    assert "convert them to JPEG or PNG" in remark


def test_other_answers_than_a_label(tmp_path: Path) -> None:
    """Images of no class are left out of the pool; skipped ones stay unlabeled."""
    put(tmp_path / "photos", "a.png", "b.png", "c.png", "d.png", "e.png")
    rows = ("a.png,cat,", "b.png,dog,", "c.png,,none", "d.png,,skip", "gone.png,,none")
    labels = put_labels(tmp_path / "labels.csv", *rows, header="path,label,answer")
    corpus = Source.parse(tmp_path / "photos", labels=labels).corpus()
    assert list(corpus.images.names) == ["a.png", "b.png", "d.png", "e.png"]
    assert known(corpus) == {"a.png": "cat", "b.png": "dog"}
    put_labels(labels, "a.png,,none", header="path,label,answer")
    assert "no rows" in error_of(tmp_path / "photos", labels=labels)
    put_labels(labels, "a.png,,perhaps", header="path,label,answer")
    assert "line 2: no label for 'a.png'" in error_of(tmp_path / "photos", labels=labels)
