"""The main job in miniature: supervised, FixMatch and DST on handwritten digits, a table and a picture.

Knows nothing of how training works; it makes run folders with ``selftrain.train`` and reads them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from selftrain.bench.catalogue import DIGITS, Bench, Row
from selftrain.bench.grid import cells_of, run_grid
from selftrain.bench.table import spread
from selftrain.console import Reporter
from selftrain.errors import UserError

METHODS = {"supervised": "supervised", "FixMatch": "fixmatch", "DST(FixMatch)": "dst(fixmatch)"}
BENCH = Bench("the demo", ("digits",), tuple(Row(method, label=name) for name, method in METHODS.items()), DIGITS)


def run_demo(out: Path, seeds: int) -> None:
    """Train every method with every seed, a process a core; print the table, draw the picture."""
    console = Console()
    console.print(
        f"Handwritten digits, 4 labels a class, {len(METHODS)} methods x {seeds} seeds, {DIGITS['train.steps']} steps "
        f"each. A seed draws the labels, the initial weights and the batches."
    )
    cells = [replace(cell, settings={**cell.settings, "data.split_seed": cell.seed}) for cell in cells_of(BENCH, seeds)]
    done, failed = run_grid(cells, None, out, reporter=Reporter())
    if failed:
        raise UserError(f"a run failed: {next(iter(failed.values()))}")
    results = {name: [done[cell] for cell in cells if cell.row.name == name] for name in METHODS}
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
