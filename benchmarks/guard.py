"""The default on frozen features against the method by itself: what the survey and the guard cost.

    python -m benchmarks --only guard
    python -m benchmarks.guard --root DATA      # whole commands on image folders, with their features in the cache

Knows nothing of accuracy. The default trains on the labels alone first, looks at the pool, and compares at the end.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import selftrain
from benchmarks.ratios import CLOCK, HEADING, Row, take_turns
from selftrain.bench.cpu import PLAIN

BAR = 1.6
CLASSES, IMAGES, VIEWS, DIM = 40, 6000, 7, 1280


def synthetic_features() -> tuple[np.ndarray, np.ndarray]:
    """Return features of clustered images in several views, and labels: 4 per class, -1 for the others."""
    rng = np.random.default_rng(0)
    y = np.arange(IMAGES) % CLASSES
    centres = rng.normal(size=(CLASSES, DIM))
    x = centres[y, None] + 2 * rng.normal(size=(IMAGES, 1, DIM)) + rng.normal(size=(IMAGES, VIEWS, DIM))
    return x.astype(np.float32), np.where(np.arange(IMAGES) < 4 * CLASSES, y, -1)


def rows() -> list[Row]:
    """Compare runs on features in memory."""
    data, numbers, folder = synthetic_features(), itertools.count(), tempfile.TemporaryDirectory()

    def run(settings: dict[str, Any]) -> Callable[[], object]:
        def train() -> None:
            out = Path(folder.name) / str(next(numbers))
            selftrain.train(data, backbone="features", settings=settings, out=out, quiet=True)

        return train

    times = take_turns({"default": run({}), "plain": run(dict(PLAIN))}, rounds=CLOCK.rounds(5, 2), warm_up=1)
    return [times.cost("a run with survey and guard / the method by itself", "default", "plain", BAR)]


def commands(root: Path, datasets: list[str], rounds: int) -> list[Row]:
    """Compare whole commands on folders of images whose features are stored."""
    found, numbers = [], itertools.count()
    for name in datasets:
        with tempfile.TemporaryDirectory() as folder:

            def command(settings: dict[str, Any], name: str = name, folder: str = folder) -> Callable[[], object]:
                given = [word for key, value in settings.items() for word in ("--set", f"{key}={str(value).lower()}")]

                def run() -> None:
                    subprocess.run(
                        [sys.executable, "-m", "selftrain", "train", str(root / name), "--regime", "frozen",
                         "--labels-per-class", "4", "--set", "data.flip=true",
                         "--out", f"{folder}/{next(numbers)}", *given],
                        check=True, capture_output=True,
                    )  # fmt: skip

                return run

            times = take_turns({"default": command({}), "plain": command(dict(PLAIN))}, rounds=rounds, warm_up=1)
            found.append(times.cost(f"{name}: whole command, default / the method by itself", "default", "plain", BAR))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=["cifar10-mini", "ucmerced", "caltech101", "gtsrb"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(HEADING)
    for row in commands(options.root, options.datasets, options.rounds):
        print(row.as_text(), flush=True)
