"""Speed of the frozen regime, as ratios measured in one run.

    python benchmarks/features.py --root DATA

Extraction (decoding, augmentation, backbone, cache) against the bare backbone on preloaded tensors; a training step on
10 million cached rows against one on 10 thousand, with the memory that stays resident. DATA holds the folder ucmerced.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from selftrain.backbones import build_backbone
from selftrain.console import Reporter
from selftrain.data.features import FeatureViews, view_names
from selftrain.data.sources import load_corpus
from selftrain.data.stream import Stream
from selftrain.engine.optim import make_sgd
from selftrain.inputs import Extractor, image_views
from selftrain.methods import make_method
from selftrain.model import make_card, make_classifier, make_encoder
from selftrain.network import Network, Task, UnitFeatures
from selftrain.settings import make_settings, with_values

NAMES = view_names(2, 4)


def extraction(root: Path, images: int, rounds: int) -> dict[str, Any]:
    """Images a second through the whole of extraction / through the bare backbone, in turns on the same pictures."""
    settings = make_settings("frozen", {})
    corpus = load_corpus(root / "ucmerced", check="none")
    backbone = build_backbone("lite0", size=128)
    card = make_card(settings.network, backbone, corpus.classes, 128, frozen=True, weights="benchmark")
    ratios, ours = [], []
    rng = np.random.default_rng(0)
    threads = torch.get_num_threads()
    for _ in range(rounds):
        part = corpus.images.subset(np.sort(rng.choice(len(corpus.images), images, replace=False)))
        pictures = image_views(part, settings.data, card, True).make(np.arange(images), NAMES, rng)
        pixels = torch.stack([pictures[name] for name in NAMES], dim=1).flatten(0, 1)
        with tempfile.TemporaryDirectory() as cache:
            data = with_values(settings, {"data.cache": cache}).data
            extractor = Extractor(make_encoder(card, backbone), card, data, torch.device("cpu"), Reporter(quiet=True))
            started = time.perf_counter()
            extractor.features(part, NAMES)
            whole = time.perf_counter() - started
        torch.set_num_threads(threads)
        encoder = make_encoder(card, backbone).eval()
        normalised = encoder.normalise(pixels)
        best = []
        for batch in (len(NAMES) * 16, 8):  # the batch of a piece, and the small one that ours uses
            started = time.perf_counter()
            with torch.inference_mode():
                for piece in normalised.split(batch):
                    backbone(piece)
            best.append(time.perf_counter() - started)
        ratios.append([seconds / whole for seconds in best])
        ours.append(images / whole)
    return {
        "images a second (7 views each)": median(ours),
        "speed / bare backbone, batch of 112": median(r[0] for r in ratios),
        "speed / bare backbone, batch of 8": median(r[1] for r in ratios),
    }


def step(rows: int, folder: Path) -> tuple[Any, Stream]:
    """A training step of DST on a synthetic cache of so many rows (sparse: no disk is filled)."""
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

    return take, stream


def growth(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        small, _ = step(10_000, Path(folder))
        large, _ = step(10_000_000, Path(folder))
        ratios = []
        for number in range(rounds + 5):
            seconds = []
            for take in (small, large):
                started = time.perf_counter()
                take(number)
                seconds.append(time.perf_counter() - started)
            if number >= 5:
                ratios.append(seconds[1] / seconds[0])
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"step on 10 million rows / 10 thousand": median(ratios), "resident memory, GB": resident}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = {**growth(300), **extraction(options.root, options.images, options.rounds)}
    for name, value in rows.items():
        print(f"{name:45} {value:8.2f}")


if __name__ == "__main__":
    main()
