"""Small image folders of the three layouts: classes that differ in colour and texture, drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def picture(k: int, rng: np.random.Generator, side: int = 16) -> Image.Image:
    """A noisy square in the colour of class k."""
    pixels = rng.normal(128, 40, (side, side, 3))
    pixels[..., k % 3] += 90
    pixels[:: 2 + k] -= 40
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def fill(folder: Path, counts: dict[str, int], *, side: int = 16, seed: int = 0, suffix: str = ".png") -> None:
    """``counts`` pictures in each class folder."""
    rng = np.random.default_rng(seed)
    for name, n in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            picture(CLASSES.index(name), rng, side).save(folder / name / f"{name}{i:03}{suffix}")


def layout_1(root: Path) -> Path:
    fill(root / "labeled", {"ant": 1, "bee": 3, "cat": 2})
    rng = np.random.default_rng(1)
    (root / "unlabeled" / "deep" / "er").mkdir(parents=True)
    for i in range(24):
        picture(i % 3, rng).save(root / "unlabeled" / ("deep/er" if i % 2 else ".") / f"u{i:02}.png")
    fill(root / "test", dict.fromkeys(CLASSES, 4), seed=2)
    return root


def layout_2(root: Path, per_class: int = 12) -> Path:
    fill(root / "train", dict.fromkeys(CLASSES, per_class))
    fill(root / "test", dict.fromkeys(CLASSES, 4), seed=2)
    return root


def layout_3(root: Path) -> tuple[Path, Path]:
    fill(root / "shots", dict.fromkeys(CLASSES, 10))
    rows = [f"shots/{name}/{name}{i:03}.png,{name}" for name in CLASSES for i in range(2)]
    labels = root / "labels.csv"
    labels.write_text("path,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return root, labels
