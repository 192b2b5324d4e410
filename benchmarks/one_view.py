"""The value of strong views made in feature space, with only one feature vector per image.

    python benchmarks/one_view.py --root DATA [--seeds 3] [--processes 2]

Knows nothing of speed: it prints accuracies. DATA holds the folders cifar10-mini and ucmerced. The features are those
of the clean view; each way of making strong views is switched off in turn, and on alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

import selftrain
from selftrain.bench.cpu import FROZEN
from selftrain.bench.table import mean_and_deviation
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.data.split import make_split
from selftrain.runs.network_inputs import FrozenInputs, prepare_inputs

DATASETS = ("cifar10-mini", "ucmerced")
OFF = {"data.feature_dropout": 0.0, "data.feature_noise": 0.0, "data.feature_mixup": 0.0}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "supervised": ("supervised", {}),
    "fixmatch": ("fixmatch", {}),
    "dst(fixmatch)": ("dst(fixmatch)", {}),
    "dst(fixmatch), strong = weak": ("dst(fixmatch)", OFF),
    "dst(fixmatch), no dropout": ("dst(fixmatch)", {"data.feature_dropout": 0.0}),
    "dst(fixmatch), no noise": ("dst(fixmatch)", {"data.feature_noise": 0.0}),
    "dst(fixmatch), neighbours as well": ("dst(fixmatch)", {"data.feature_mixup": 0.3}),
    "dst(fixmatch), dropout alone": ("dst(fixmatch)", {**OFF, "data.feature_dropout": 0.2}),
    "dst(fixmatch), noise alone": ("dst(fixmatch)", {**OFF, "data.feature_noise": 0.1}),
    "dst(fixmatch), neighbours alone": ("dst(fixmatch)", {**OFF, "data.feature_mixup": 0.3}),
}


def clean_features(root: Path, dataset: str) -> dict[str, np.ndarray]:
    """Return one vector per image, the labels of 4 images per class (-1 elsewhere), and the test set."""
    settings = make_settings("frozen", {"data.path": str(root / dataset), **FROZEN})
    corpus = Source.parse(root / dataset).corpus(check="header")
    inputs = prepare_inputs(settings, corpus, torch.device("cpu"), Reporter())
    assert isinstance(inputs, FrozenInputs)
    split = make_split(corpus, labels_per_class=4)
    y = np.full(len(corpus.images), -1)
    y[split.labeled] = split.labels
    assert corpus.test is not None
    assert corpus.test_labels is not None
    test = torch.cat(list(inputs.clean(corpus.test, 256))).numpy()
    return {"x": np.asarray(inputs.features[:, 0], np.float32), "y": y, "tx": test, "ty": corpus.test_labels}


def run_one(file: str, name: str, seed: int) -> float:
    arrays = np.load(file)
    method, settings = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        run = selftrain.train(
            (arrays["x"], arrays["y"]), test=(arrays["tx"], arrays["ty"]), method=method, seed=seed,
            out=Path(folder) / "run", quiet=True, settings={"train.threads": 1, **settings},
        )  # fmt: skip
        return 100 * float(run.results["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for dataset in DATASETS:
            files[dataset] = f"{folder}/{dataset}.npz"
            np.savez(files[dataset], **clean_features(options.root, dataset))  # type: ignore[arg-type]
        with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            jobs = {
                (name, dataset): [pool.submit(run_one, files[dataset], name, seed) for seed in range(options.seeds)]
                for name in ROWS
                for dataset in DATASETS
            }
            print("| | " + " | ".join(DATASETS) + " | mean |\n|---|---|---|---|")
            for name in ROWS:
                found = [[job.result() for job in jobs[name, dataset]] for dataset in DATASETS]
                print(
                    f"| {name} | {' | '.join(map(mean_and_deviation, found))} | {mean(map(mean, found)):.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
