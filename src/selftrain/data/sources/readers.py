"""Read datasets in their published formats from disk: through torchvision, or as lists and folders of files.

Knows nothing of dataset names, defaults or downloads: it is given a folder. Images have the same names and order on
every machine, because splits are drawn by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selftrain.data.images import ArrayImages, FileImages, Images, find_images
from selftrain.errors import UserError

Labels = NDArray[np.int64]

AGAIN = "Delete its files there, and run again to download it again."


@dataclass(frozen=True)
class Parts:
    """The content of a dataset: the training pool (-1 is unlabeled) and the test set."""

    classes: tuple[str, ...]
    images: Images
    labels: Labels
    test: Images
    test_labels: Labels


class Reader(Protocol):
    """Reads one format."""

    def __call__(self, root: Path) -> Parts:
        """Read the dataset under ``root``; a ``UserError`` says which files are missing."""


def _in_memory(pixels: NDArray[np.uint8], kind: str) -> ArrayImages:
    """Return images in memory, named ``train/00017``."""
    width = len(str(len(pixels) - 1))
    return ArrayImages(pixels, [f"{kind}/{i:0{width}d}" for i in range(len(pixels))])


def _on_disk(folder: Path, names: Sequence[str], labels: Sequence[int]) -> tuple[FileImages, Labels]:
    """Return files and labels in the order of the names."""
    order = sorted(range(len(names)), key=names.__getitem__)
    return FileImages(folder, [names[i] for i in order]), np.array([labels[i] for i in order], np.int64)


def _check_complete(folder: Path, *parts: FileImages) -> None:
    """Raise an error unless every file exists."""
    found = set(find_images(folder)) if folder.is_dir() else set()
    names = [name for part in parts for name in part.names]
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"{folder}: {len(missing)} of {len(names)} images are missing, e.g. {missing[0]}. {AGAIN}")


@dataclass(frozen=True)
class TorchVision:
    """A dataset that torchvision reads, with one call of its class per part of the pool and of the test set."""

    cls: str
    """the class in ``torchvision.datasets``"""
    train: tuple[Mapping[str, Any], ...]
    """arguments of the calls for the training pool"""
    test: tuple[Mapping[str, Any], ...]
    """arguments of the calls for the test set"""
    folder: str = ""
    """the folder of the image files, relative to the root; names are relative to it"""
    classes: tuple[str, ...] = ()
    """class names; by default those of torchvision"""

    def __call__(self, root: Path) -> Parts:
        train = [self._open(root, arguments) for arguments in self.train]
        test = [self._open(root, arguments) for arguments in self.test]
        classes = self.classes or tuple(str(name) for name in train[0].classes)
        if hasattr(train[0], "data"):
            (pool,), (held,) = train, test
            images: Images = _in_memory(pool.data, "train")
            test_images: Images = _in_memory(held.data, "test")
            return Parts(classes, images, _labels(pool), test_images, _labels(held))
        folder = root / self.folder
        pool_files, labels = self._files(folder, train)
        test_files, test_labels = self._files(folder, test)
        _check_complete(folder, pool_files, test_files)
        return Parts(classes, pool_files, labels, test_files, test_labels)

    def _open(self, root: Path, arguments: Mapping[str, Any]) -> Any:
        from torchvision import datasets

        try:
            return getattr(datasets, self.cls)(str(root), **arguments)
        except Exception as error:  # RuntimeError, FileNotFoundError, KeyError, UnpicklingError, ...
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"{root}: the files of {self.cls} cannot be read ({reason.rstrip('.')}). {AGAIN}"
            ) from error

    def _files(self, folder: Path, parts: Sequence[Any]) -> tuple[FileImages, Labels]:
        paths = [Path(path) for part in parts for path in _paths(part)]
        names = [path.relative_to(folder).as_posix() for path in paths]
        return _on_disk(folder, names, [int(k) for part in parts for k in _labels(part)])


def _labels(part: Any) -> Labels:
    for attribute in ("targets", "labels", "_labels"):
        if hasattr(part, attribute):
            return np.asarray(getattr(part, attribute), np.int64)
    return np.array([k for _, k in part._samples], np.int64)


def _paths(part: Any) -> list[Any]:
    for attribute in ("_image_files", "_images"):
        if hasattr(part, attribute):
            return list(getattr(part, attribute))
    return [path for path, _ in part._samples]


@dataclass(frozen=True)
class StlBinary:
    """STL-10: one file of pixels per part, column by column, read directly into one array (3 GB, copied once)."""

    folder: str
    side: int = 96

    def __call__(self, root: Path) -> Parts:
        folder = root / self.folder
        try:
            classes = tuple((folder / "class_names.txt").read_text(encoding="utf-8").split())
            labels = np.fromfile(folder / "train_y.bin", np.uint8).astype(np.int64) - 1
            test_labels = np.fromfile(folder / "test_y.bin", np.uint8).astype(np.int64) - 1
            pixels, counts = self._pixels(folder / "train_X.bin", folder / "unlabeled_X.bin")
            test, _ = self._pixels(folder / "test_X.bin")
        except (OSError, ValueError) as error:
            raise UserError(f"{folder}: the files of STL-10 cannot be read ({error}). {AGAIN}") from None
        kinds = ("train", "unlabeled")
        names = [f"{kind}/{i:06d}" for kind, count in zip(kinds, counts, strict=True) for i in range(count)]
        pool = np.concatenate([labels, np.full(counts[1], -1, np.int64)])
        return Parts(classes, ArrayImages(pixels, names), pool, _in_memory(test, "test"), test_labels)

    def _pixels(self, *files: Path) -> tuple[NDArray[np.uint8], list[int]]:
        shape = (3, self.side, self.side)
        mapped = [np.memmap(file, np.uint8, mode="r") for file in files]
        parts = [flat.reshape(-1, *shape) for flat in mapped]
        pixels = np.empty((sum(map(len, parts)), *shape), np.uint8)
        start = 0
        for part in parts:
            pixels[start : start + len(part)] = part.transpose(0, 1, 3, 2)
            start += len(part)
        return pixels, [len(part) for part in parts]


@dataclass(frozen=True)
class ClassFolders:
    """One folder per class and no published split: a fixed number per class for training, the others for testing.

    The training images of a class are the first ``train_per_class`` in the order of the SHA-256 of their names
    (``camera/image_0007.jpg``).
    """

    folder: str
    train_per_class: int

    def __call__(self, root: Path) -> Parts:
        folder = root / self.folder
        by_class: dict[str, list[str]] = {}
        for name in find_images(folder):
            by_class.setdefault(name.partition("/")[0], []).append(name)
        classes = tuple(sorted(by_class))
        train: list[tuple[str, int]] = []
        test: list[tuple[str, int]] = []
        for k, class_name in enumerate(classes):
            drawn = sorted(by_class[class_name], key=lambda name: hashlib.sha256(name.encode()).digest())
            train += [(name, k) for name in drawn[: self.train_per_class]]
            test += [(name, k) for name in drawn[self.train_per_class :]]
        return Parts(classes, *_on_disk(folder, *_unzip(train)), *_on_disk(folder, *_unzip(test)))


def _unzip(pairs: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    return [name for name, _ in pairs], [k for _, k in pairs]


@dataclass(frozen=True)
class ListFiles:
    """Images listed in text files: ``read(root)`` returns pairs (name, class) for training and for testing.

    Classes are sorted; every class of the test set also occurs in the pool.
    """

    folder: str
    """the folder that names are relative to"""
    read: Callable[[Path], tuple[list[tuple[str, str]], list[tuple[str, str]]]]

    def __call__(self, root: Path) -> Parts:
        folder = root / self.folder
        try:
            train, test = self.read(root)
            classes = tuple(sorted({class_name for _, class_name in train}))
            position = {class_name: k for k, class_name in enumerate(classes)}
            pool = _on_disk(folder, *_unzip([(name, position[class_name]) for name, class_name in train]))
            held = _on_disk(folder, *_unzip([(name, position[class_name]) for name, class_name in test]))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{root}: the lists of this dataset cannot be read ({error}). {AGAIN}") from None
        _check_complete(folder, pool[0], held[0])
        return Parts(classes, *pool, *held)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_cub(root: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Read CUB-200-2011: ``images.txt`` maps ids to files, and three more files map ids to classes and parts."""
    folder = root / "CUB_200_2011"

    def table(name: str) -> dict[str, str]:
        rows: dict[str, str] = dict(line.split() for line in _lines(folder / name))
        return rows

    names, labels = table("images.txt"), table("image_class_labels.txt")
    classes, is_train = table("classes.txt"), table("train_test_split.txt")
    train: list[tuple[str, str]] = []
    test: list[tuple[str, str]] = []
    for key, name in names.items():
        (train if is_train[key] == "1" else test).append((name, classes[labels[key]]))
    return train, test


def read_sun397(root: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Read the first of the ten published partitions of SUN397: 50 images per class for training, 50 for testing."""

    def part(name: str) -> list[tuple[str, str]]:
        files = [line.lstrip("/") for line in _lines(root / "SUN397_partitions" / name)]
        # a/abbey/sun_x.jpg has the class abbey, b/bakery/shop/sun_x.jpg has bakery/shop
        return [(file, file.partition("/")[2].rpartition("/")[0]) for file in files]

    return part("Training_01.txt"), part("Testing_01.txt")


def read_digits(root: Path) -> Parts:
    """Read the digits that come with scikit-learn. A fifth of each class, always the same, is the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    # Raw generator output, because its stream is the same in every NumPy version.
    order = np.argsort(np.random.PCG64(0).random_raw(len(labels)), kind="stable")
    is_test = np.zeros(len(labels), bool)
    for k in range(10):
        of_class = order[labels[order] == k]
        is_test[of_class[: round(len(of_class) / 5)]] = True
    everything = ArrayImages(pixels, [f"{i:04d}" for i in range(len(labels))])
    pool, test = everything.subset(~is_test), everything.subset(is_test)
    return Parts(tuple("0123456789"), pool, labels[~is_test], test, labels[is_test])
