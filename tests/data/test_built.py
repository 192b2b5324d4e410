"""Datasets that are built from public originals: small originals in their format, and the hash of our copies."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import selftrain
from selftrain.data.source import Source
from selftrain.data.sources import built, named
from selftrain.data.sources.built import list_hash, names_below
from selftrain.data.sources.download import size_in_words
from selftrain.data.sources.named import DATASETS
from selftrain.errors import UserError
from tests.data.test_datasets import md5, pixels

BUILT = {name: spec.built for name, spec in DATASETS.items() if spec.built is not None}


def save(path: Path, seed: int, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels(size[1], size[0], 3, seed=seed)).convert(mode)
    image.save(path)
    return np.asarray(image)


def cifar10_mini(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Batches of CIFAR-10, in which each image has a name; a list names four of them, in both parts."""
    from torchvision.datasets import CIFAR10

    folder = root / CIFAR10.base_folder
    folder.mkdir()
    content: dict[str, np.ndarray] = {}
    number = 0
    for attribute in ("train_list", "test_list"):
        listed = []
        for file, _ in getattr(CIFAR10, attribute):
            names = [f"{word}_s_{number + i:06d}.png" for i, word in enumerate(("tabby", "wagon"))]
            data = pixels(2, 3072, seed=number)
            (folder / file).write_bytes(pickle.dumps({"data": data, "labels": [0, 1], "filenames": names}))
            content |= dict(zip(names, data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), strict=True))
            listed.append([file, md5(folder / file)])
            number += 2
        monkeypatch.setattr(CIFAR10, attribute, listed)
    meta = folder / CIFAR10.meta["filename"]
    meta.write_bytes(pickle.dumps({CIFAR10.meta["key"]: ["cat", "automobile"]}))
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(meta)})
    lines = ["automobile train", "  wagon 3 5", "automobile test", "  wagon 11", "cat train", "  tabby 0", "cat test"]
    monkeypatch.setattr(built, "_lines", lambda name: [*lines, "  tabby 10"])
    chosen = {
        "train/automobile/wagon_s_000003.png", "train/automobile/wagon_s_000005.png",
        "test/automobile/wagon_s_000011.png", "train/cat/tabby_s_000000.png", "test/cat/tabby_s_000010.png",
    }  # fmt: skip
    return {name: content[name.rpartition("/")[2]] for name in chosen}


def ucmerced(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """TIFF files with the class and two digits in their names; beach01 and river12 are on the list."""
    chosen = {}
    for label in ("beach", "river"):
        for i in range(14):
            image = save(root / f"UCMerced_LandUse/Images/{label}/{label}{i:02d}.tif", i)
            part = "test" if (label, i) in (("beach", 1), ("beach", 13), ("river", 1)) else "train"
            chosen[f"{part}/{label}/{label}{i:02d}.jpg"] = image
    whole = built._lines("ucmerced.txt")
    assert [line.split()[0] for line in whole] == sorted(line.split()[0] for line in whole)
    kept = [line for line in whole if line.split()[0] in ("beach", "river")]
    assert kept[0].startswith("beach 1 12 13 ")
    monkeypatch.setattr(built, "_lines", lambda name: ["beach 1 13", "river 1"])
    return chosen


def gtsrb(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """PPM files in folders of five digits, named by track and frame."""
    chosen = {}
    for label, track in ((0, 0), (0, 2), (1, 0), (1, 2), (33, 15)):
        for frame in range(10):
            path = root / f"GTSRB_original/GTSRB/Training/{label:05d}/{track:05d}_{frame:05d}.ppm"
            image = save(path, seed=frame + track)
            left_out = (label, track, frame) == (33, 15, 4)
            if frame in (4, 9) and not left_out:
                # In our copy, track 2 of classes 0 and 1 is for testing.
                chosen[f"{'test' if track == 2 else 'train'}/{label}/{track:05d}_{frame:05d}.png"] = image
    (root / "GTSRB_original/GTSRB/Training/00000/GT-00000.csv").write_text("Filename;Width\n")
    return chosen


def caltech101_mini(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """JPEG files by class, grey ones among them; two folders of people, one of them left out; a background."""
    chosen: dict[str, np.ndarray] = {}
    folder = root / "caltech101/101_ObjectCategories"
    tested = {"accordion": (4, 6), "anchor": (6,), "Faces_easy": (1,)}  # of the first seven in our copy
    for label in ("accordion", "anchor", "Faces", "Faces_easy", "BACKGROUND_Google"):
        for i in range(1, 8):
            image = save(folder / label / f"image_{i:04d}.jpg", i, (300, 200), "L" if i == 2 else "RGB")
            part = "test" if i in tested.get(label, ()) else "train"
            name = f"{part}/{label}/image_{i:04d}.jpg" if label != "BACKGROUND_Google" else f"junk/image_{i:04d}.jpg"
            chosen |= {} if label == "Faces" else {name: image}
    (folder / "BACKGROUND_Google" / "tmp").write_text("not an image")
    return chosen


ORIGINALS: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, np.ndarray]]] = {
    "cifar10-mini": cifar10_mini, "ucmerced": ucmerced, "gtsrb": gtsrb, "caltech101-mini": caltech101_mini,
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, np.ndarray]]:
    """Write a small original, and let the table expect what is built from it."""

    def make(name: str) -> dict[str, np.ndarray]:
        monkeypatch.setattr(named, "make_ready", lambda *arguments: None)  # the files are there, unpacked
        chosen = ORIGINALS[name](tmp_path, monkeypatch)
        spec, recipe = DATASETS[name], BUILT[name]
        classes = {path.split("/")[1] for path in chosen if not path.startswith("junk")}
        recipe = replace(recipe, files=len(chosen), digest=list_hash(chosen))
        monkeypatch.setitem(DATASETS, name, replace(spec, read=recipe, classes=len(classes)))
        return chosen

    return make


