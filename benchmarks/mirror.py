"""How often the labels decide that images must not be mirrored, on draws of a few labels per class.

    python benchmarks/mirror.py --root DATA [--draws 40] [--labels 4 10] [--arrows]

Knows nothing of speed or accuracy: it prints rates. DATA holds the folders ucmerced, caltech101, cifar10-mini and
gtsrb; only their training images are used. ``--arrows`` uses drawn arrows instead that point right, down, left and up,
in classes whose names do not say so.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from selftrain.bench.cpu import FROZEN
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.data.split import make_split
from selftrain.runs.mirror import Verdict, judge_features, sample_labeled
from selftrain.runs.network_inputs import make_extractor

DATASETS = ("ucmerced", "caltech101", "cifar10-mini", "gtsrb")
ARROW = np.array([(-0.4, -0.06), (0.15, -0.06), (0.15, -0.2), (0.4, 0), (0.15, 0.2), (0.15, 0.06), (-0.4, 0.06)])


def write_arrows(folder: Path, per_class: int = 40, side: int = 128) -> Path:
    """Write dark arrows of random size, place and tilt: class a points right, b down, c left, d up."""
    rng = np.random.default_rng(0)
    for turn, name in enumerate("abcd"):
        (folder / "train" / name).mkdir(parents=True)
        for i in range(per_class):
            angle = turn * np.pi / 2 + rng.uniform(-0.15, 0.15)
            rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
            points = side * (ARROW @ rotation * rng.uniform(0.6, 1.1) + 0.5 + rng.uniform(-0.1, 0.1, 2))
            image = Image.new("L", (side, side), int(rng.integers(200, 256)))
            dark = int(rng.integers(0, 60))
            ImageDraw.Draw(image).polygon([tuple(point) for point in points.tolist()], fill=dark)
            image.save(folder / "train" / name / f"{i:03}.png")
    return folder


def verdicts(folder: Path, draws: int, labels: list[int]) -> dict[int, list[Verdict]]:
    """Return what is decided on each draw, by labels per class."""
    settings = make_settings("frozen", {"data.path": str(folder), **FROZEN})
    corpus = Source.parse(folder).corpus(check="header")
    extractor = make_extractor(settings, corpus, torch.device("cpu"), Reporter())
    splits = {n: [make_split(corpus, labels_per_class=n, seed=seed) for seed in range(draws)] for n in labels}
    used: NDArray[np.int64] = np.unique([row for drawn in splits.values() for split in drawn for row in split.labeled])
    features = np.asarray(extractor.features(corpus.images.subset(used), ("clean", "mirrored")))
    found: dict[int, list[Verdict]] = {}
    for n, drawn in splits.items():
        found[n] = []
        for seed, split in enumerate(drawn):
            rows = sample_labeled(split.labels, seed)
            pair = features[np.searchsorted(used, split.labeled[rows])]
            found[n].append(judge_features(pair[:, 0], pair[:, 1], split.labels[rows], corpus.classes))
    return found


def show(name: str, found: dict[int, list[Verdict]]) -> None:
    for n, given in found.items():
        off, doubtful = sum(not v.flip for v in given), sum(v.doubtful for v in given)
        swapped = sum("look like" in v.reason for v in given)
        print(
            f"{name:14} {n:3} labels per class, {len(given)} draws: off {off} (swapped classes {swapped}), "
            f"warned {doubtful}; first draw: {given[0].reason}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the datasets")
    parser.add_argument("--draws", type=int, default=40, help="draws of labels per row")
    parser.add_argument("--labels", type=int, nargs="+", default=[4, 10], help="labels per class")
    parser.add_argument("--arrows", action="store_true", help="drawn arrows instead of the datasets")
    options = parser.parse_args()
    if options.arrows:
        with tempfile.TemporaryDirectory() as folder:
            show("arrows", verdicts(write_arrows(Path(folder)), options.draws, options.labels))
        return
    if options.root is None:
        parser.error("--root is missing")
    for name in DATASETS:
        show(name, verdicts(options.root / name, options.draws, options.labels))


if __name__ == "__main__":
    main()
