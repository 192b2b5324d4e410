"""The frozen regime: extraction against the bare backbone, and a step on very many cached rows against one on few.

    python -m benchmarks --only features
    python -m benchmarks.features --root DATA      # on the images of DATA/ucmerced instead of synthetic ones

Knows nothing of accuracy. Extraction is decoding, augmentation, backbone and cache; the bare backbone gets ready-made
tensors in the same batches.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.ratios import CLOCK, HEADING, Row, take_turns
from selftrain.config.resolve import make_settings, with_values
from selftrain.console import Reporter
from selftrain.data.features.extract import PIECE, view_names
from selftrain.data.features.views import FeatureViews
from selftrain.data.images import FileImages, Images
from selftrain.data.source import Source
from selftrain.data.views.stream import Stream
from selftrain.engine.estimate import peak_memory
from selftrain.engine.optim import make_sgd
from selftrain.methods import make_method
from selftrain.nn.backbones import build_backbone
from selftrain.nn.layers import UnitFeatures
from selftrain.nn.network import Network, Task
from selftrain.runs.extractor import PIXELS_PER_PASS, Extractor, image_views
from selftrain.runs.model import make_card, make_classifier, make_encoder

NAMES = view_names(2, 4)
SIZE = 128
IMAGES = 8 * PIECE  # pieces that two or four threads can share evenly, as with many images


def synthetic_photos(folder: Path, n: int) -> Images:
    """Write photos of 256 x 256 pixels, smooth shapes with a little noise, as JPEG files."""
    rng = np.random.default_rng(0)
    names = []
    for i in range(n):
        rough = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        smooth = np.asarray(rough.resize((256, 256), Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        names.append(f"{i:04}.jpg")
        Image.fromarray(noisy).save(folder / names[-1], quality=90)
    return FileImages(folder, names)


def extraction(images: Images) -> list[Row]:
    """Compare the whole extraction with the bare backbone on the same views."""
    settings = make_settings("frozen", {"data.size": SIZE})
    backbone = build_backbone("lite0", size=SIZE)
    card = make_card(settings.network, backbone, ("a", "b"), SIZE, frozen=True, weights="benchmark")
    n, rng = len(images), np.random.default_rng(0)
    views = image_views(images, settings.data, card, True).make(np.arange(n), NAMES, rng)
    encoder = make_encoder(card, backbone).eval().to(memory_format=torch.channels_last)
    pixels = encoder.normalise(torch.stack([views[name] for name in NAMES], dim=1).flatten(0, 1))
    numbers, folder = itertools.count(), tempfile.TemporaryDirectory()

    def ours() -> None:
        data = with_values(settings, {"data.cache": f"{folder.name}/{next(numbers)}"}).data
        extractor.data = data  # an empty cache every time
        extractor.features(images, NAMES)

    def bare(batch: int) -> None:
        with torch.inference_mode():
            for piece in torch.split(pixels, batch):
                backbone(piece)

    extractor = Extractor(make_encoder(card, backbone), card, settings.data, torch.device("cpu"), Reporter(quiet=True))
    same, whole = PIXELS_PER_PASS // SIZE**2, PIECE * len(NAMES)
    with folder:
        times = take_turns(
            {"ours": ours, "bare": lambda: bare(same), "large": lambda: bare(whole)}, CLOCK.rounds(7), warm_up=1
        )
    return [
        times.gain(f"extraction / bare backbone, batches of {same} in both", "ours", "bare", 0.9),
        times.gain(f"extraction / bare backbone, batches of {whole} there", "ours", "large"),
    ]


def step(rows: int, folder: Path) -> Any:
    """Return a training step of DST on a synthetic cache of that many rows (a sparse file, so no disk is filled)."""
    settings = make_settings("frozen", {})
    method = make_method("dst(fixmatch)", "frozen")
    path = folder / f"{rows}.bin"
    features = np.memmap(path, np.float16, mode="w+", shape=(rows, len(NAMES), 1280))
    card = make_card(settings.network, None, tuple(map(str, range(10))), 0, frozen=True, features=1280)
    net = Network(make_classifier(card, UnitFeatures(1280)), Task(10, rows, 1000))
    method.setup(net)
    optimizer = make_sgd(net, settings.optim)
    views = FeatureViews(features, NAMES, np.arange(rows))
    labeled = FeatureViews(features, NAMES, np.arange(40))
    stream = Stream(labeled, np.arange(40) % 10, views, method.views, batch=32, unlabeled_batch=64, seed=0)

    def take(number: int) -> None:
        losses = method.objective(net, *stream[number])
        losses.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return take


def growth() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        steps = {}
        for name, n in (("few", 10_000), ("many", 10_000_000)):
            take, numbers = step(n, Path(folder)), itertools.count()
            steps[name] = lambda take=take, numbers=numbers: take(next(numbers))
        times = take_turns(steps, CLOCK.rounds(200), warm_up=5)
        resident = peak_memory(torch.device("cpu")) / 1e9
    return [
        times.cost("frozen step on 10 million cached rows / on 10 thousand", "many", "few", 1.15),
        Row("resident memory with 10 million cached rows, at most", resident, 2.0, kind="GB"),
    ]


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [*growth(), *extraction(synthetic_photos(Path(folder), IMAGES))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder that holds ucmerced")
    parser.add_argument("--images", type=int, default=IMAGES)
    options = parser.parse_args()
    everything = Source.parse(options.root / "ucmerced").corpus(check="none").images
    some = np.sort(np.random.default_rng(0).choice(len(everything), options.images, replace=False))
    print(HEADING)
    for row in extraction(everything.subset(some)):
        print(row.as_text())


if __name__ == "__main__":
    main()
