"""Every cell of a bench, run once: a run folder a cell, and what is finished is never run again.

Knows nothing of tables, nor of where a cell is computed: an engine takes cells and gives back what became of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from selftrain.bench.catalogue import Bench, Row
from selftrain.config.resolve import read_config
from selftrain.console import Reporter
from selftrain.data.source import DATASETS, names_dataset
from selftrain.data.sources.hub import is_hub
from selftrain.data.sources.shards import is_shards
from selftrain.errors import UserError, nearest
from selftrain.files import read_json
from selftrain.methods import spell_method
from selftrain.runs.folder import check_place, make_folder
from selftrain.runs.run import CONFIG, RESULTS
from selftrain.runs.trainer import settle, train

ATTEMPTS = 3
"""how often a cell is tried whose process dies, or that ends in an error which another attempt may be spared"""


@dataclass(frozen=True, eq=False)
class Cell:
    row: Row
    dataset: str
    seed: int
    settings: Mapping[str, Any]
    """those of the bench, the dataset, the variant and the row"""
    variant: str = ""

    def folder(self, out: Path) -> Path:
        """A name that changes with every setting of the run, those it has by default included."""
        settings, method = settle({"method": self.row.method, **self.settings})
        key = json.dumps(asdict(settings), sort_keys=True)
        word = "-".join(re.findall(r"\w+", spell_method(method, settings.regime)))[:40]
        return out / _safe(self.dataset) / f"{word}-{hashlib.sha256(key.encode()).hexdigest()[:10]}-seed{self.seed}"

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"{self.row.name} on {self.dataset}", self.variant, f"seed {self.seed}")))


def _safe(dataset: str) -> str:
    """A dataset's name as a folder below another, whatever path it is."""
    if Path(dataset).is_absolute() or ".." in Path(dataset).parts:
        return f"{Path(dataset).name}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"
    return dataset


