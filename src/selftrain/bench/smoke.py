"""Every cell of a bench for 20 steps on this machine's CPU, on stand-ins of its datasets and backbones.

It shows that each run starts, trains, is evaluated and saved. Its accuracies mean nothing and are not shown. Stand-ins
have the number of classes, the size and the storage of a dataset (in memory, or files of JPEG), but noise for images.
Knows nothing of how a run is computed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from selftrain.bench.cells import Cell, Outcome, attempt
from selftrain.bench.grid import run_grid
from selftrain.bench.paper import MOCO_WEIGHTS
from selftrain.console import Reporter
from selftrain.data.images import ArrayImages, FileImages
from selftrain.data.sources.named import DATASETS, DatasetSpec
from selftrain.data.sources.readers import Parts
from selftrain.nn.backbones import build_backbone

STEPS, JUNK = 20, "junk"
TESTED = 2
"""test images per class"""
BACKBONES = {"wrn-28-2": "wrn-tiny", "wrn-28-8": "wrn-tiny", "wrn-37-2": "wrn-tiny", "resnet50.tv_in1k": "test_resnet"}
"""small networks that stand for large ones"""
SMALL: Mapping[str, Any] = {
    "train.steps": STEPS, "train.batch": 4, "train.unlabeled_batch": 8, "train.eval_every": STEPS,
    "train.accelerator": "cpu", "data.size": 32,
}  # fmt: skip


@dataclass(frozen=True)
class StandIn:
    """Reads noise in the place of a dataset: its classes, its number of channels, in memory or as files."""

    spec: DatasetSpec
    per_class: int
    folder: Path

    def __call__(self, root: Path) -> Parts:
        K, n = self.spec.classes, self.per_class
        classes = tuple(f"class {k:03d}" for k in range(K))
        numbers = np.arange(K, dtype=np.int64)
        labels, test_labels = np.repeat(numbers, n), np.repeat(numbers, TESTED)
        unlabeled = np.full(4 * K if self.spec.unlabeled else 0, -1, np.int64)
        pool = np.concatenate([labels, unlabeled])
        return Parts(classes, self._images("train", pool), pool, self._images("test", test_labels), test_labels)

    def _images(self, part: str, labels: np.ndarray) -> ArrayImages | FileImages:
        rng, names = np.random.default_rng(len(labels)), [f"{part}/{i:06d}" for i in range(len(labels))]
        if self.spec.regime == "scratch":
            shape = (len(labels), self.spec.channels, self.spec.size, self.spec.size)
            return ArrayImages(rng.integers(0, 256, shape, dtype=np.uint8), names)
        (self.folder / part).mkdir(parents=True, exist_ok=True)
        for name in names:
            pixels = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.folder / f"{name}.jpg")
        return FileImages(self.folder, [f"{name}.jpg" for name in names])


@contextmanager
def stand_ins(names: Sequence[str], per_class: int, folder: Path) -> Iterator[None]:
    """Inside, datasets by name are read as noise, without a download; digits stay as they are."""
    before = dict(DATASETS)
    try:
        for name in names:
            spec = before.get(name)
            if spec is not None and not spec.is_bundled:
                reader = StandIn(spec, per_class, folder / name)
                DATASETS[name] = replace(spec, read=reader, files=(), by_hand=())
        yield
    finally:
        DATASETS.update(before)


def small(cell: Cell, folder: Path) -> Cell:
    """Return a cell with few steps, small batches, small images and a small network."""
    settings = {**cell.settings, **SMALL}
    backbone = str(settings.get("network.backbone", ""))
    if settings.get("regime") == "frozen":  # which needs real weights, and features that are kept nowhere
        settings |= {"data.size": 64, "data.cache": str(folder / "cache"), "data.weak_views": 1, "data.strong_views": 1}
    else:
        settings["network.backbone"] = BACKBONES.get(backbone, backbone)
        settings.setdefault("network.weights", "none")
    if settings.get("data.junk_from"):
        settings["data.junk_from"] = str(folder / JUNK)
    if cell.dataset == "digits":
        settings["data.size"] = cell.settings.get("data.size")
    return replace(cell, settings=settings)


def smoke(cells: Sequence[Cell], reporter: Reporter) -> tuple[int, dict[Cell, str]]:
    """Run every cell for a few steps in a temporary folder; return how many finished, and the reasons of the others."""
    known = ("data.labels_per_class", "data.validation_per_class")
    per_class = max(sum(int(cell.settings.get(name) or 0) for name in known) for cell in cells) + 2
    with tempfile.TemporaryDirectory(prefix="selftrain-smoke-") as temporary:
        folder = Path(temporary)
        shrunk = [small(cell, folder) for cell in cells]
        _write_root(shrunk, folder)
        with stand_ins([cell.dataset for cell in cells], per_class, folder / "data"):
            done, failed = run_grid(shrunk, folder, folder / "runs", _here, reporter)
    return len(done), failed


def _here(cells: Sequence[Cell], root: Path | None, out: Path, reporter: Reporter) -> Iterator[Outcome]:
    """Run cells in this process, which has the stand-ins, one after another."""
    return (attempt(cell, root, out) for cell in cells)


def _write_root(cells: Sequence[Cell], root: Path) -> None:
    """Write the files that settings expect below the root: weights in the format of MoCo's, and a folder of junk."""
    (root / JUNK).mkdir()
    for i in range(8):
        Image.new("RGB", (40, 30), (20 * i, 90, 200)).save(root / JUNK / f"{i}.png")
    if any(cell.settings.get("network.weights") == MOCO_WEIGHTS for cell in cells):
        net = build_backbone(BACKBONES["resnet50.tv_in1k"], weights="none", size=32).net
        state = {f"module.encoder_q.{name}": value for name, value in net.state_dict().items()}
        torch.save({"state_dict": state}, MOCO_WEIGHTS.replace("{root}", str(root)))
