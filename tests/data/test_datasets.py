"""Every dataset by name, from small files in its published format."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.io import savemat

import selftrain
from selftrain.cli import listing
from selftrain.console import Reporter
from selftrain.data.images import ArrayImages, FileImages
from selftrain.data.source import Source
from selftrain.data.sources import named as datasets
from selftrain.data.sources.download import size_in_words
from selftrain.data.sources.named import DATASETS
from selftrain.data.sources.readers import StlBinary, TorchVision
from selftrain.data.split import make_split
from selftrain.errors import UserError
from selftrain.runs.resolve import resolve
from tests.data.test_download import Server, server

__all__ = ["server"]  # a fixture
PUBLISHED = [name for name, spec in DATASETS.items() if spec.built is None]
"""datasets as they are published; test_built.py tests the others"""
CLASSES, TRAIN, TEST = 3, 5, 2  # of each class, where the format does not say otherwise


def image(path: Path, colour: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (colour, 0, 255 - colour)).save(path)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pixels(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


class Patches:
    """Changes of torchvision and of the table that the small files need, recorded to be applied per test."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, str, Any]] = []

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        self.calls.append(("setattr", owner, name, value))

    def setitem(self, table: Any, name: str, value: Any) -> None:
        self.calls.append(("setitem", table, name, value))

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind, *arguments in self.calls:
            getattr(monkeypatch, kind)(*arguments)


# --- the formats ------------------------------------------------------------------------------------------------------


def cifar(root: Path, patches: Patches, name: str) -> dict[str, Any]:
    """Pickled batches; torchvision's checksums of them are set to those of ours."""
    import torchvision.datasets

    cls = getattr(torchvision.datasets, name)
    folder = root / cls.base_folder
    folder.mkdir(parents=True)
    key = "labels" if name == "CIFAR10" else "fine_labels"
    expected: dict[str, Any] = {}
    for attribute in ("train_list", "test_list"):
        listed = []
        for seed, (file, _) in enumerate(getattr(cls, attribute)):
            content = pixels(6, 3072, seed=seed)
            (folder / file).write_bytes(pickle.dumps({"data": content, key: [0, 1, 2] * 2, "filenames": []}))
            listed.append([file, md5(folder / file)])
            expected.setdefault(attribute, content.reshape(-1, 3, 32, 32)[0])
        patches.setattr(cls, attribute, listed)
    meta = folder / cls.meta["filename"]
    meta.write_bytes(pickle.dumps({cls.meta["key"]: ["cat", "dog", "eel"]}))
    patches.setattr(cls, "meta", {**cls.meta, "md5": md5(meta)})
    return {"classes": ("cat", "dog", "eel"), "first": expected["train_list"], "pool": 6 * len(cls.train_list)}


def cifar10(root: Path, patches: Patches) -> dict[str, Any]:
    return cifar(root, patches, "CIFAR10")


def cifar100(root: Path, patches: Patches) -> dict[str, Any]:
    return cifar(root, patches, "CIFAR100")


def svhn(root: Path, patches: Patches) -> dict[str, Any]:
    """Matlab files with (row, column, channel, image) and the label 10 for a zero."""
    import torchvision.datasets

    spec = DATASETS["svhn"]
    listed: dict[str, list[str]] = {}
    files = []
    for seed, file in enumerate(spec.files):
        content = pixels(20, 32, 32, 3, seed=seed)
        savemat(root / file.name, {"X": content.transpose(1, 2, 3, 0), "y": np.tile(np.arange(1, 11), 2)[:, None]})
        checksum = md5(root / file.name)
        listed[("train", "test")[seed]] = [file.url, file.name, checksum]
        files.append(replace(file, checksum=f"md5:{checksum}"))
    patches.setattr(torchvision.datasets.SVHN, "split_list", listed)
    patches.setitem(DATASETS, "svhn", replace(spec, files=tuple(files)))
    first = pixels(20, 32, 32, 3)[0].transpose(2, 0, 1)
    return {"classes": tuple("0123456789"), "first": first, "pool": 20, "test": 20, "label": 1}


