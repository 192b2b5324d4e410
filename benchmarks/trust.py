"""How far finished runs can be believed: calibration, coverage, estimated accuracy, and images of no known class.

Reads the default runs of a bench on ``cifar10-mini``, ``ucmerced``, ``caltech101`` and ``gtsrb``; test images are used
for the table only.

    selftrain bench pile/natural --root DATA --methods default --out RUNS
    python -m benchmarks.trust RUNS [--root DATA]    # with --root: other datasets' test images as unknown kinds
    python -m benchmarks.trust RUNS --estimates      # only whether the intervals hold the accuracy
    python -m benchmarks.trust RUNS --again NEW      # first copy the runs to NEW and calibrate them with this code
"""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import selftrain
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.features.rows import feature_batches
from selftrain.data.source import Source
from selftrain.methods.junk import auroc
from selftrain.runs.model import load_novelty
from selftrain.runs.network_inputs import make_extractor

COVERAGE = 0.8
BINS, DRAWS = 15, 50
Results = dict[str, Any]
Array = NDArray[Any]


@dataclass(frozen=True)
class Known:
    """What a run says about images of no known class."""

    auroc: float
    """mean over the other datasets of the AUROC of the novelty"""
    false_unknown: float
    """share of the test images of its own classes that it calls unknown"""


