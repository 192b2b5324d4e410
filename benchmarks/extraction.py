"""Extraction of features: OpenVINO and onnxruntime against torch, batch norm folded, on decoded images and from files.

    python -m benchmarks --only extraction [--clock cpu]

Knows nothing of accuracy. "Before" is how features of files were extracted before there were other engines: every file
is decoded once to check it and once for its views, and torch runs the backbone with batch norm folded. "bf16" are
numbers of 16 bits, as quality levels use them on processors that have them.
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
from selftrain.nn.runtimes import RUNTIMES, is_installed, why_not_bf16
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


def extractor(engine: str, size: int, cache: str, backbone: str = "lite0", precision: str = "32") -> Extractor:
    given = {
        "data.engine": engine, "data.size": size, "data.cache": cache, "network.backbone": backbone,
        "data.precision": precision,
    }  # fmt: skip
    settings = make_settings("frozen", given)
    return make_extractor(settings, None, torch.device("cpu"), Reporter(quiet=True))


def extractors(size: int, cache: str, backbone: str = "lite0") -> dict[str, Extractor]:
    """Return the engines that are installed, by name."""
    by = {"torch": extractor("torch", size, cache, backbone)}
    by |= {one.key: extractor(one.key, size, cache, backbone) for one in RUNTIMES if is_installed(one)}
    if not why_not_bf16("auto", "cpu"):
        by["bf16"] = extractor("openvino", size, cache, backbone, "bf16")
    return by


def passes(size: int, cache: str, backbone: str = "lite0") -> list[Row]:
    """Compare the engines on decoded images, in batches of the size that extraction uses."""
    by = extractors(size, cache, backbone)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (4 * by["torch"].batch, 3, size, size), dtype=torch.uint8, generator=generator)
    turns: Any = {name: lambda one=one: encode_padded(one, pixels, one.batch) for name, one in by.items()}
    times = take_turns(turns, CLOCK.rounds(15), warm_up=2)
    bars = {"openvino": 1.8, "bf16": 2.8}
    return [
        times.gain(f"torch, folded / {name}, {backbone} at {size} px", name, "torch", bars.get(name))
        for name in by
        if name != "torch"
    ]


def from_files(images: FileImages, cache: str) -> list[Row]:
    by = extractors(128, cache)
    like, data = by["torch"].card.preprocessing, by["torch"].data
    views = ContentViews(images, data, like.size, 3, like.interpolation, True, like.crop, like.zoom)
    rows = np.arange(len(images))

    def features(one: Extractor, names: tuple[str, ...]) -> None:
        made = views.make(rows, names, Memory(None).contents(images))
        encode_padded(one, torch.cat([crops.flatten(0, 1) for crops in made]), one.batch)

    def whole(one: Extractor, names: tuple[str, ...] = NAMES) -> None:
        check_images(images, strict=True, workers=1)
        features(one, names)

    best = next(name for name in ("bf16", "openvino", "onnx", "torch") if name in by)
    times = take_turns(
        {
            "before": lambda: whole(by["torch"]),
            "first": lambda: whole(by[best]),
            "later": lambda: features(by[best], NAMES),
            "predict before": lambda: whole(by["torch"], ("clean",)),
            "predict": lambda: whole(by[best], ("clean",)),
        },
        CLOCK.rounds(9),
        warm_up=1,
    )
    return [
        times.gain(f"files of 12 megapixels to features, before / first run ({best})", "first", "before", 2.5),
        times.gain("the same for files checked before, another size or backbone", "later", "before", 2.5),
        times.gain("the same to predict new files, before / now", "predict", "predict before"),
    ]


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        made = photos(Path(folder), 2)
        return [*passes(128, folder), *passes(224, folder), *passes(224, folder, "lite2"), *from_files(made, folder)]