def stl10(root: Path, patches: Patches) -> dict[str, Any]:
    """One byte per value, channel by channel and column by column; labels from 1."""
    folder = root / "stl10_binary"
    folder.mkdir()
    for part, n in (("train", 6), ("test", 3), ("unlabeled", 8)):
        pixels(n, 3, 96, 96).transpose(0, 1, 3, 2).tofile(folder / f"{part}_X.bin")
        if part != "unlabeled":
            np.tile(np.array([2, 1, 3], np.uint8), n // 3).tofile(folder / f"{part}_y.bin")
    text(folder / "class_names.txt", "airplane", "bird", "car")
    return {
        "classes": ("airplane", "bird", "car"), "first": pixels(6, 3, 96, 96)[0], "pool": 14, "test": 3, "label": 1,
    }  # fmt: skip


def caltech101(root: Path, patches: Patches) -> dict[str, Any]:
    """One folder per class, one of them background with a stray file in it."""
    folder = root / "caltech101/101_ObjectCategories"
    for name, n in (("BACKGROUND_Google", 33), ("camera", 32), ("yin_yang", 31)):
        for i in range(1, n + 1):
            image(folder / name / f"image_{i:04d}.jpg")
    text(folder / "BACKGROUND_Google/tmp", "not an image")
    return {"classes": ("BACKGROUND_Google", "camera", "yin_yang"), "pool": 90, "test": 6, "label": 0}


def food101(root: Path, patches: Patches) -> dict[str, Any]:
    folder = root / "food-101"
    lists: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for k, name in enumerate(("waffles", "apple_pie", "sushi")):  # not in alphabetical order there either
        for i in range(TRAIN + TEST):
            image(folder / f"images/{name}/{100 * k + i}.jpg")
            lists["train" if i < TRAIN else "test"].setdefault(name, []).append(f"{name}/{100 * k + i}")
    for part, content in lists.items():
        text(folder / f"meta/{part}.json", json.dumps(content))
    return {"classes": ("apple_pie", "sushi", "waffles"), "names": "apple_pie/100.jpg", "label": 0}


def cub200(root: Path, patches: Patches) -> dict[str, Any]:
    folder = root / "CUB_200_2011"
    rows: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": [], "classes": []}
    number = 0
    for k, name in enumerate(("001.Albatross", "002.Auklet", "003.Bunting"), start=1):
        rows["classes"].append(f"{k} {name}")
        for i in range(TRAIN + TEST):
            number += 1
            image(folder / f"images/{name}/{name[4:]}_{i:04d}_{number}.jpg")
            rows["images"].append(f"{number} {name}/{name[4:]}_{i:04d}_{number}.jpg")
            rows["image_class_labels"].append(f"{number} {k}")
            rows["train_test_split"].append(f"{number} {int(i < TRAIN)}")
    for file, lines in rows.items():
        text(folder / f"{file}.txt", *lines)
    return {
        "classes": ("001.Albatross", "002.Auklet", "003.Bunting"), "names": "001.Albatross/Albatross_0000_1.jpg",
    }  # fmt: skip


def cars(root: Path, patches: Patches) -> dict[str, Any]:
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Audi S4 Sedan 2012"], object)
    savemat(folder / "devkit/cars_meta.mat", {"class_names": names})
    kind = [("bbox_x1", "i4"), ("class", "i4"), ("fname", "O")]
    for part, n, file in (
        ("train", TRAIN, "devkit/cars_train_annos.mat"),
        ("test", TEST, "cars_test_annos_withlabels.mat"),
    ):
        rows = np.zeros((1, CLASSES * n), kind)
        for i in range(CLASSES * n):
            rows[0, i] = (1, i % CLASSES + 1, f"{i + 1:05d}.jpg")
            image(folder / f"cars_{part}/{i + 1:05d}.jpg")
        savemat(folder / file, {"annotations": rows})
    return {"classes": tuple(names), "names": "cars_train/00001.jpg"}


def aircraft(root: Path, patches: Patches) -> dict[str, Any]:
    folder = root / "fgvc-aircraft-2013b/data"
    names = ("707-320", "727-200", "Eurofighter Typhoon")
    text(folder / "variants.txt", *names)
    number = 0
    for part, n in (("trainval", TRAIN), ("test", TEST)):
        lines = []
        for name in names:
            for _ in range(n):
                number += 1
                image(folder / f"images/{number:07d}.jpg")
                lines.append(f"{number:07d} {name}")
        text(folder / f"images_variant_{part}.txt", *lines)
    return {"classes": names, "names": "0000001.jpg"}


def pets(root: Path, patches: Patches) -> dict[str, Any]:
    folder = root / "oxford-iiit-pet"
    for part, numbers in (("trainval", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        lines = []
        for k, name in enumerate(("Abyssinian", "american_bulldog", "Bengal"), start=1):
            for i in numbers:
                image(folder / f"images/{name}_{i}.jpg")
                lines.append(f"{name}_{i} {k} 1 {k}")
        text(folder / f"annotations/{part}.txt", *lines)
    text(folder / "images/._Abyssinian_0.jpg", "a Macintosh was here")
    return {"classes": ("Abyssinian", "American Bulldog", "Bengal"), "names": "Abyssinian_0.jpg"}


def flowers102(root: Path, patches: Patches) -> dict[str, Any]:
    """Labels of 1 to 102 for all images, and three lists of their numbers."""
    import torchvision.datasets

    folder = root / "flowers-102"
    labels = np.repeat(np.arange(1, 103), 3)
    numbers = np.arange(1, len(labels) + 1).reshape(102, 3)
    for number in numbers.ravel():
        image(folder / f"jpg/image_{number:05d}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": labels[None].astype(np.uint8)})
    parts = {name: numbers[:, i][None] for i, name in enumerate(("trnid", "valid", "tstid"))}
    savemat(folder / "setid.mat", {name: part.astype(np.uint16) for name, part in parts.items()})
    spec = DATASETS["flowers102"]
    files, known = [], dict(torchvision.datasets.Flowers102._file_dict)
    for file in spec.files:
        path = folder / file.name
        files.append(replace(file, checksum=f"md5:{md5(path)}") if path.exists() else file)
        for key, (name, _) in known.items():
            if name == file.name and path.exists():
                known[key] = (name, md5(path))
    patches.setattr(torchvision.datasets.Flowers102, "_file_dict", known)
    patches.setitem(DATASETS, "flowers102", replace(spec, files=tuple(files)))
    assert isinstance(spec.read, TorchVision)
    return {"classes": spec.read.classes, "names": "image_00001.jpg", "pool": 204, "test": 102}


def dtd(root: Path, patches: Patches) -> dict[str, Any]:
    folder = root / "dtd/dtd"
    lists: dict[str, list[str]] = {"train1": [], "val1": [], "test1": [], "train2": []}
    for name in ("banded", "blotchy", "zigzagged"):
        for i in range(TRAIN + TEST):
            image(folder / f"images/{name}/{name}_{i:04d}.jpg")
            part = "test1" if i >= TRAIN else "val1" if i >= 3 else "train1"
            lists[part].append(f"{name}/{name}_{i:04d}.jpg")
    for part, lines in lists.items():
        text(folder / f"labels/{part}.txt", *lines)
    return {"classes": ("banded", "blotchy", "zigzagged"), "names": "banded/banded_0000.jpg"}


def sun397(root: Path, patches: Patches) -> dict[str, Any]:
    """Folders by first letter, some classes with one more level; one of ten pairs of lists."""
    lists: dict[str, list[str]] = {"Training_01": [], "Testing_01": []}
    for name in ("a/abbey", "b/bakery/shop", "z/zoo"):
        for i in range(TRAIN + TEST + 1):
            image(root / f"SUN397/{name}/sun_a{i}.jpg")
            if i < TRAIN + TEST:
                lists["Training_01" if i < TRAIN else "Testing_01"].append(f"/{name}/sun_a{i}.jpg")
    for part, lines in lists.items():
        text(root / f"SUN397_partitions/{part}.txt", *lines)
    return {"classes": ("abbey", "bakery/shop", "zoo"), "names": "a/abbey/sun_a0.jpg"}


FORMATS: dict[str, Callable[[Path, Patches], dict[str, Any]]] = {
    make.__name__: make
    for make in (
        cifar10, cifar100, svhn, stl10, caltech101, food101, cub200, cars, aircraft, pets, flowers102, dtd, sun397,
    )
}  # fmt: skip


Build = Callable[[str], tuple[Path, Patches, dict[str, Any]]]
Make = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Write the files of a small dataset, once per session. No test may change them."""

    @cache
    def build(name: str) -> tuple[Path, Patches, dict[str, Any]]:
        root, patches = tmp_path_factory.mktemp(name), Patches()
        expected = FORMATS[name](root, patches)
        return root, patches, expected

    return build


@pytest.fixture
def make(build: Build, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return the root of a small dataset, or of a copy at ``copy_to``; the table expects the classes that it has."""

    def make(name: str, copy_to: Path | None = None) -> tuple[Path, dict[str, Any]]:
        root, patches, expected = build(name)
        patches.apply(monkeypatch)
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], classes=len(expected["classes"])))
        if copy_to is not None:
            root = Path(shutil.copytree(root, copy_to, dirs_exist_ok=True))
        return root, expected

    return make


