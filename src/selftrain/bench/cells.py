"""A cell of a bench: one method on one dataset with one seed, in a run folder of its own.

Knows nothing of tables, nor of which process runs a cell.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from selftrain.bench.spec import Bench, Row
from selftrain.config.settings import identity, junk_folders
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.methods import spell_method
from selftrain.methods.own import allow_method_file, allowed
from selftrain.runs.layout import Results, RunLayout
from selftrain.runs.resolve import resolve
from selftrain.runs.trainer import train

ATTEMPTS = 3
"""how often a cell is tried if its process dies, or if it ends in an error that a retry might avoid"""


@dataclass(frozen=True, eq=False)
class Cell:
    row: Row
    dataset: str
    seed: int
    settings: Mapping[str, Any]
    """those of the bench, the dataset, the variant and the row"""
    variant: str = ""
    method_files: tuple[tuple[str, str], ...] = ()
    """files of code that the user has named, with their hashes; the process that runs the cell may run them"""

    def folder(self, out: Path) -> Path:
        """Return the run folder; its name changes with every setting of the run, defaults included."""
        settings, method = resolve({"method": self.row.method, **self.settings})
        key = json.dumps(identity(settings), sort_keys=True)
        word = "-".join(re.findall(r"\w+", spell_method(method, settings.regime)))[:40]
        digest = hashlib.sha256(key.encode()).hexdigest()[:10]
        return out / _folder_name(self.dataset) / f"{word}-{digest}-seed{self.seed}"

    def data(self, root: Path | None) -> str:
        """Return what to train on: the path of a folder under the root, or the name of a dataset."""
        return str(Source.below(root, self.dataset).data)

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"{self.row.name} on {self.dataset}", self.variant, f"seed {self.seed}")))


def _folder_name(dataset: str) -> str:
    """Return a dataset's name as a folder below another, even if the name is a path elsewhere."""
    if Path(dataset).is_absolute() or ".." in Path(dataset).parts:
        return f"{Path(dataset).name}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"
    return dataset


def cells_of(bench: Bench, seeds: int, settings: Mapping[str, Any] | None = None) -> list[Cell]:
    """Return every row on every dataset, in every variant, with every seed; ``settings`` apply to all of them."""
    _check_unique(bench)
    _check_settings(bench, settings or {})

    def values(row: Row, dataset: str, variant: Mapping[str, Any], seed: int) -> dict[str, Any]:
        drawn = {"data.split_seed": seed + 1} if bench.draws == "each" else {}
        of_dataset = bench.by_dataset.get(dataset, {})
        return {**bench.settings, **of_dataset, **variant, **drawn, **row.settings, **(settings or {})}

    return [
        Cell(row, dataset, seed, values(row, dataset, variant.settings, seed), variant.name, allowed())
        for row in bench.rows
        for variant in bench.variants
        for dataset in bench.datasets
        for seed in range(seeds)
    ]


def _check_unique(bench: Bench) -> None:
    for what, names in (("rows", [row.name for row in bench.rows]), ("datasets", bench.datasets)):
        if twice := next((name for name in names if list(names).count(name) > 1), None):
            raise UserError(f"bench: two of its {what} are called {twice!r}; give each row a label of its own.")


def _check_settings(bench: Bench, settings: Mapping[str, Any]) -> None:
    shared = [bench.settings, *bench.by_dataset.values(), *(variant.settings for variant in bench.variants), settings]
    for name in ("seed", "method", "data.path"):
        if any(name in some for some in (*shared, *(row.settings for row in bench.rows))):
            raise UserError(f"bench: {name} cannot be set; a bench runs over its rows, its datasets and `seeds`.")


def settings_of(cell: Cell, root: Path | None) -> dict[str, Any]:
    """Return the cell's settings with ``{root}`` replaced, as in ``{root}/weights.pth``."""
    found = dict(cell.settings)
    for name, value in cell.settings.items():
        if isinstance(value, str) and "{root}" in value:
            if root is None:
                raise UserError(f"{cell}: {name}={value} is a file under `root`; pass that folder.")
            found[name] = value.replace("{root}", str(root))
            for path in junk_folders(found[name]) if name == "data.junk_from" else [found[name]]:
                if not Path(path).exists():
                    raise UserError(f"{cell}: {name}={path}: the file does not exist; put it there.")
    return found


def run_cell(cell: Cell, root: Path | None, out: Path, threads: int = 1) -> Results:
    """Return the results of a cell; train only if it is not finished, resuming a run that was stopped."""
    for path, digest in cell.method_files:
        allow_method_file(path, digest)
    run = RunLayout(cell.folder(out))
    if not run.finished:
        locks = out / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        # Two benches with the same folder wait for each other's cells; the lock of a dead process is free at once.
        with FileLock(locks / f"{cell.dataset.replace('/', '-')}-{run.folder.name}"):
            if not run.finished:
                _train(cell, root, run, threads)
    return run.read_results()


def _train(cell: Cell, root: Path | None, run: RunLayout, threads: int) -> None:
    if not run.exists:
        for part in run.folder.glob(".*.part"):  # left by a process that was killed at the very start
            part.unlink(missing_ok=True)
    train(
        cell.data(root),
        method=cell.row.method,
        seed=cell.seed,
        out=run.folder,
        resume=run.exists,
        root=root,
        settings={
            "network.save_backbone": False, "data.check": "header", "train.threads": threads, **settings_of(cell, root),
        },
        quiet=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: results, or the reason why there are none."""

    cell: Cell
    results: Results | None
    reason: str = ""
    retry: bool = False
    """whether another attempt may succeed; an error that the user has to fix is not tried again"""


def attempt(cell: Cell, root: Path | None, out: Path) -> Outcome:
    """Run a cell and turn errors into reasons."""
    try:
        return Outcome(cell, run_cell(cell, root, out))
    except UserError as error:
        return Outcome(cell, None, str(error))
    except KeyboardInterrupt:
        return Outcome(cell, None, "stopped by a signal", retry=True)
    except Exception as error:
        return Outcome(cell, None, f"{type(error).__name__}: {error}", retry=True)