def test_every_built_dataset_has_an_original_here() -> None:
    assert set(BUILT) == set(ORIGINALS)


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_dataset_is_built_from_its_original(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[str], dict[str, np.ndarray]]
) -> None:
    chosen = made(name)
    corpus = DATASETS[name].load(tmp_path)
    folder = tmp_path / name
    assert set(names_below(folder)) == set(chosen)
    assert len(corpus.images) == sum(path.startswith("train/") for path in chosen)
    assert corpus.test is not None
    assert len(corpus.test) == sum(path.startswith("test/") for path in chosen)
    for path, original in chosen.items():
        image = np.asarray(Image.open(folder / path))
        if path.endswith(".png"):
            assert np.array_equal(image, original)  # lossless
        elif name == "ucmerced":
            assert image.shape == original.shape
        else:
            assert (image.shape[:2], image.ndim) == ((136, 204), original.ndim)
    assert not [path for path in tmp_path.iterdir() if "building" in path.name]
    # As a folder it is read alike: the same names, and so the same draws of labels.
    as_folder = Source.parse(name, root=tmp_path)
    assert as_folder.kind == "folder"
    assert as_folder.corpus().images.names == corpus.images.names
    before = {path: (folder / path).stat().st_mtime_ns for path in chosen}
    DATASETS[name].load(tmp_path)
    assert {path: (folder / path).stat().st_mtime_ns for path in chosen} == before  # built once


def test_an_original_of_another_version_is_refused(
    tmp_path: Path, made: Callable[[str], dict[str, np.ndarray]]
) -> None:
    made("gtsrb")
    (tmp_path / "GTSRB_original/GTSRB/Training/00001/00000_00004.ppm").unlink()
    with pytest.raises(UserError, match="Is the original another version"):
        DATASETS["gtsrb"].load(tmp_path)
    assert not (tmp_path / "gtsrb").exists()


def test_a_built_folder_that_changed_is_refused(tmp_path: Path, made: Callable[[str], dict[str, np.ndarray]]) -> None:
    made("gtsrb")
    DATASETS["gtsrb"].load(tmp_path)
    (tmp_path / "gtsrb/train/0/00000_00004.png").unlink()
    with pytest.raises(UserError, match="Delete the folder, and run again to build it again"):
        DATASETS["gtsrb"].load(tmp_path)


def test_a_missing_image_of_cifar10_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10_mini(tmp_path, monkeypatch)
    monkeypatch.setattr(built, "_lines", lambda name: ["cat train", "  tabby 77"])
    with pytest.raises(UserError, match=r"CIFAR-10 has no image tabby_s_000077.png of class cat"):
        list(built.cifar10_mini(tmp_path))


@pytest.mark.parametrize("name", BUILT)
def test_without_a_network_the_error_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DATASETS[name]
    file = replace(spec.files[0], url=f"http://127.0.0.1:9/{spec.files[0].name}")
    monkeypatch.setitem(DATASETS, name, replace(spec, files=(file,)))
    with pytest.raises(UserError) as caught:
        selftrain.train(name, root=tmp_path, labels_per_class=4, out=tmp_path / "run", quiet=True)
    assert f"save it as {file.place(tmp_path)}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_list_of_cifar10_is_whole() -> None:
    lines = built._lines("cifar10-mini.txt")
    counts: dict[str, int] = {}
    for line in lines:
        if not line.startswith(" "):
            head = line
        else:
            counts[head] = counts.get(head, 0) + len(line.split()) - 1
    assert len(counts) == 20
    assert {count for head, count in counts.items() if head.endswith("train")} == {1000}
    assert {count for head, count in counts.items() if head.endswith("test")} == {400}


def test_the_documentation_has_the_same_table_of_built_datasets() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/benchmarks.md").read_text(encoding="utf-8")
    for name, recipe in BUILT.items():
        spec = DATASETS[name]
        row = f"| `{name}` | {spec.classes} | {spec.train:,} | {spec.test:,} | {size_in_words(spec.bytes)} |"
        assert row in page, row
        assert recipe.digest[:12] in page


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_the_hash_of_our_copy(name: str, real_data: Path) -> None:
    folder = real_data / name.replace("caltech101-mini", "caltech101")
    names = names_below(folder)
    assert (len(names), list_hash(names)) == (BUILT[name].files, BUILT[name].digest)
    spec = DATASETS[name]
    counts = [sum(path.startswith(f"{part}/") for path in names) for part in ("train", "test")]
    assert counts == [spec.train, spec.test]
    for path in names:  # the rules of two of them, on every image
        part, _, rest = path.partition("/")
        if name == "gtsrb":
            assert built._part(rest.partition("_")[0]) == part, path
        elif name == "caltech101-mini" and part != "junk":
            assert built._part(f"101_ObjectCategories/{rest}") == part, path