def test_every_dataset_of_the_paper_has_a_format_here() -> None:
    assert ["digits", *FORMATS] == PUBLISHED


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(datasets, "make_ready", _no_download)
    root, expected = make(name)
    corpus = Source.parse(name, root=root).corpus()
    assert corpus.name == name
    assert corpus.classes == expected["classes"]
    assert corpus.is_benchmark
    assert (corpus.flip, corpus.metric) == (DATASETS[name].flip, DATASETS[name].metric)
    assert corpus.test is not None
    assert corpus.test_labels is not None
    assert len(corpus.images) == expected.get("pool", CLASSES * TRAIN)
    assert len(corpus.test) == expected.get("test", CLASSES * TEST)
    assert np.array_equal(corpus.truth, corpus.labels)
    assert set(corpus.test_labels.tolist()) == set(range(len(corpus.classes)))
    assert corpus.labels[0] == expected.get("label", 0)
    assert not set(corpus.images.names) & set(corpus.test.names)
    assert len(set(corpus.images.names)) == len(corpus.images)
    if isinstance(corpus.images, ArrayImages):
        assert np.array_equal(corpus.images.pixels[0], expected["first"])
        assert corpus.images.names[0].startswith("train/")
        assert corpus.test.names[0].startswith("test/")
    else:
        assert isinstance(corpus.images, FileImages)  # nothing is decoded, and nothing is held in memory
        assert corpus.images.names == sorted(corpus.images.names)
        assert corpus.images.load(0).size == (12, 10)
        if "names" in expected:
            assert corpus.images.names[0] == expected["names"]

    # The same split on another machine: elsewhere on disk, in whatever order files are listed there.
    make(name, copy_to=tmp_path / "there")
    there = Source.parse(name, root=tmp_path / "there").corpus()
    assert make_split(there, labels_per_class=1).hash == make_split(corpus, labels_per_class=1).hash


