"""Extraction of features: onnxruntime against torch with folded batch norm, on decoded images and from files.

    python -m benchmarks --only extraction [--clock cpu]

Knows nothing of accuracy. "Before" is how features of files were extracted until now: every file is decoded once to
check it and once for its views, and torch runs the backbone with batch norm folded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.ratios import CLOCK, Row, take_turns
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.features.extract import encode_padded, view_names
from selftrain.data.images import FileImages, check_images
from selftrain.data.images.memory import Memory
from selftrain.data.views.content_views import ContentViews
from selftrain.runs.extractor import Extractor
from selftrain.runs.network_inputs import make_extractor

NAMES = view_names(2, 4)
PHOTO = (4000, 3000)


def photos(folder: Path, n: int) -> FileImages:
    """Write photos of 12 megapixels, smooth shapes with noise, as JPEG files of about 4 MB."""
    rng = np.random.default_rng(0)
    names = []
    for i in range(n):
        rough = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
        smooth = np.asarray(rough.resize(PHOTO, Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(smooth + rng.normal(0, 6, (*smooth.shape[:2], 1)), 0, 255).astype(np.uint8)
        names.append(f"{i}.jpg")
        Image.fromarray(noisy).save(folder / names[-1], quality=90)
    return FileImages(folder, names)


def extractor(engine: str, size: int, cache: str, backbone: str = "lite0") -> Extractor:
    given = {"data.engine": engine, "data.size": size, "data.cache": cache, "network.backbone": backbone}
    settings = make_settings("frozen", given)
    return make_extractor(settings, None, torch.device("cpu"), Reporter(quiet=True))


def passes(size: int, cache: str) -> Row:
    """Compare the engines on decoded images, in batches of the size that extraction uses."""
    by = {engine: extractor(engine, size, cache) for engine in ("torch", "onnx")}
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (4 * by["torch"].batch, 3, size, size), dtype=torch.uint8, generator=generator)
    turns: Any = {name: lambda one=one: encode_padded(one, pixels, one.batch) for name, one in by.items()}
    times = take_turns(turns, CLOCK.rounds(15), warm_up=2)
    return times.gain(f"torch, folded / onnxruntime, lite0 at {size} px", "onnx", "torch", 1.8)


def from_files(images: FileImages, cache: str) -> list[Row]:
    before, now = extractor("torch", 128, cache), extractor("onnx", 128, cache)
    like, data = now.card.preprocessing, now.data
    views = ContentViews(images, data, like.size, 3, like.interpolation, True, like.crop, like.zoom)
    rows = np.arange(len(images))

    def features(one: Extractor, names: tuple[str, ...]) -> None:
        made = views.make(rows, names, Memory(None).contents(images))
        encode_padded(one, torch.cat([crops.flatten(0, 1) for crops in made]), one.batch)

    def whole(one: Extractor, names: tuple[str, ...] = NAMES) -> None:
        check_images(images, strict=True, workers=1)
        features(one, names)

    times = take_turns(
        {
            "before": lambda: whole(before),
            "first": lambda: whole(now),
            "later": lambda: features(now, NAMES),
            "predict before": lambda: whole(before, ("clean",)),
            "predict": lambda: whole(now, ("clean",)),
        },
        CLOCK.rounds(9),
        warm_up=1,
    )
    return [
        times.gain("files of 12 megapixels to features, before / first run", "first", "before", 2.5),
        times.gain("the same for files checked before, another size or backbone", "later", "before", 2.5),
        times.gain("the same to predict new files, before / now", "predict", "predict before"),
    ]


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [passes(128, folder), passes(224, folder), *from_files(photos(Path(folder), 2), folder)]
