"""The main job in miniature: supervised, FixMatch and DST on handwritten digits, a table and a picture.

Knows nothing of how training works; it makes run folders with ``selftrain.train`` and reads them.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from selftrain.console import Reporter
from selftrain.files import read_json
from selftrain.run import RESULTS

METHODS = {"supervised": "supervised", "FixMatch": "fixmatch", "DST(FixMatch)": "dst(fixmatch)"}
# Shared by all methods. Short runs want a quicker average than the 0.999 of a million steps.
SETTINGS = {"train.batch": 32, "train.unlabeled_batch": 64, "optim.ema": 0.99, "train.threads": 1}
STEPS = 1000


def train_one(method: str, seed: int, folder: str) -> str:
    """One run, finished or gone on with; in a process of its own."""
    from selftrain.training import train

    path = Path(folder)
    if not (path / RESULTS).exists():
        train(
            "digits",
            method=method,
            labels_per_class=4,
            steps=STEPS,
            seed=seed,
            settings={**SETTINGS, "data.split_seed": seed},
            out=path,
            resume=(path / "config.yaml").exists(),
            quiet=True,
        )
    return folder


def run_demo(out: Path, seeds: int) -> None:
    """Train every method with every seed, a process a core; print the table, draw the picture."""
    console = Console()
    console.print(
        f"Handwritten digits, 4 labels a class, {len(METHODS)} methods x {seeds} seeds, {STEPS} steps each. "
        f"A seed draws the labels, the initial weights and the batches."
    )
    folders = {
        (name, seed): out / f"{method}-seed{seed}".replace("(", "-").replace(")", "")
        for name, method in METHODS.items()
        for seed in range(seeds)
    }
    workers = min(len(folders), os.cpu_count() or 1)
    # spawn: a forked child of a process that has used torch's threads can hang
    with (
        Reporter().progress("training", len(folders), "runs") as bar,
        ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        waiting = [pool.submit(train_one, METHODS[name], seed, str(folder)) for (name, seed), folder in folders.items()]
        for done, future in enumerate(as_completed(waiting), start=1):
            future.result()
            bar.reach(done)
    results = {name: [read_json(folders[name, seed] / RESULTS) for seed in range(seeds)] for name in METHODS}
    console.print(make_table(results))
    picture = draw(results, out / "demo.png")
    console.print(f"picture: {picture}, run folders: {out}{os.sep}")


def make_table(results: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table()
    table.add_column("method", no_wrap=True)
    for heading in ("accuracy", "worst 20% of classes", "imbalance ratio", "pseudo labels right", "seconds"):
        table.add_column(heading)
    for name, runs in results.items():
        quality = [run["pseudo_label_quality"] for run in runs]
        table.add_row(
            name,
            spread([100 * run["accuracy"] for run in runs]),
            spread([100 * run["worst20_percent"] for run in runs]),
            spread([float(run["imbalance_ratio"]) for run in runs], digits=2),
            "-" if None in quality else spread([100 * q for q in quality]),
            f"{mean(run['seconds'] for run in runs):.0f}",
        )
    return table


def spread(values: list[float], digits: int = 1) -> str:
    """mean ± standard deviation over seeds."""
    if any(value == float("inf") for value in values):
        return "infinite"
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> Path:
    """Accuracy of each class under each method: who gains from self-training, and who is left behind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    classes = next(iter(results.values()))[0]["classes"]
    width = 0.8 / len(results)
    for k, (name, runs) in enumerate(results.items()):
        heights = [100 * mean(run["per_class"][c] for run in runs) for c in range(len(classes))]
        places = [c + (k - (len(results) - 1) / 2) * width for c in range(len(classes))]
        overall = 100 * mean(run["accuracy"] for run in runs)
        axes.bar(places, heights, width, label=f"{name}, {overall:.1f} overall")
    axes.set_xticks(range(len(classes)), classes)
    axes.set_xlabel("class")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(f"Digits, 4 labels a class, mean of {len(next(iter(results.values())))} seeds")
    figure.legend(loc="outside lower center", ncols=len(results))
    figure.savefig(path, dpi=120)
    return path
