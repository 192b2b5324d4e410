"""Where the defaults of the frozen regime come from: accuracy under one change at a time, means over seeds.

    python benchmarks/frozen_study.py TABLE... --root DATA [--out RUNS] [--seeds 3] [--processes 2]

DATA holds the folders cifar10-mini and ucmerced. Every run is a run folder under RUNS; a finished one is not run again.
Tables: tau, preset, reversal, view, width, bottleneck, lr, steps, unit, views, fixmatch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from selftrain.console import Reporter
from selftrain.files import read_json

DATASETS = ("cifar10-mini", "ucmerced")
FIX, NO_WORST, DST = "fixmatch", "dst(fixmatch, worst=false)", "dst(fixmatch)"
Row = tuple[str, str, dict[str, Any]]  # what it is called, its method, its settings


def tau_rows() -> Iterator[Row]:
    for tau in (0.7, 0.8, 0.9, 0.95):
        for method in (FIX, NO_WORST, DST):
            key = "method.tau" if method == FIX else "method.base.tau"
            yield f"{method}, tau {tau}", method, {key: tau}


def changes(method: str, name: str, values: tuple[Any, ...], **fixed: Any) -> Iterator[Row]:
    for value in values:
        yield f"{method}, {name} = {value}", method, {name: value, **fixed}


TABLES: dict[str, list[Row]] = {
    "tau": [("supervised", "supervised", {}), *tau_rows()],
    "preset": [
        ("released", DST, {}),
        ("paper", DST, {"method.preset": "paper"}),
        ("paper, grl 0.5 / 300", DST, {"method.preset": "paper", "method.optimiser": "grl", "method.reversal": 0.5,
                                       "method.warmup": 300}),
        ("paper, cap 5", DST, {"method.preset": "paper", "method.ce_cap": 5}),
        ("linear pseudo head, no worst case", NO_WORST, {"method.pseudo_head": "linear"}),
        ("nonlinear pseudo head, no worst case", NO_WORST, {}),
    ],
    "reversal": [
        (f"hi {hi}, N {N}", DST, {"method.reversal": hi, "method.warmup": N})
        for hi, N in ((0.1, 1000), (0.1, 300), (0.3, 300), (0.5, 100), (0.5, 300), (0.5, 1000), (1.0, 300), (2.0, 300))
    ],
    "view": list(changes(DST, "method.worst_view", ("weak", "strong"))),
    "width": list(changes(DST, "method.width", (256, 512, 1024, 2048))),
    "bottleneck": [row for method in (FIX, DST) for row in changes(method, "network.bottleneck", (256, 512, 1024))],
    "lr": [row for method in (FIX, DST) for row in changes(method, "optim.lr", (0.003, 0.01, 0.03))],
    "steps": [row for method in (FIX, DST) for row in changes(method, "train.steps", (500, 1000, 2000, 4000))],
    "unit": [row for method in (FIX, DST) for row in changes(method, "network.unit_features", (True, False))],
    "views": [
        (f"{weak} weak, {strong} strong", DST, {"data.weak_views": weak, "data.strong_views": strong})
        for weak, strong in ((1, 1), (1, 2), (2, 4))
    ],
    "fixmatch": [
        (f"fixmatch, tau {tau}, lambda {lam}, lr {lr}", FIX, {"method.tau": tau, "method.lam": lam, "optim.lr": lr})
        for tau in (0.7, 0.95) for lam in (0.1, 0.3, 1.0) for lr in (0.003, 0.01)
    ],
}  # fmt: skip


def folder_of(out: Path, dataset: str, seed: int, row: Row) -> Path:
    name = hashlib.sha256(json.dumps([dataset, seed, row[1], row[2]], sort_keys=True).encode()).hexdigest()[:16]
    return out / f"{dataset}-{name}"


def run_one(root: str, dataset: str, seed: int, row: Row, out: str) -> dict[str, Any]:
    from selftrain.training import train

    folder = folder_of(Path(out), dataset, seed, row)
    if not (folder / "results.json").exists():
        train(
            Path(root) / dataset, method=row[1], regime="frozen", backbone="lite0", size=128, labels_per_class=4,
            seed=seed, out=folder, resume=(folder / "config.yaml").exists(), quiet=True,
            settings={"train.threads": 1, "network.save_backbone": False, "data.check": "header", **row[2]},
        )  # fmt: skip
    results: dict[str, Any] = read_json(folder / "results.json")
    return results


def table(name: str, root: Path, out: Path, seeds: int, pool: ProcessPoolExecutor) -> str:
    """A Markdown table: accuracy and worst fifth of the classes on each dataset."""
    rows = TABLES[name]
    cells = [(row, dataset, seed) for row in rows for dataset in DATASETS for seed in range(seeds)]
    jobs = {pool.submit(run_one, str(root), d, s, row, str(out)): (row[0], d) for row, d, s in cells}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with Reporter().progress(name, len(jobs), "runs") as bar:
        for done, job in enumerate(as_completed(jobs), start=1):
            found.setdefault(jobs[job], []).append(job.result())
            bar.reach(done)
    lines = [
        "| | " + " | ".join(f"{d} | worst fifth" for d in DATASETS) + " | mean |",
        "|---|" + "---|" * (2 * len(DATASETS) + 1),
    ]
    for label, _, _ in rows:
        words, means = [], []
        for dataset in DATASETS:
            runs = found[label, dataset]
            accuracy = [100 * run["accuracy"] for run in runs]
            means.append(mean(accuracy))
            spread = f" ± {stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
            words.append(f"{mean(accuracy):.1f}{spread} | {mean(100 * run['worst20_percent'] for run in runs):.1f}")
        lines.append(f"| {label} | " + " | ".join(words) + f" | {mean(means):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=sorted(TABLES))
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/frozen-study"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        for name in options.tables:
            print(f"### {name}\n\n{table(name, options.root, options.out, options.seeds, pool)}\n", flush=True)


if __name__ == "__main__":
    main()
