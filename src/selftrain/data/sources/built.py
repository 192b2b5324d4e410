"""Datasets that are built from a public original: which of its images, in which format, in a folder of layout 2.

Knows nothing of downloads or of the table of datasets. A built folder has the same file names on every machine, and
their hash is checked each time it is read. Pixels of CIFAR-10 and GTSRB are those of the originals (PNG). UC Merced and
Caltech-101 become JPEG files, whose pixels may differ in the last bits between versions of Pillow.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from filelock import FileLock
from PIL import Image

from selftrain.console import Reporter
from selftrain.data.sources.file_parts import Checker
from selftrain.data.sources.folders import load_folder
from selftrain.data.sources.readers import Parts, TorchVision
from selftrain.errors import UserError

Item = tuple[str, Callable[[], Image.Image]]
"""the name of a file below the folder, and a function that returns its image"""
CALTECH_SIDE = 136
"""pixels of the shorter side of Caltech-101; smaller images keep their size"""
GTSRB_LEFT_OUT = {"33/00015_00004.png"}
"""a frame that the copy behind our tables lacks"""


def list_hash(names: Iterable[str]) -> str:
    """Return the SHA-256 of file names, sorted, one per line."""
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(names)).encode()).hexdigest()


def names_below(folder: Path) -> list[str]:
    """Return the names of all files below a folder."""
    found = (Path(where, file) for where, _, files in os.walk(folder) for file in files)
    return [path.relative_to(folder).as_posix() for path in found]


@dataclass(frozen=True)
class Built:
    """A folder of images that is written once, from an original below the same root."""

    folder: str
    """its name below the root"""
    items: Callable[[Path], Iterator[Item]]
    """returns the images, from the root"""
    files: int
    """number of images"""
    digest: str
    """``list_hash`` of their names"""
    quality: int = 0
    """of JPEG files"""

    def is_ready(self, root: Path) -> bool:
        return (root / self.folder / "train").is_dir()

    def build(self, root: Path, reporter: Reporter) -> None:
        """Write the folder, unless it exists; it appears under its name once it is complete."""
        place, staging = root / self.folder, root / f".{self.folder}.building"
        options: dict[str, Any] = {"quality": self.quality} if self.quality else {}
        with FileLock(root / f".{self.folder}.build.lock"):
            if self.is_ready(root):
                return
            shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
            try:
                with reporter.progress(f"building {self.folder}", self.files, "images") as bar:
                    for count, (name, image) in enumerate(self.items(root), 1):
                        (staging / name).parent.mkdir(parents=True, exist_ok=True)
                        image().save(staging / name, **options)
                        bar.reach(count)
                self._check(staging, "Is the original another version? Delete its files, and run again.")
                os.replace(staging, place)
            except OSError as error:
                raise UserError(
                    f"{place}: cannot be built ({error}). Free some space, or check the original."
                ) from None
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def _check(self, folder: Path, advice: str) -> None:
        names = names_below(folder) if folder.is_dir() else []
        if (found := list_hash(names)) != self.digest:
            raise UserError(
                f"{self.folder}: {folder} has {len(names)} files with the list hash {found[:12]}, not "
                f"{self.files} files with {self.digest[:12]}. {advice}"
            )

    def __call__(self, root: Path) -> Parts:
        """Read the folder."""
        folder = root / self.folder
        self._check(folder, "Delete the folder, and run again to build it again.")
        corpus = load_folder(folder, None, Checker(check="none"))
        assert corpus.test is not None
        assert corpus.test_labels is not None
        return Parts(corpus.classes, corpus.images, corpus.labels, corpus.test, corpus.test_labels)


def _lines(name: str) -> list[str]:
    text = resources.files("selftrain.data.sources").joinpath("lists").joinpath(name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def _opened(path: Path) -> Callable[[], Image.Image]:
    return lambda: Image.open(path).convert("RGB")


def cifar10_mini(root: Path) -> Iterator[Item]:
    """1,000 train and 400 test images per class of CIFAR-10, listed by their names in its batches."""
    images = _cifar10_by_name(root)
    part = label = ""
    for line in _lines("cifar10-mini.txt"):
        if not line.startswith(" "):
            label, part = line.split()
            continue
        series, *numbers = line.split()
        for number in numbers:
            name = f"{series}_s_{int(number):06d}.png"
            if (label, name) not in images:
                raise UserError(f"{root}: CIFAR-10 has no image {name} of class {label}. Is it another version?")
            yield f"{part}/{label}/{name}", images[label, name]


def _cifar10_by_name(root: Path) -> dict[tuple[str, str], Callable[[], Image.Image]]:
    parts = TorchVision("CIFAR10", ({"train": True},), ({"train": False},))(root)  # compares checksums of the batches
    from torchvision.datasets import CIFAR10

    found: dict[tuple[str, str], Callable[[], Image.Image]] = {}
    for images, labels, files in (
        (parts.images, parts.labels, CIFAR10.train_list),
        (parts.test, parts.test_labels, CIFAR10.test_list),
    ):
        names: list[str] = []
        for file, _ in files:
            with (root / CIFAR10.base_folder / file).open("rb") as batch:
                names += pickle.load(batch, encoding="latin1")["filenames"]
        for i, name in enumerate(names):
            found[parts.classes[labels[i]], name] = partial(images.load, i)
    return found


def ucmerced(root: Path) -> Iterator[Item]:
    """UC Merced Land Use as JPEG: 20 listed images of each class are for testing, the other 80 for training."""
    folder = root / "UCMerced_LandUse" / "Images"
    for line in _lines("ucmerced.txt"):
        label, *numbers = line.split()
        tested = {int(number) for number in numbers}
        for path in sorted(folder.joinpath(label).glob("*.tif")):
            part = "test" if int(path.stem[len(label) :]) in tested else "train"
            yield f"{part}/{label}/{path.stem}.jpg", _opened(path)


def gtsrb(root: Path) -> Iterator[Item]:
    """Every fifth frame of each track of the German traffic signs.

    A track is for testing if the SHA-1 of its class and number, such as 0/00002, is divisible by 5.
    """
    for path in sorted((root / "GTSRB_original" / "GTSRB" / "Training").glob("*/*.ppm")):
        label, (track, frame) = str(int(path.parent.name)), path.stem.split("_")
        name = f"{label}/{path.stem}.png"
        if int(frame) % 5 == 4 and name not in GTSRB_LEFT_OUT:
            yield f"{_part(f'{label}/{track}')}/{name}", _opened(path)


def caltech101_mini(root: Path) -> Iterator[Item]:
    """Caltech-101 without Faces, which repeats Faces_easy, made smaller; its background is the folder ``junk``.

    An image is for testing if the SHA-1 of its path (101_ObjectCategories/ant/image_0001.jpg) is divisible by 5.
    """
    folder = root / "caltech101" / "101_ObjectCategories"
    for path in sorted(folder.glob("*/image_*.jpg")):
        label, name = path.parent.name, f"{path.parent.name}/{path.name}"
        if label == "BACKGROUND_Google":
            yield f"junk/{path.name}", _smaller(path)
        elif label != "Faces":
            yield f"{_part(f'{folder.name}/{name}')}/{name}", _smaller(path)


def _part(name: str) -> str:
    return "train" if int(hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest(), 16) % 5 else "test"


def _smaller(path: Path) -> Callable[[], Image.Image]:
    def load() -> Image.Image:
        image: Image.Image = Image.open(path)
        image = image if image.mode == "L" else image.convert("RGB")
        scale = CALTECH_SIDE / min(image.size)
        if scale >= 1:
            return image
        return image.resize((round(scale * image.width), round(scale * image.height)), Image.Resampling.LANCZOS)

    return load