def cells_of(bench: Bench, seeds: int, settings: Mapping[str, Any] | None = None) -> list[Cell]:
    """Every row on every dataset, in every variant, with every seed; ``settings`` are those of all of them."""
    for what, names in (("rows", [row.name for row in bench.rows]), ("datasets", bench.datasets)):
        if twice := next((name for name in names if list(names).count(name) > 1), None):
            raise UserError(f"bench: two of its {what} are called {twice!r}; give a row a label of its own.")
    every = [bench.settings, *bench.by_dataset.values(), *(v.settings for v in bench.variants), settings or {}]
    for name in ("seed", "method", "data.path"):
        if any(name in some for some in (*every, *(row.settings for row in bench.rows))):
            raise UserError(f"bench: {name} cannot be set; rows, datasets and --seeds are what it runs over.")

    def values(row: Row, dataset: str, variant: Mapping[str, Any], seed: int) -> dict[str, Any]:
        drawn = {"data.split_seed": seed + 1} if bench.draws == "each" else {}
        own = bench.by_dataset.get(dataset, {})
        return {**bench.settings, **own, **variant, **drawn, **row.settings, **(settings or {})}

    return [
        Cell(row, dataset, seed, values(row, dataset, variant.settings, seed), variant.name)
        for row in bench.rows
        for variant in bench.variants
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


def settings_of(cell: Cell, root: Path | None) -> dict[str, Any]:
    """The cell's settings with files under the root where they are: ``{root}/weights.pth``."""
    found = dict(cell.settings)
    for name, value in cell.settings.items():
        if isinstance(value, str) and "{root}" in value:
            if root is None:
                raise UserError(f"{cell}: {name}={value} is a file under --root; give that folder.")
            found[name] = value.replace("{root}", str(root))
            if not Path(found[name]).exists():
                raise UserError(f"{cell}: {name}={found[name]}: there is no such file; put it there.")
    return found


def run_cell(cell: Cell, root: Path | None, out: Path, threads: int = 1) -> dict[str, Any]:
    """The results of a cell: those that are there, of a run gone on with, or of a new one."""
    folder = cell.folder(out)
    if not (folder / RESULTS).exists():
        locks = out / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        # Two benches with one --out wait for each other's cells; the lock of a dead process is free at once.
        with FileLock(locks / f"{cell.dataset.replace('/', '-')}-{folder.name}"):
            if not (folder / RESULTS).exists():
                _train(cell, root, folder, threads)
    results: dict[str, Any] = read_json(folder / RESULTS)
    return results


def _train(cell: Cell, root: Path | None, folder: Path, threads: int) -> None:
    begun = (folder / CONFIG).exists()
    if not begun:
        for part in folder.glob(".*.part"):  # of a process that was killed in its first moment
            part.unlink(missing_ok=True)
    train(
        find_data(cell.dataset, root),
        method=cell.row.method,
        seed=cell.seed,
        out=folder,
        resume=begun,
        root=root,
        settings={
            "network.save_backbone": False, "data.check": "header", "train.threads": threads, **settings_of(cell, root),
        },
        quiet=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: results, or a reason why there are none."""

    cell: Cell
    results: dict[str, Any] | None
    reason: str = ""
    again: bool = False
    """another attempt may go better; what the user has to put right is not tried again"""


def attempt(cell: Cell, root: Path | None, out: Path) -> Outcome:
    """``run_cell`` for an engine: errors become reasons."""
    try:
        return Outcome(cell, run_cell(cell, root, out))
    except UserError as error:
        return Outcome(cell, None, str(error))
    except KeyboardInterrupt:
        return Outcome(cell, None, "stopped by a signal", again=True)
    except Exception as error:
        return Outcome(cell, None, f"{type(error).__name__}: {error}", again=True)


Engine = Callable[[Sequence[Cell], Path | None, Path, Reporter], Iterator[Outcome]]
"""runs cells in any order and yields each one's last outcome; a cell whose process dies is tried again"""


def run_grid(
    cells: Sequence[Cell],
    root: Path | None,
    out: Path,
    *,
    engine: Engine | None = None,
    processes: int | None = None,
    reporter: Reporter | None = None,
) -> tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]:
    """Results of the cells that went well, and the reason for each that did not. ``processes``: of the local engine."""
    alike: dict[Path, list[Cell]] = {}  # rows that come to the same settings are one run
    check_place(out)
    for cell in cells:  # a typo is told here, before anything runs
        find_data(cell.dataset, root)
        settings, _ = settle({"method": cell.row.method, **settings_of(cell, root)})
        if (settings.train.devices or 1) > 1:
            raise UserError(f"train.devices={settings.train.devices}: a run of a bench is one process; leave it out.")
        alike.setdefault(cell.folder(out), []).append(cell)
    done: dict[Cell, dict[str, Any]] = {}
    failed: dict[Cell, str] = {}
    waiting: dict[Cell, list[Cell]] = {}
    for folder, same in alike.items():
        if (folder / RESULTS).exists():
            _check_data(folder, find_data(same[0].dataset, root))
            done |= dict.fromkeys(same, read_json(folder / RESULTS))
        else:
            waiting[same[0]] = same
    if not waiting:
        return done, failed
    make_folder(out)
    if engine is None:
        from selftrain.bench.executors.local import Local

        engine = Local(processes)
    reporter = reporter or Reporter(quiet=True)
    started, runs = time.monotonic(), 0
    with reporter.progress("bench", len(alike), "runs", start=len(alike) - len(waiting)) as bar:
        for outcome in engine(list(waiting), root, out, reporter):
            same = waiting[outcome.cell]
            runs += 1
            if outcome.results is not None:
                done |= dict.fromkeys(same, outcome.results)
                left = (time.monotonic() - started) / runs * (len(waiting) - runs)
                figure = outcome.results.get(outcome.results.get("metric") or "accuracy")
                words = "not evaluated" if figure is None else f"{100 * figure:.1f}"
                count = f"{len(alike) - len(waiting) + runs}/{len(alike)}"
                reporter.say(f"{count}  {outcome.cell}: {words}" + (f"  ({_in_words(left)} left)" if left else ""))
            else:
                failed |= dict.fromkeys(same, outcome.reason)
                reporter.warn(f"{outcome.cell}: {outcome.reason}")
            bar.reach(len(alike) - len(waiting) + runs)
    return done, failed


def _check_data(folder: Path, data: str) -> None:
    """Refuse results of a folder of images that is another one, though of the same name."""
    then = str(read_config(folder / CONFIG).get("data.path")) if (folder / CONFIG).exists() else data
    if os.path.isdir(data) and os.path.isdir(then) and not os.path.samefile(data, then):
        raise UserError(f"--out: {folder} has results on {then}, not on {data}. Choose another --out.")


def _in_words(seconds: float) -> str:
    hours, minutes = int(seconds // 3600), int(seconds % 3600 // 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {int(seconds % 60)} s"