def _no_download(files: object, root: Path, what: str, reporter: Reporter) -> None:
    """The unpacked files exist, but not the archives that contain them."""


def test_the_unlabeled_part_of_stl10(tmp_path: Path, make: Make) -> None:
    make("stl10", copy_to=tmp_path)
    corpus = Source.parse("stl10", root=tmp_path).corpus()
    assert corpus.labels.tolist() == [1, 0, 2, 1, 0, 2] + [-1] * 8
    assert corpus.truth[6:].tolist() == [-1] * 8
    assert corpus.images.names[6] == "unlabeled/000000"
    split = make_split(corpus, labels_per_class=1)
    assert len(split.labeled) == 3
    assert len(split.unlabeled) == 14
    with pytest.raises(UserError, match="has 2 images, fewer than `labels_per_class=3`"):
        make_split(corpus, labels_per_class=3)
    (tmp_path / "stl10_binary/unlabeled_X.bin").write_bytes(b"cut short")
    with pytest.raises(UserError, match="the files of STL-10 cannot be read"):
        StlBinary("stl10_binary")(tmp_path)


def test_the_rule_of_caltech101(make: Make) -> None:
    root, _ = make("caltech101")
    corpus = Source.parse("caltech101", root=root).corpus()
    assert np.bincount(corpus.labels).tolist() == [30, 30, 30]
    # The rule never changes: exactly these images are for testing.
    assert corpus.test is not None
    assert [name for name in corpus.test.names if name.startswith("yin")] == ["yin_yang/image_0021.jpg"]


