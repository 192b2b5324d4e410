"""Which runs belong to a figure: those of its bench, recognised by their settings.

Knows nothing of drawing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from selftrain.bench.catalogue import BENCHES
from selftrain.bench.spec import Bench, Row
from selftrain.config.options import flatten
from selftrain.config.settings import changes_results
from selftrain.errors import UserError
from selftrain.report.paper_figures.catalogue import PaperFigure, bench_command
from selftrain.report.run_data import RunData
from selftrain.runs.layout import RunLayout
from selftrain.runs.resolve import resolve


def find_run_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the given run folders, and the runs inside the other given folders."""
    found: list[Path] = []
    for folder in folders:
        if RunLayout(folder).exists:
            found.append(folder)
            continue
        inside = _runs_inside(folder)
        if not inside:
            reason = "it contains no runs" if folder.is_dir() else "the folder does not exist"
            raise UserError(f"{folder}: neither a run folder nor a folder of runs ({reason}).")
        found += sorted(inside)
    return list(dict.fromkeys(found))


def _runs_inside(folder: Path) -> list[Path]:
    """Return the runs that have been evaluated; runs inside a run, such as its reference, belong to it."""
    found = []
    for path, below, _ in os.walk(folder):
        layout = RunLayout(Path(path))
        if layout.exists:
            below.clear()
            if layout.metrics.exists() and layout.metrics.stat().st_size:
                found.append(layout.folder)
    return found


def pick(name: str, figure: PaperFigure, runs: Sequence[RunData]) -> dict[str, dict[str, list[RunData]]]:
    """Return the runs of a figure by dataset and row of its bench.

    The runs of the bench itself agree with a row in all settings that change results. If there are none (with other
    data, or another backbone), take the runs that agree in their method and in the settings that the row is about.
    """
    bench = BENCHES[f"figure/{name}"]
    usable = [run for run in runs if any(row.get(figure.needs) is not None for row in run.rows)]
    for agree in (_in_all_settings, _in_the_rows_settings):
        groups: dict[str, dict[str, list[RunData]]] = {}
        for row in bench.rows:
            for run in agree(bench, row, usable):
                groups.setdefault(run.dataset, {}).setdefault(row.name, []).append(run)
        if groups:
            return groups
    rows = ", ".join(row.name for row in bench.rows)
    raise UserError(
        f"None of the {len(runs)} runs fits the figure {name!r}: it shows {rows}, and needs {figure.needs!r} in "
        f"metrics.jsonl. Make its runs with: {bench_command(name)}"
    )


def _in_all_settings(bench: Bench, row: Row, runs: Sequence[RunData]) -> list[RunData]:
    wanted = _resolved({"method": row.method, **bench.settings, **row.settings})
    fixed = {key: value for key, value in wanted.items() if key != "seed" and changes_results(key)}
    return [
        run
        for run in runs
        if run.dataset in bench.datasets and all(run.settings.get(key, value) == value for key, value in fixed.items())
    ]


def _in_the_rows_settings(bench: Bench, row: Row, runs: Sequence[RunData]) -> list[RunData]:
    options = {key: value for key, value in row.settings.items() if key.startswith("method.")}
    others = {key: value for key, value in row.settings.items() if key not in options}
    regimes = {run.settings["regime"] for run in runs}
    methods = {regime: _resolved({"method": row.method, "regime": regime, **options})["method"] for regime in regimes}
    return [
        run
        for run in runs
        if run.settings.get("method") == methods[run.settings["regime"]]
        and all(run.settings.get(key) == value for key, value in others.items())
    ]


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a run that is started with these values."""
    return flatten(asdict(resolve(values)[0]))
