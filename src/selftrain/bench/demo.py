"""The demo: supervised training, FixMatch and DST on handwritten digits, as a table and a plot.

Knows nothing of how training works; it runs a bench and reads its results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from selftrain.bench.cells import cells_of
from selftrain.bench.cpu import DIGITS
from selftrain.bench.executors.local import LocalProcesses
from selftrain.bench.grid import run_grid
from selftrain.bench.spec import Bench, Row
from selftrain.bench.table import mean_and_deviation
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.text import plural

METHODS = {"supervised": "supervised", "FixMatch": "fixmatch", "DST(FixMatch)": "dst(fixmatch)"}
BENCH = Bench("the demo", ("digits",), tuple(Row(method, label=name) for name, method in METHODS.items()), DIGITS)

ByMethod = Mapping[str, Sequence[Mapping[str, Any]]]
"""the results of each method, one record per seed"""


def run_demo(out: Path, seeds: int, reporter: Reporter | None = None) -> None:
    """Train every method with every seed, one process per core; print the table and draw the plot."""
    console, steps = Console(), DIGITS["train.steps"]
    console.print(
        f"Handwritten digits, 4 labels per class: {len(METHODS)} methods x {plural(seeds, 'seed')}, {steps} steps "
        "per run. Each seed has its own labels, initial weights and batches."
    )
    cells = [replace(cell, settings={**cell.settings, "data.split_seed": cell.seed}) for cell in cells_of(BENCH, seeds)]
    done, failed = run_grid(cells, None, out, LocalProcesses(), reporter or Reporter())
    if failed:
        raise UserError(f"a run failed: {next(iter(failed.values()))}")
    results = {name: [done[cell] for cell in cells if cell.row.name == name] for name in METHODS}
    console.print(make_table(results))
    console.print(f"plot: {draw(results, out / 'demo.png')}, run folders: {out}{os.sep}")


def make_table(results: ByMethod) -> Table:
    table = Table()
    table.add_column("method", no_wrap=True)
    for heading in ("accuracy", "worst 20% of classes", "imbalance ratio", "correct pseudo labels", "seconds"):
        table.add_column(heading)
    for name, runs in results.items():
        quality = [run["pseudo_label_quality"] for run in runs]
        table.add_row(
            name,
            mean_and_deviation([100 * run["accuracy"] for run in runs]),
            mean_and_deviation([100 * run["worst20_percent"] for run in runs]),
            mean_and_deviation([float(run["imbalance_ratio"]) for run in runs], digits=2),
            "-" if None in quality else mean_and_deviation([100 * q for q in quality]),
            f"{mean(run['seconds'] for run in runs):.0f}",
        )
    return table


def draw(results: ByMethod, path: Path) -> Path:
    """Plot the accuracy of each class under each method: which classes gain from self-training, and which lose."""
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
    axes.set_title(f"Digits, 4 labels per class, mean of {len(next(iter(results.values())))} seeds")
    figure.legend(loc="outside lower center", ncols=len(results))
    figure.savefig(path, dpi=120)
    return path
