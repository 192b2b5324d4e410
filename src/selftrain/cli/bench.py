"""``selftrain bench``: run a table of methods, datasets and seeds, or repeat one line of it.

Knows nothing of how a run is computed; it chooses cells and an executor, and writes the table.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selftrain.cli.options import MethodFiles, Quiet, Root, Settings, make_reporter, settings_from
from selftrain.errors import UserError

if TYPE_CHECKING:
    from selftrain.bench.cells import Cell
    from selftrain.bench.grid import Executor
    from selftrain.bench.spec import Bench
    from selftrain.console import Reporter
    from selftrain.runs.layout import Results


class Engine(str, Enum):
    """Where runs are computed."""

    local = "local"
    ray = "ray"


Name = Annotated[
    str | None,
    typer.Argument(help="A bench of 'selftrain list benches', or a YAML file with a bench.", show_default=False),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        help="local: as many processes as there are cores, or GPUs. ray: a Ray cluster (extra 'ray'); --out must "
        "be on a path that all its machines share."
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of runs per method and dataset.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(help="Run these methods instead: --methods fixmatch --methods 'dst(fixmatch)'."),
]
Datasets = Annotated[
    list[str] | None, typer.Option(help="Run on these datasets, or image folders under --root, instead.")
]
Out = Annotated[Path, typer.Option(help="Folder for the run folders and the table.")]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Number of runs at a time on this machine.", show_default="cores, or GPUs")
]
RayAddress = Annotated[
    str | None,
    typer.Option(help="Address of a Ray cluster.", show_default="$RAY_ADDRESS, or a cluster on this machine"),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(min=0, help="ray: GPUs per run; 0.25 lets four runs share one.", show_default="1 if there are any"),
]
Verify = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Instead of running a bench, repeat one line of the CSV file that a bench wrote, and compare. "
        "Exit code 1 if it differs.",
    ),
]
LineRow = Annotated[str | None, typer.Option(help="--verify: row of the line.", show_default="any")]
LineDataset = Annotated[str | None, typer.Option(help="--verify: dataset of the line.", show_default="any")]
LineVariant = Annotated[str | None, typer.Option(help="--verify: variant of the line.", show_default="any")]
LineSeed = Annotated[int | None, typer.Option(help="--verify: seed of the line.", show_default="any")]
Tolerance = Annotated[
    float,
    typer.Option(min=0, help="--verify: largest difference between shares on another machine or with other versions."),
]

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Train nothing: print every run with its settings, and estimate memory and hours."),
]
TeraFlops = Annotated[
    float, typer.Option(min=0.001, help="--dry-run: operations per second that a GPU sustains, in units of 10^12.")
]
Smoke = Annotated[
    bool,
    typer.Option(
        "--smoke",
        help="Take 20 steps of every run on this CPU, with noise for images and small networks, to see that all of "
        "them work. Keeps nothing.",
    ),
]
Publish = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Instead of running a bench, write one page of results per question to DIR, from all finished benches in "
        "--out.",
    ),
]


def bench(
    context: typer.Context,
    name: Name = None,
    engine: EngineOption = Engine.local,
    seeds: Seeds = 3,
    methods: Methods = None,
    datasets: Datasets = None,
    root: Root = None,
    set_: Settings = None,
    out: Out = Path("runs/bench"),
    processes: Processes = None,
    ray_address: RayAddress = None,
    gpus_per_run: GpusPerRun = None,
    verify: Verify = None,
    row: LineRow = None,
    dataset: LineDataset = None,
    variant: LineVariant = None,
    seed: LineSeed = None,
    tolerance: Tolerance = 0.02,
    method_file: MethodFiles = None,
    dry_run: DryRun = False,
    tflops: TeraFlops = 20.0,
    smoke: Smoke = False,
    publish: Publish = None,
    quiet: Quiet = False,
) -> None:
    """Run every method of a bench on every dataset with every seed, and show the table.

    A finished run is not repeated: the same command resumes where it was stopped. The table is written as Markdown,
    LaTeX and CSV.
    """
    root = root.resolve() if root else None
    if verify is not None:
        wanted = {"row": row, "dataset": dataset, "variant": variant, "seed": None if seed is None else str(seed)}
        _verify(verify, wanted, root, tolerance)
        return
    if publish is not None:
        _publish(publish, out)
        return
    if name is None:
        raise UserError("bench: which one? See 'selftrain list benches'.")
    from selftrain.bench.cells import cells_of
    from selftrain.bench.grid import run_grid
    from selftrain.methods import allow_method_file

    for file in method_file or []:
        allow_method_file(file)
    chosen = _choose(name, methods, datasets)
    cells = cells_of(chosen, seeds, settings_from(set_))
    reporter = make_reporter(context, quiet)
    if dry_run:
        _describe(cells, tflops)
        return
    if smoke:
        _smoke([cell for cell in cells if cell.seed == 0], reporter)
        return
    executor = _executor(engine, processes, ray_address, gpus_per_run)
    with _sigterm_like_ctrl_c():
        done, failed = run_grid(cells, root, out, executor, reporter)
    reporter.say(f"table: {_write_tables(chosen, done, out, name)}.md, .tex and .csv")
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} runs failed, the first: {next(iter(failed.values()))}")


def _describe(cells: list[Cell], tflops: float) -> None:
    from selftrain.bench.dry_run import describe

    typer.echo(describe(cells, tflops))


def _smoke(cells: list[Cell], reporter: Reporter) -> None:
    from selftrain.bench.smoke import STEPS, smoke

    done, failed = smoke(cells, reporter)
    typer.echo(f"{done} of {len(cells)} runs took {STEPS} steps per round on stand-ins")
    if failed:
        cell, reason = next(iter(failed.items()))
        raise UserError(f"{len(failed)} of {len(cells)} runs failed, the first: {cell}: {reason}")


def _publish(folder: Path, out: Path) -> None:
    from selftrain.bench.publish import publish

    pages, missing = publish(folder, out)
    for page in pages:
        typer.echo(f"page: {page}")
    if missing:
        typer.echo(f"not finished in {out}, and left out: {', '.join(missing)}")


def _choose(name: str, methods: list[str] | None, datasets: list[str] | None) -> Bench:
    """Return a bench with other methods or datasets where the user names some."""
    from selftrain.bench.catalogue import find_bench
    from selftrain.bench.spec import Row
    from selftrain.methods import name_files

    chosen = find_bench(name)
    if methods:
        known = {row.name: row for row in chosen.rows}
        rows = (known.get(text) or Row(name_files(text)) for text in dict.fromkeys(methods))
        chosen = replace(chosen, rows=tuple(rows))
    if datasets:
        chosen = replace(chosen, datasets=tuple(dict.fromkeys(datasets)))
    return chosen


def _executor(engine: Engine, processes: int | None, ray_address: str | None, gpus_per_run: float | None) -> Executor:
    from selftrain.bench.executors.local import LocalProcesses
    from selftrain.bench.executors.ray import RayCluster

    if engine is Engine.ray:
        return RayCluster(ray_address, gpus_per_run, processes)
    return LocalProcesses(processes)


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """Inside, treat SIGTERM (a batch system at its time limit) like Ctrl-C, so that runs save their state."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write_tables(chosen: Bench, done: Mapping[Cell, Results], out: Path, name: str) -> Path:
    """Print the table, write it in three formats, and return the files' common path without suffix."""
    from selftrain.bench.catalogue import YAML_SUFFIXES
    from selftrain.bench.table import as_csv, latex, markdown
    from selftrain.files import write_text

    table = markdown(chosen, done)
    stem = Path(name).stem if Path(name).suffix in YAML_SUFFIXES else name.replace("/", "-")
    write_text(out / f"{stem}.md", table + "\n")
    write_text(out / f"{stem}.tex", latex(chosen, done))
    write_text(out / f"{stem}.csv", as_csv(done))
    typer.echo(table)
    return out / stem


def _verify(file: Path, wanted: dict[str, str | None], root: Path | None, tolerance: float) -> None:
    from selftrain.bench.verify import choose, read_lines, verify

    verdict = verify(choose(read_lines(file), wanted), root, tolerance)
    typer.echo(str(verdict))
    if not verdict.good:
        raise typer.Exit(1)
