"""An exported ONNX file against the run it came from: the same predictions, and how fast.

    python -m benchmarks.exported RUN IMAGES [--images 105] [--rounds 5] [--clock cpu] [--parity]

The run extracts features with onnxruntime if it is installed, and has none of them stored. Both read the same files.
Knows nothing of accuracy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

import selftrain
from benchmarks.ratios import CLOCK, HEADING, take_turns
from selftrain.data.cache_folder import cache_root

BAR = 1.0


def speed(run: Path, model: Path, images: Path, rounds: int) -> str:
    """Return how many times faster the file is than the run, from pixels to probabilities."""
    engines = cache_root(None) / "engines"
    file = selftrain.ExportedModel(model)

    def by_run() -> None:
        with tempfile.TemporaryDirectory() as folder:  # no stored features, but the network that is exported once
            if engines.is_dir():
                shutil.copytree(engines, Path(folder, "engines"))
            os.environ["SELFTRAIN_CACHE"] = folder
            loaded.predict(images)

    loaded = selftrain.Run(run)
    times = take_turns({"run": by_run, "file": lambda: file.predict(images)}, CLOCK.rounds(rounds))
    return times.gain(f"selftrain predict: {run.name} / its exported file", "file", "run", BAR).as_text()


def parity(run: Path, model: Path, images: Path) -> str:
    """Return how much the predictions differ."""
    ours, theirs = selftrain.Run(run).predict(images), selftrain.ExportedModel(model).predict(images)
    labels = sum(a != b for a, b in zip(ours.labels, theirs.labels, strict=True))
    apart = np.abs(ours.probabilities - theirs.probabilities).max()
    return f"{len(ours)} images: {labels} labels differ; largest difference of a probability {apart:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path, help="a folder of images")
    parser.add_argument("--images", type=int, default=105, dest="count", help="images to time, spread over the folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: CPU time of one thread")
    parser.add_argument("--parity", action="store_true", help="compare the predictions of all images as well")
    options = parser.parse_args()
    CLOCK.cpu = options.clock == "cpu"
    with tempfile.TemporaryDirectory() as folder:
        model = selftrain.Run(options.run).export(Path(folder, "exported", "model.onnx"))
        if options.parity:
            print(parity(options.run, model, options.images), flush=True)
        found = sorted(path for path in options.images.rglob("*") if path.is_file())
        chosen = Path(folder, "images")
        chosen.mkdir()
        for i in np.linspace(0, len(found) - 1, min(options.count, len(found))).astype(int):
            shutil.copy(found[i], chosen / f"{i}{found[i].suffix}")
        print(HEADING)
        print(speed(options.run, model, chosen, options.rounds))


if __name__ == "__main__":
    main()