# --- what can be wrong ------------------------------------------------------------------------------------------------


def error_of(name: str, root: Path) -> str:
    with pytest.raises(UserError) as caught:
        Source.parse(name, root=root).corpus()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("svhn", "stl10", "cifar10", "cifar100")])
def test_images_that_are_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(datasets, "make_ready", _no_download)
    make(name, copy_to=tmp_path)
    corpus = Source.parse(name, root=tmp_path).corpus()
    assert isinstance(corpus.images, FileImages)
    if name == "caltech101":  # which has no lists; a class that is missing is noticed
        shutil.rmtree(tmp_path / "caltech101/101_ObjectCategories/camera")
        assert "found 2 classes" in error_of(name, tmp_path)
        return
    Path(corpus.images.path(1)).unlink()
    total = len(corpus.images) + len(corpus.test or [])
    assert f"1 of {total} images are missing, e.g. {corpus.images.names[1]}" in error_of(name, tmp_path)


def test_a_batch_that_changed_on_disk(tmp_path: Path, make: Make) -> None:
    make("cifar10", copy_to=tmp_path)
    with (tmp_path / "cifar-10-batches-py/data_batch_2").open("ab") as file:
        file.write(b"x")
    message = error_of("cifar10", tmp_path)
    assert "the files of CIFAR10 cannot be read (Dataset not found or corrupted" in message
    assert "run again to download it again" in message


def test_lists_that_are_broken(tmp_path: Path, make: Make) -> None:
    make("cub200", copy_to=tmp_path)
    text(tmp_path / "CUB_200_2011/images.txt", "1 a.jpg", "2")
    assert "the lists of this dataset cannot be read" in error_of("cub200", tmp_path)
    (tmp_path / "CUB_200_2011/images.txt").unlink()
    assert "images.txt" in error_of("cub200", tmp_path)
    make("food101", copy_to=tmp_path)
    (tmp_path / "food-101/meta/test.json").write_text("{", encoding="utf-8")
    assert "the files of Food101 cannot be read" in error_of("food101", tmp_path)


def test_no_network_and_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DATASETS["cifar10"]
    unreachable = replace(spec, files=(replace(spec.files[0], url="http://127.0.0.1:9/cifar-10-python.tar.gz"),))
    monkeypatch.setitem(DATASETS, "cifar10", unreachable)
    message = error_of("cifar10", tmp_path)
    assert "cifar10: http://127.0.0.1:9/cifar-10-python.tar.gz cannot be downloaded: no connection" in message
    assert "(170 MB, md5 c58f30108f718f92721af3b95e74349a)" in message
    assert f"save it as {tmp_path / 'cifar-10-python.tar.gz'}" in message
    assert "the folder does not exist. Create it, and cifar10 is downloaded to it" in error_of(
        "cifar10", tmp_path / "none"
    )
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"save it as .*cache/datasets/cifar-10-python.tar.gz"):
        Source.parse("cifar10").test_set(["a", "b"])
    message = error_of("cars", tmp_path)
    assert (
        f"{tmp_path / 'stanford_cars/devkit'} does not exist and cannot be downloaded: its server no longer exists"
        in message
    )


