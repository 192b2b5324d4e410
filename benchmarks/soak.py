"""Run for long and watch memory and open files: a long training run, a served model, and a labeling page.

    python -m benchmarks.soak [--steps 20000] [--requests 2000] [--answers 500]

Memory is sampled while the command works. Growth is the difference between the mean of the last tenth of the samples
and that of the second tenth: the first tenth is a warm-up. A leak of 1 kB per step would be 20 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.kill_storm import Page, train_words
from benchmarks.warm_commands import Command, small_images, small_weights, warm_up

MOST = 16.0
"""MB of growth that pass"""


class Watched(NamedTuple):
    """What was seen of a command."""

    what: str
    growth: float
    """MB"""
    files: int
    """open files at the end, beyond those at the beginning"""
    seconds: float

    @property
    def fine(self) -> bool:
        return self.growth <= MOST and self.files <= 4


class Watch:
    """Samples of a command's memory and open files."""

    def __init__(self, command: Command):
        self.command, self.begun = command, time.monotonic()
        self.memory: list[float] = []
        self.files: list[int] = []

    def sample(self) -> None:
        try:
            self.memory.append(self.command.memory())
            self.files.append(self.command.open_files())
        except OSError:
            return  # ended in the meantime

    def result(self, what: str) -> Watched:
        memory = np.array([value for value in self.memory if value])
        tenth = max(1, len(memory) // 10)
        growth = float(memory[-tenth:].mean() - memory[tenth : 2 * tenth].mean())
        files = int(np.median(self.files[-tenth:]) - np.median(self.files[tenth : 2 * tenth]))
        return Watched(what, growth, files, time.monotonic() - self.begun)


def train_soak(folder: Path, steps: int) -> Watched:
    """Train on the features of a frozen backbone for many steps."""
    words = train_words(folder, "dst(fixmatch)", "frozen", folder / "long")
    words[words.index("--steps") + 1] = str(steps)
    for name, value in (("checkpoint_every", steps // 10), ("eval_every", steps // 20)):
        words += ["--set", f"train.{name}={max(1, value)}"]
    words += ["--set", "optim.lr=0.001"]  # batches of two images diverge in the long run otherwise
    command = Command(words, folder / "cache", folder / "log")
    watch = Watch(command)
    while command.poll() is None:
        if (folder / "long/metrics.jsonl").exists():  # the first steps are done
            watch.sample()
        time.sleep(0.05)
    assert command.poll() == 0, (folder / "log").read_text()
    return watch.result(f"train, {steps:,} steps")


def page_soak(folder: Path, words: list[str], what: str, path: str, bodies: list[bytes], count: int) -> Watched:
    """Ask a page so many times."""
    page = Page(words, folder / "cache", folder / "log")
    watch = Watch(page.command)
    try:
        for i in range(count):
            page.ask(path, bodies[i % len(bodies)])
            if i % 5 == 0:
                watch.sample()
    finally:
        page.command.kill()
    return watch.result(f"{what}, {count:,} requests")


def soak(folder: Path, steps: int, requests: int, answers: int) -> list[Watched]:
    small_images(folder / "data", {"train": 4, "test": 2})
    small_weights(folder / "w.safetensors")
    warm_up(train_words(folder, "dst(fixmatch)", "frozen", folder / "run"), folder / "cache")
    images = [file.read_bytes() for file in sorted((folder / "data/test").rglob("*.png"))]
    given = [json.dumps({"answers": [{"id": i % 12, "label": "pqr"[i % 3]}]}).encode() for i in range(36)]
    photos = ["label", str(folder / "data/train"), "--labels", str(folder / "labels.csv"), "--backbone", "wrn-tiny"]
    photos += ["--size", "8", "--set", f"network.weights={folder / 'w.safetensors'}", "--set", "data.engine=torch"]
    return [
        page_soak(folder, ["serve", str(folder / "run")], "serve", "api/predict", images, requests),
        page_soak(folder, photos, "label", "api/answers", given, answers),
        train_soak(folder, steps),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--answers", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder).resolve(), options.steps, options.requests, options.answers)
    for one in found:
        print(f"{one.what}: {one.growth:+.1f} MB, {one.files:+d} open files, {one.seconds:.0f} seconds")
    sys.exit(0 if all(one.fine for one in found) else 1)


if __name__ == "__main__":
    main()
