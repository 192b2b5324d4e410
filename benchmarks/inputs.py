"""From stored images to batches: the wait of a step for its data, decoding, and the cost of 10 million images.

Knows nothing of the network, except how long a step takes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL.Image
import torch

from benchmarks.problems import image_problem, synthetic_images
from benchmarks.ratios import CLOCK, Row, take_turns
from selftrain.data.corpus import Corpus
from selftrain.data.images import FileImages, find_images
from selftrain.data.split import make_split
from selftrain.data.views.augment import ResizedCrop
from selftrain.data.views.stream import Shuffle

MANY = 10_000_000


def wait_rows() -> list[Row]:
    """Compare making a batch with a whole step: images in memory, no workers, the paper's batch sizes."""
    problem = image_problem("fixmatch", batch=64, unlabeled_batch=448) if not CLOCK.quick else image_problem("fixmatch")
    shape = "64 + 448" if not CLOCK.quick else "16 + 112"
    step = [0]

    def batch() -> None:
        step[0] += 1
        problem.stream[step[0]]

    times = take_turns({"batch": batch, "step": problem.step}, CLOCK.rounds(5))
    row = times.cost(f"waiting for data, share of a step, {shape} at 32 px", "batch", "step", 3.0)
    row.ratio, row.kind = 100 * row.ratio, "%"
    assert row.spread is not None
    row.spread = (100 * row.spread[0], 100 * row.spread[1])
    return [row]


@contextmanager
def photo(width: int, height: int) -> Iterator[FileImages]:
    """Inside, there is a JPEG file like those of a camera."""
    folder = Path(tempfile.mkdtemp())
    try:
        pixels = synthetic_images(1, 256)[0].transpose(1, 2, 0)
        PIL.Image.fromarray(pixels).resize((width, height)).save(folder / "photo.jpg", quality=90)
        yield FileImages(folder, ["photo.jpg"])
    finally:
        shutil.rmtree(folder)


def decode_rows() -> list[Row]:
    """Compare a crop from a 12-megapixel photo decoded whole with one decoded only as large as the crop needs."""
    crop = ResizedCrop(224)
    params = crop.draw(1, np.random.default_rng(0))[0]
    with photo(4000, 3000) as images:
        times = take_turns(
            {
                "ours": lambda: crop.apply_one(images.load(0, min_side=crop.least_side), params),
                "whole": lambda: crop.apply_one(images.load(0), params),
            },
            CLOCK.rounds(8),
        )
    return [times.gain("decoding a 12-megapixel photo whole / as a crop at 224 px needs it", "ours", "whole")]


def index_rows() -> list[Row]:
    """Measure the work done once for 10 million unlabeled images, in seconds, and the work per step."""
    count = MANY if not CLOCK.quick else MANY // 10
    words = f"{count // 1_000_000} million unlabeled images"
    names = [f"unlabeled/{i:08d}.jpg" for i in range(count)]
    labels = np.full(count, -1)
    labels[:40] = np.arange(40) % 10
    started = CLOCK.now()
    images = FileImages("", names)
    corpus = Corpus(
        name="many", images=images, labels=labels, truth=labels, classes=tuple(map(str, range(10))), test=None,
        test_labels=None,
    )  # fmt: skip
    split = make_split(corpus, labels_per_class=None)
    images.subset(split.unlabeled)
    indexed = CLOCK.now() - started
    started = CLOCK.now()
    shuffle = Shuffle(count, 448, 0, 2)
    shuffle.rows(0)
    shuffled = CLOCK.now() - started
    few = Shuffle(10_000, 448, 0, 2)
    few.rows(0)
    step = [0, 0]

    def rows(which: int, of: Shuffle) -> None:
        step[which] = (step[which] + 1) % 20
        of.rows(step[which])

    times = take_turns({"few": lambda: rows(0, few), "many": lambda: rows(1, shuffle)}, 20, repeat=20)
    with tempfile.TemporaryDirectory() as folder:
        files = 5_000
        for i in range(files):
            Path(folder, f"{i}.jpg").touch()
        started = CLOCK.now()
        find_images(folder)
        found = (CLOCK.now() - started) * count / files
    return [
        Row(f"finding {words} in folders, from 5,000 files", found, kind="s"),
        Row(f"splitting and indexing {words}", indexed, kind="s"),
        Row(f"shuffling {words}, per epoch", shuffled, kind="s"),
        times.cost(f"rows of a step, {words} / 10 thousand", "many", "few"),
    ]


def rows() -> list[Row]:
    torch.manual_seed(0)
    return [*wait_rows(), *decode_rows(), *index_rows()]
