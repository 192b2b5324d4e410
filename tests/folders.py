"""Small image folders of the three layouts: classes that differ in colour and texture, drawn from a seed.

Images are drawn and encoded once per process; a test gets its own copy of the files and may change them.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")
Files = dict[str, bytes]


def draw(k: int, rng: np.random.Generator, side: int = 16) -> Image.Image:
    """Return a noisy square in the colour of class k."""
    pixels = rng.normal(128, 40, (side, side, 3))
    pixels[..., k % 3] += 90
    pixels[:: 2 + k] -= 40
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, suffix: str = ".png") -> bytes:
    file = io.BytesIO()
    image.save(file, Image.registered_extensions()[suffix])
    return file.getvalue()


def class_files(counts: dict[str, int], *, side: int = 16, seed: int = 0, suffix: str = ".png") -> Files:
    """Return ``counts`` images per class folder, by path."""
    rng = np.random.default_rng(seed)
    return {
        f"{name}/{name}{i:03}{suffix}": encoded(draw(CLASSES.index(name), rng, side), suffix)
        for name, n in counts.items()
        for i in range(n)
    }


def write(root: Path, files: Files) -> Path:
    for folder in {(root / name).parent for name in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name).write_bytes(content)
    return root


def fill(folder: Path, counts: dict[str, int], *, side: int = 16, seed: int = 0, suffix: str = ".png") -> None:
    """Write ``counts`` images into each class folder."""
    write(folder, class_files(counts, side=side, seed=seed, suffix=suffix))


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": content for name, content in files.items()}


@cache
def _files_1() -> Files:
    rng = np.random.default_rng(1)
    folders = ("unlabeled", "unlabeled/deep/er")
    return {
        **below("labeled", class_files({"ant": 1, "bee": 3, "cat": 2})),
        **{f"{folders[i % 2]}/u{i:02}.png": encoded(draw(i % 3, rng)) for i in range(24)},
        **_test_files(),
    }


@cache
def _files_2(per_class: int) -> Files:
    return {**below("train", class_files(dict.fromkeys(CLASSES, per_class))), **_test_files()}


@cache
def _files_3() -> Files:
    rows = [f"shots/{name}/{name}{i:03}.png,{name}" for name in CLASSES for i in range(2)]
    labels = "path,label\n" + "\n".join(rows) + "\n"
    return {**below("shots", class_files(dict.fromkeys(CLASSES, 10))), "labels.csv": labels.encode()}


@cache
def _test_files() -> Files:
    return below("test", class_files(dict.fromkeys(CLASSES, 4), seed=2))


def layout_1(root: Path) -> Path:
    return write(root, _files_1())


def layout_2(root: Path, per_class: int = 12) -> Path:
    return write(root, _files_2(per_class))


def layout_3(root: Path) -> tuple[Path, Path]:
    write(root, _files_3())
    return root, root / "labels.csv"