def default_runs(folder: Path) -> dict[str, list[Path]]:
    """Return the finished runs with calibrated probabilities, by dataset."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("**/results.json")):
        results = selftrain.Run(path.parent).results
        if results.get("guard") is not None and results.get("estimated") is not None:
            found[str(results["dataset"])].append(path.parent)
    return dict(found)


def calibrate_again(run: Path, folder: Path) -> Path:
    """Copy a finished run without its results, and let it end again: it resumes after its last step."""
    shutil.copytree(run, folder)
    (folder / "results.json").unlink()
    return selftrain.train(out=folder, resume=True, quiet=True).folder


def at_coverage(results: Results) -> float:
    """Return the accuracy of the surest images."""
    return float(next(right for share, right, _ in results["risk_coverage"] if share >= COVERAGE - 0.004))


def ece_of_chance(confidence: Array) -> float:
    """Return the mean calibration error of images that are classified correctly just as often as is said of each."""
    rng, places = np.random.default_rng(0), np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    right = rng.random((DRAWS, len(confidence))) < confidence
    gaps = [np.bincount(places, weights=hits - confidence, minlength=BINS) for hits in right]
    return float(np.abs(gaps).sum(axis=1).mean() / len(confidence))


def level_error(results: Results) -> float:
    """Return how much the mean confidence on the test images is above their accuracy."""
    bins = np.array([one for one in results["calibration"] if one[0]], np.float64)
    return float(np.average(bins[:, 1] - bins[:, 2], weights=bins[:, 0]))


def calibration_table(runs: dict[str, list[Results]]) -> list[str]:
    """Return what calibration and coverage do on each dataset, means over the runs."""
    columns = ["accuracy", "ECE before", "ECE after", "by chance", f"accuracy at coverage {COVERAGE}", "gain", "level"]
    lines = [f"| dataset | runs | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 2)]
    means = []
    for name, several in runs.items():
        rows = [
            (
                r["accuracy"],
                r["calibrated"]["ece_before"],
                r["ece"],
                r["ece_of_chance"],
                at_coverage(r),
                at_coverage(r) - r["accuracy"],
                level_error(r),
            )
            for r in several
        ]
        means.append(np.mean(rows, axis=0))
        lines.append(_line(name, len(several), means[-1]))
    total = np.mean(means, axis=0)
    lines.append(_line("mean", sum(map(len, runs.values())), total))
    lines.append(f"\nECE after / before: {total[2] / total[1]:.2f}")
    return lines


def _line(name: str, n: int, values: Any) -> str:
    errors = " | ".join(f"{values[i]:.3f}" for i in (1, 2, 3))
    gain, level = (f"{100 * values[i]:+.1f} points" for i in (5, 6))
    return f"| {name} | {n} | {values[0]:.1%} | {errors} | {values[4]:.1%} | {gain} | {level} |"


def estimate_table(runs: dict[str, list[Results]]) -> list[str]:
    """Return how often the 90% interval holds the accuracy on the test images."""
    lines = ["| dataset | runs | held | mean error, points | mean width, points |", "|---|---|---|---|---|"]
    held, every = 0, 0
    for name, several in runs.items():
        estimates = [r["estimated"] for r in several]
        truth = np.array([r["accuracy"] for r in several])
        low, middle, high = (np.array([e[key] for e in estimates]) for key in ("low", "accuracy", "high"))
        inside = int(((low <= truth) & (truth <= high)).sum())
        held, every = held + inside, every + len(several)
        error, width = 100 * (middle - truth).mean(), 100 * (high - low).mean()
        lines.append(f"| {name} | {len(several)} | {inside} | {error:+.1f} | {width:.1f} |")
    lines.append(f"| all | {every} | {held} ({held / every:.0%}) | | |")
    return lines


def novelty_of(run: Path, images: dict[str, Array]) -> dict[str, Array]:
    """Return the novelty of the test images of each dataset, from their features."""
    classes = selftrain.Run(run).results["classes"]
    novelty = load_novelty(run / "model", classes=len(classes), dim=next(iter(images.values())).shape[1])
    assert novelty is not None
    with torch.inference_mode():
        return {name: novelty(torch.from_numpy(x)).numpy() for name, x in images.items()}


def known(novelty: dict[str, Array], own: str) -> Known:
    """Return how well a run tells test images of other datasets from those of its own."""
    mine, areas = novelty[own], []
    for name, theirs in novelty.items():
        if name != own:
            is_other = np.arange(len(mine) + len(theirs)) >= len(mine)
            areas.append(auroc(np.concatenate([mine, theirs]), is_other))
    return Known(float(np.mean([area for area in areas if area is not None])), float((mine > 0.5).mean()))


def test_features(root: Path, names: Sequence[str]) -> dict[str, Array]:
    """Return the features of the test images of each dataset, as the frozen regime makes them by default."""
    extractor = make_extractor(make_settings("frozen", {}), None, torch.device("cpu"), Reporter())
    found = {}
    for name in names:
        images = Source.parse(root / name).corpus(check="none").test
        assert images is not None
        found[name] = np.concatenate([x.numpy() for x in feature_batches(extractor.features(images, ("clean",)), 4096)])
    return found


def unknown_table(folders: dict[str, list[Path]], root: Path) -> list[str]:
    """Return how well runs recognise images of the other datasets."""
    lines = ["| dataset | runs | AUROC of the novelty | own images called unknown |", "|---|---|---|---|"]
    images = test_features(root, list(folders))
    for name, several in folders.items():
        found = [known(novelty_of(run, images), name) for run in several]
        area = np.mean([one.auroc for one in found])
        shares = ", ".join(f"{one.false_unknown:.1%}" for one in found)
        lines.append(f"| {name} | {len(found)} | {area:.3f} | {shares} |")
    return lines


def results_of(folder: Path) -> Results:
    """Return the results of a run, and the calibration error that chance alone would give it."""
    run = selftrain.Run(folder)
    with np.load(folder / "outputs.npz", allow_pickle=False) as outputs:
        confidence = outputs["eval_confidence"].astype(np.float64)
    return {**run.results, "ece_of_chance": ece_of_chance(confidence)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of a bench")
    parser.add_argument("--root", type=Path, help="folder of the datasets, each with a folder test/")
    parser.add_argument("--estimates", action="store_true", help="only the table of estimated accuracies")
    parser.add_argument(
        "--again", type=Path, metavar="NEW", help="a new folder, for the runs as they end with this code"
    )
    options = parser.parse_args()
    folders = default_runs(options.runs)
    if not folders:
        parser.error(f"{options.runs}: there are no finished default runs in it")
    if options.again:
        folders = {
            name: [calibrate_again(run, options.again / name / run.name) for run in several]
            for name, several in folders.items()
        }
    results = {name: [results_of(run) for run in several] for name, several in folders.items()}
    tables = [estimate_table(results)] if options.estimates else [calibration_table(results), estimate_table(results)]
    for table in tables:
        print("\n".join(table), end="\n\n", flush=True)
    if options.root:
        print("\n".join(unknown_table(folders, options.root)))


if __name__ == "__main__":
    main()
