"""Every cell of a bench, run once: a process a core, a run folder a cell, and what is finished is never run again.

Knows nothing of tables.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selftrain.bench import Bench, Row
from selftrain.console import Reporter
from selftrain.data.hub import is_hub
from selftrain.data.shards import is_shards
from selftrain.data.sources import DATASETS, names_dataset
from selftrain.errors import UserError, nearest
from selftrain.files import read_json
from selftrain.methods import spell_method
from selftrain.run import CONFIG, RESULTS
from selftrain.training import settle, train


@dataclass(frozen=True, eq=False)
class Cell:
    row: Row
    dataset: str
    seed: int
    settings: Mapping[str, Any]
    """those of the bench and those of the row"""

    def folder(self, out: Path) -> Path:
        """A name that changes with every setting of the run, those it has by default included."""
        settings, method = settle({"method": self.row.method, **self.settings})
        key = json.dumps(asdict(settings), sort_keys=True)
        word = "-".join(re.findall(r"\w+", spell_method(method, settings.regime)))[:40]
        return out / self.dataset / f"{word}-{hashlib.sha256(key.encode()).hexdigest()[:10]}-seed{self.seed}"


def cells_of(bench: Bench, seeds: int, settings: Mapping[str, Any] | None = None) -> list[Cell]:
    def drawn(seed: int) -> dict[str, Any]:
        return {"data.split_seed": seed + 1} if bench.draws == "each" else {}

    return [
        Cell(row, dataset, seed, {**bench.settings, **drawn(seed), **row.settings, **(settings or {})})
        for row in bench.rows
        for dataset in bench.datasets
        for seed in range(seeds)
    ]


def find_data(dataset: str, root: Path | None) -> str:
    """A folder under the root, or the name of a dataset."""
    if root is not None and (root / dataset).is_dir() and not names_dataset(dataset, root):
        return str(root / dataset)
    if dataset in DATASETS or is_hub(dataset) or is_shards(dataset):
        return dataset
    where = f"in {root}" if root is not None else "(give the folder that holds it with --root)"
    raise UserError(f"dataset {dataset}: there is no such folder {where}, nor a dataset of that name."
                    f"{nearest(dataset, DATASETS)}")  # fmt: skip


def run_cell(cell: Cell, root: Path | None, out: Path, threads: int = 1) -> dict[str, Any]:
    """The results of a cell: those that are there, of a run gone on with, or of a new one."""
    folder = cell.folder(out)
    if not (folder / RESULTS).exists():
        train(
            find_data(cell.dataset, root),
            method=cell.row.method,
            seed=cell.seed,
            out=folder,
            resume=(folder / CONFIG).exists(),
            root=root,
            settings={
                "network.save_backbone": False, "data.check": "header", "train.threads": threads, **cell.settings,
            },
            quiet=True,
        )  # fmt: skip
    results: dict[str, Any] = read_json(folder / RESULTS)
    return results


def run_grid(
    cells: list[Cell], root: Path | None, out: Path, *, processes: int | None = None, reporter: Reporter | None = None
) -> tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]:
    """Results of the cells that went well, and the reason for each that did not."""
    alike: dict[Path, list[Cell]] = {}  # rows that come to the same settings are one run
    for cell in cells:
        find_data(cell.dataset, root)
        alike.setdefault(cell.folder(out), []).append(cell)  # a typo is told here, before anything runs
    done: dict[Cell, dict[str, Any]] = {}
    failed: dict[Cell, str] = {}
    waiting: list[list[Cell]] = []
    for folder, same in alike.items():
        if (folder / RESULTS).exists():
            done |= dict.fromkeys(same, read_json(folder / RESULTS))
        else:
            waiting.append(same)
    workers = max(1, min(processes or os.cpu_count() or 1, len(waiting)))
    reporter = reporter or Reporter(quiet=True)
    if not waiting:
        return done, failed
    # Cells of one dataset first fill its cache together, then share it. spawn: a forked child of a process that has
    # used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    with (
        reporter.progress("bench", len(cells), "runs", start=len(done)) as bar,
        ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with, initargs=(os.getpid(),)) as pool,
    ):
        jobs = {pool.submit(run_cell, same[0], root, out): same for same in waiting}
        for job in _finished(jobs):
            cell = jobs[job][0]
            try:
                done |= dict.fromkeys(jobs[job], job.result())
            except Exception as error:
                reason = f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
                failed |= dict.fromkeys(jobs[job], reason)
                reporter.warn(f"{cell.row.name} on {cell.dataset}, seed {cell.seed}: {reason}")
            bar.reach(len(done) + len(failed))
    return done, failed


def _end_with(parent: int) -> None:
    """A worker whose bench was killed ends, too; its run has checkpoints to go on from."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _finished(jobs: Iterable[Any]) -> Iterable[Any]:
    try:
        yield from as_completed(jobs)
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
