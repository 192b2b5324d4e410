"""The results of a bench as a table: Markdown to read, CSV to work with.

Knows nothing of how the results came about.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

from selftrain.bench import Bench
from selftrain.bench.grid import Cell

Runs = Mapping[Cell, Mapping[str, Any]]


def spread(values: list[float], digits: int = 1) -> str:
    """mean ± standard deviation."""
    if float("inf") in values:
        return "infinite"
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def _percent(runs: Runs, name: str, dataset: str, measure: str) -> list[float]:
    found = [
        run[measure]
        for cell, run in runs.items()
        if (cell.row.name, cell.dataset) == (name, dataset) and run.get(measure) is not None
    ]
    return [100 * float(value) for value in found]


def markdown(bench: Bench, runs: Runs) -> str:
    """Accuracy and that of the worst fifth of the classes on each dataset, and the mean accuracy over datasets."""
    columns = [column for dataset in bench.datasets for column in (dataset, "worst fifth")]
    lines = ["| | " + " | ".join([*columns, "mean"]) + " |", "|---" * (len(columns) + 2) + "|"]
    for name in dict.fromkeys(row.name for row in bench.rows):
        words, means = [], []
        for dataset in bench.datasets:
            accuracy = _percent(runs, name, dataset, "accuracy")
            worst = _percent(runs, name, dataset, "worst20_percent")
            words += [spread(accuracy) if accuracy else "-", f"{mean(worst):.1f}" if worst else "-"]
            means += [mean(accuracy)] if accuracy else []
        whole = f"{mean(means):.1f}" if len(means) == len(bench.datasets) else "-"
        lines.append(f"| {name} | " + " | ".join(words) + f" | {whole} |")
    return "\n".join(lines)


def as_csv(runs: Runs) -> str:
    """A line a run."""
    measures = ("accuracy", "mean_per_class", "worst20_percent", "imbalance_ratio", "pseudo_label_quantity",
                "pseudo_label_quality", "seconds", "steps", "split_hash", "selftrain", "torch")  # fmt: skip
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", "method", "dataset", "seed", "evaluated_on", *measures])
    for cell, run in sorted(runs.items(), key=lambda pair: (pair[0].row.name, pair[0].dataset, pair[0].seed)):
        head = [cell.row.name, run["method"], cell.dataset, cell.seed, run["evaluated_on"]]
        writer.writerow([*head, *(run.get(measure) for measure in measures)])
    return file.getvalue()