def test_an_archive_saved_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """The complete path without a network: an archive is verified, unpacked, read and split."""
    made, _ = make("dtd")
    root = tmp_path / "root"
    (root / "dtd").mkdir(parents=True)
    archive = Path(shutil.make_archive(str(root / "dtd/dtd-r1.0.1"), "gztar", made / "dtd", "dtd"))
    spec = DATASETS["dtd"]
    file = replace(spec.files[0], url="http://127.0.0.1:9/dtd-r1.0.1.tar.gz")
    monkeypatch.setitem(DATASETS, "dtd", replace(spec, files=(file,)))
    assert "exists, but it is truncated or another file" in error_of("dtd", root)
    assert not (root / "dtd/dtd").exists()
    monkeypatch.setitem(DATASETS, "dtd", replace(spec, files=(replace(file, checksum=f"md5:{md5(archive)}"),)))
    assert len(Source.parse("dtd", root=root).corpus().images) == CLASSES * TRAIN
    assert (root / "dtd/dtd/labels/train1.txt").exists()
    assert archive.exists()


def test_from_the_network_to_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server, make: Make
) -> None:
    """Two datasets, downloaded from a server that breaks off at first, are trained on, each with its own metric."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").mkdir()
    for name, folder, metric in (("pets", "oxford-iiit-pet", "mean_per_class"), ("cifar10", "", "accuracy")):
        made, _ = make(name)
        spec, files = DATASETS[name], []
        for file in spec.files:
            stem = str(tmp_path / file.name.removesuffix(".tar.gz"))
            archive = Path(shutil.make_archive(stem, "gztar", made / folder, Path(file.gives[0]).name))
            server.files[f"/{file.name}"] = archive.read_bytes()
            size, url = archive.stat().st_size, f"{server.url}/{file.name}"
            files.append(replace(file, url=url, checksum=f"md5:{md5(archive)}", bytes=size))
        monkeypatch.setitem(DATASETS, name, replace(spec, files=tuple(files)))
        options: dict[str, Any] = {
            "root": "root",
            "labels_per_class": 1,
            "steps": 2,
            "backbone": "wrn-tiny",
            "quiet": True,
        }
        options["settings"] = {"train.batch": 4, "train.unlabeled_batch": 6, "data.workers": 0, "data.size": 12}
        server.cut = 200
        with pytest.raises(UserError, match="cannot be downloaded"):
            selftrain.train(name, out=tmp_path / f"run-{name}", **options)
        assert not (tmp_path / f"run-{name}").exists()
        server.cut = None
        results = selftrain.train(name, out=tmp_path / f"run-{name}", **options).results
        assert (results["dataset"], results["metric"], results["labeled"]) == (name, metric, 3)
        assert results["evaluated_on"] == "test"


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_folder_with_a_datasets_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """A folder comes first if it is in one of the layouts; the files of a download do not hide the dataset."""
    make("dtd", copy_to=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert Source.parse("dtd").spec == DATASETS["dtd"]
    assert Source.parse("dtd").absolute() == "dtd"
    assert Source.parse("dtd", root=tmp_path).corpus().classes == ("banded", "blotchy", "zigzagged")
    for name in ("train/a/1.png", "train/b/1.png"):
        image(tmp_path / "dtd" / name)
    assert Source.parse("dtd").kind == "folder"
    assert Source.parse("dtd").absolute() == str(tmp_path / "dtd")
    assert Source.parse("dtd").corpus().classes == ("a", "b")
    monkeypatch.chdir("/")
    assert Source.parse("dtd").spec == DATASETS["dtd"]
    assert Source.parse("dtd", root=tmp_path).kind == "folder"
    assert Source.parse("dtd", root=tmp_path).corpus().classes == ("a", "b")
    assert Source.below(tmp_path, "dtd").data == str(tmp_path / "dtd")
    shutil.rmtree(tmp_path / "dtd/train")
    assert Source.below(tmp_path, "dtd").data == "dtd"
    assert Source.below(tmp_path, "hf:beans").data == "hf:beans"
    monkeypatch.chdir(tmp_path)
    text(
        tmp_path / "labels.csv",
        "path,label",
        "dtd/images/banded/banded_0000.jpg,a",
        "dtd/images/banded/banded_0001.jpg,b",
    )
    assert Source.parse("dtd", labels="labels.csv").corpus().classes == ("a", "b")  # any tree will do there


# --- what the paper does with them ------------------------------------------------------------------------------------


def test_the_table_says_what_the_paper_says() -> None:
    per_class = {"caltech101", "aircraft", "pets", "flowers102"}
    assert {name for name, spec in DATASETS.items() if spec.metric == "mean_per_class"} == per_class
    backbones = {"cifar10": "wrn-28-2", "svhn": "wrn-28-2", "cifar100": "wrn-28-8", "stl10": "wrn-37-2"}
    for name, spec in DATASETS.items():
        if name != "digits" and spec.built is None:
            assert spec.backbone == backbones.get(name, "resnet50.tv_in1k")
            assert (spec.regime == "scratch") == (name in backbones)
            assert spec.title
            assert bool(spec.files) != bool(spec.by_hand)
        for file in spec.files:
            kind, _, digits = file.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[kind]
            assert file.bytes > 0
            assert all(path.startswith(file.into) for path in file.gives)


def test_defaults_come_from_the_dataset() -> None:
    settings, _ = resolve({"data.path": "cifar100"})
    assert (settings.regime, settings.network.backbone) == ("scratch", "wrn-28-8")
    assert settings.optim.weight_decay == 0.001
    settings, _ = resolve({"data.path": "cifar100", "network.backbone": "wrn-28-2", "optim.weight_decay": 0.0})
    assert (settings.network.backbone, settings.optim.weight_decay) == ("wrn-28-2", 0.0)
    settings, _ = resolve({"data.path": "cifar10", "regime": "finetune"})
    assert (settings.network.backbone, settings.data.crop) == ("resnet50.tv_in1k", "pad")
    settings, _ = resolve({"data.path": "pets", "regime": "finetune"})
    assert (settings.network.backbone, settings.data.crop, settings.data.size) == ("resnet50.tv_in1k", "resized", None)
    settings, _ = resolve({"data.path": "pets", "regime": "frozen"})
    assert (settings.network.backbone, settings.data.size) == ("lite0", 192)
    assert resolve({"data.path": "stl10"})[0].network.backbone == "wrn-37-2"
    assert resolve({"data.path": "/some/cifar10"})[0].network.backbone == "lite0"
    assert resolve({"data.path": "food101"})[0].regime in ("frozen", "finetune")


def test_the_list(tmp_path: Path) -> None:
    console = Console(width=80, file=(tmp_path / "list.txt").open("w", encoding="utf-8"))
    with console.file:
        for table in (*listing.tables("datasets", None), *listing.tables("datasets", "sun397")):
            console.print(table)
    shown = (tmp_path / "list.txt").read_text(encoding="utf-8")
    for name in DATASETS:
        assert name in shown
    for said in (
        " 100,000 ",
        "per class",
        "39.1 GB",
        "by hand",
        "pretrained",
        "partition 1 of 10",
        "e3311ea5f812d4cc",
    ):
        assert said in shown
    with pytest.raises(UserError, match="Did you mean 'cifar10'"):
        list(listing.tables("datasets", "cifar1"))


def test_the_documentation_has_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/datasets.md").read_text(encoding="utf-8")
    for name, spec in DATASETS.items():
        if name == "digits" or spec.built is not None:
            continue
        pool = f"{spec.train:,}" + (f" and {spec.unlabeled:,} unlabeled" if spec.unlabeled else "")
        metric = {"accuracy": "top-1", "mean_per_class": "mean per class"}[spec.metric]
        fetched = size_in_words(spec.bytes) if spec.bytes else "by hand"
        counts = f"{spec.classes} | {pool} | {spec.test:,} | {metric} | {fetched}"
        assert f"| `{name}` | {spec.title} | {counts} | `{spec.backbone}` |" in page
