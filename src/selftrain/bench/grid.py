"""Run all cells of a bench, each of them once: a finished cell is never run again.

Knows nothing of tables, nor of where a cell runs: an executor takes cells and yields outcomes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selftrain.bench.cells import Cell, Outcome, settings_of
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.runs.folder import check_place, make_folder
from selftrain.runs.layout import Results, RunLayout
from selftrain.runs.resolve import resolve
from selftrain.text import duration

Executor = Callable[[Sequence[Cell], Path | None, Path, Reporter], Iterator[Outcome]]
"""runs cells in any order and yields the last outcome of each; retries a cell whose process dies"""


def run_grid(
    cells: Sequence[Cell], root: Path | None, out: Path, executor: Executor, reporter: Reporter | None = None
) -> tuple[dict[Cell, Results], dict[Cell, str]]:
    """Return the results of the cells that succeeded, and the reason for each that failed."""
    reporter = reporter or Reporter(quiet=True)
    done: dict[Cell, Results] = {}
    failed: dict[Cell, str] = {}
    waiting: dict[Cell, list[Cell]] = {}
    runs = _distinct_runs(cells, root, out)
    for (run, data), same in runs.items():
        if run.finished:
            _check_data(run, data)
            done |= dict.fromkeys(same, run.read_results())
        else:
            waiting[same[0]] = same
    if not waiting:
        return done, failed
    make_folder(out)
    finished, started = len(runs) - len(waiting), time.monotonic()
    with reporter.progress("bench", len(runs), "runs", start=finished) as bar:
        for count, outcome in enumerate(executor(list(waiting), root, out, reporter), 1):
            same = waiting[outcome.cell]
            if outcome.results is not None:
                done |= dict.fromkeys(same, outcome.results)
                left = (time.monotonic() - started) / count * (len(waiting) - count)
                remaining = f"  ({duration(left)} left)" if left else ""
                reporter.say(f"{finished + count}/{len(runs)}  {outcome.cell}: {_score(outcome.results)}{remaining}")
            else:
                failed |= dict.fromkeys(same, outcome.reason)
                reporter.warn(f"{outcome.cell}: {outcome.reason}")
            bar.reach(finished + count)
    return done, failed


def _distinct_runs(cells: Sequence[Cell], root: Path | None, out: Path) -> dict[tuple[RunLayout, str], list[Cell]]:
    """Return the runs and their data, with the cells of each: equal settings are one run.

    A mistake in any cell is an error here, before anything runs.
    """
    check_place(out)
    runs: dict[tuple[RunLayout, str], list[Cell]] = {}
    for cell in cells:
        data = cell.data(root)
        settings, _ = resolve({"method": cell.row.method, **settings_of(cell, root)})
        if (settings.train.devices or 1) > 1:
            raise UserError(f"`train.devices={settings.train.devices}`: a run of a bench is one process; leave it out.")
        runs.setdefault((RunLayout(cell.folder(out)), data), []).append(cell)
    return runs


def _check_data(run: RunLayout, data: str) -> None:
    """Refuse results on another folder of images with the same name."""
    then = str(run.read_settings().get("data.path")) if run.exists else data
    if os.path.isdir(data) and os.path.isdir(then) and not os.path.samefile(data, then):
        raise UserError(f"`out`: {run.folder} has results on {then}, not on {data}. Choose another `out`.")


def _score(results: Results) -> str:
    measures: Mapping[str, Any] = results
    value = measures.get(results.get("metric") or "accuracy")
    return "not evaluated" if value is None else f"{100 * value:.1f}"
