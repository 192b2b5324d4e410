"""The command line: words in, calls of the library out.

Knows nothing of training; it imports torch only when a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from selftrain.cli.errors import translator_of
from selftrain.cli.launch import end_with_launcher, launch
from selftrain.engine.allocator import keep_freed_memory
from selftrain.errors import UserError

app = typer.Typer(
    name="selftrain",
    help="Train an accurate image classifier from a handful of labels and a pile of unlabeled images.\n\n"
    "First steps: 'selftrain demo' needs no data; 'selftrain train photos/ --labels labels.csv' trains on yours; "
    "'selftrain predict RUN new/' labels new images.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class What(str, Enum):
    methods = "methods"
    datasets = "datasets"
    backbones = "backbones"
    settings = "settings"
    benches = "benches"
    figures = "figures"


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run folders, the table and the picture.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How often each method is trained.")] = 3,
) -> None:
    """Compare supervised, FixMatch and DST on handwritten digits, 4 labels a class.

    Needs no data and no network, and takes a few minutes on two cores. Run it again to go on where it was stopped.
    """
    from selftrain.bench.demo import run_demo

    run_demo(out, seeds)


@app.command()
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A folder of images, a dataset's name such as 'cifar10' (see 'selftrain list datasets'), 'hf:NAME' of "
            "Hugging Face, or tar files ('shards/{000..099}.tar'). Three layouts of a folder: "
            "(1) labeled/<class>/*, unlabeled/** and perhaps test/<class>/*; "
            "(2) train/<class>/*, test/<class>/* with --labels-per-class, a benchmark; "
            "(3) any tree with --labels FILE.csv.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="CSV file with the columns path,label; images without a row are unlabeled.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Folder of test images, a subfolder a class; with --labels also a CSV file path,label of images."
        ),
    ] = None,
    unlabeled: Annotated[
        str | None,
        typer.Option(help="More unlabeled images: a folder, tar files ('shards/{000..099}.tar') or hf:NAME."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="What to train, with its options in brackets: fixmatch, 'dst(fixmatch(tau=0.9), worst=false)', "
            "'dst(fixmatch, preset=paper)'. See 'selftrain list methods'.",
            show_default="dst(fixmatch)",
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="lite0, wrn-28-2, or any timm model. See 'selftrain list backbones'.")
    ] = None,
    regime: Annotated[
        str | None,
        typer.Option(
            help="frozen (minutes on a laptop: a pretrained backbone runs once, a small network learns on its "
            "features), finetune (a pretrained backbone, trained whole) or scratch (random weights). "
            "Unset: as 'selftrain list datasets' says; scratch for wrn-*; else finetune with a GPU and frozen without.",
            metavar="scratch|finetune|frozen",
        ),
    ] = None,
    labels_per_class: Annotated[
        int | None, typer.Option(min=1, help="Keep this many labels of each class and hide the others.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of initial weights, batches and augmentation.")] = None,
    size: Annotated[int | None, typer.Option(min=8, help="Side in pixels of what the network sees.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the datasets.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, e.g. --set optim.lr=0.01 --set method.base.tau=0.9. "
            "See 'selftrain list settings'.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/<data>-<method>-seed<n>")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; it ends as if never stopped.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="The config.yaml of an earlier run, to repeat it.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at an image that cannot be read instead of leaving it out.")
    ] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the network: starts slower, then trains somewhat faster.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Train a classifier on DATA and write a run folder.

    The folder holds config.yaml (repeats the run), split.json (which images are labeled), metrics.jsonl, results.json,
    checkpoints/, model/ and log.txt. Nothing is ever chosen on test data: the model is the last one.
    """
    from selftrain.cli.assignments import parse_assignment
    from selftrain.engine.distributed import started
    from selftrain.runs.trainer import train as run_training

    run = run_training(
        data,
        labels=labels,
        test=test,
        unlabeled=unlabeled,
        method=method,
        backbone=backbone,
        regime=regime,
        labels_per_class=labels_per_class,
        steps=steps,
        seed=seed,
        size=size,
        root=root,
        settings=({"train.compile": True} if compile_ else {}) | dict(parse_assignment(text) for text in set_ or []),
        config=config,
        out=out,
        resume=resume,
        strict=True if strict else None,
        quiet=quiet,
    )
    if not quiet and started().rank == 0:
        _print_measures(run.results, run.results["evaluated_on"])


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[
        str,
        typer.Argument(help="A folder, searched with its subfolders, one image, tar files ('new/*.tar') or hf:NAME."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="CSV file to write; - is standard output.")] = Path(
        "predictions.csv"
    ),
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at an image that cannot be read instead of leaving it out.")
    ] = False,
) -> None:
    """Label new images: a CSV file with path, label, confidence and a probability for each class."""
    from selftrain.console import Reporter
    from selftrain.files import cannot_write, check_writable
    from selftrain.runs.run import Run

    to_stdout = str(output) == "-"
    if not to_stdout:
        _check_table(output)
        check_writable(output)
    reporter = Reporter()
    predictions = Run(run, reporter).predict(images, strict=strict)
    if to_stdout:
        try:
            with open(1, "w", newline="", encoding="utf-8", errors="surrogateescape", closefd=False) as file:
                predictions.write(file)
        except BrokenPipeError:
            raise
        except OSError as why:
            raise cannot_write(Path("standard output"), why) from None
    else:
        predictions.save(output)
    for error in predictions.unreadable[:20]:
        reporter.warn(f"left out {error}")
    if len(predictions.unreadable) > 20:
        reporter.warn(f"and {len(predictions.unreadable) - 20} more")
    left_out = f", {len(predictions.unreadable)} that cannot be read left out" if predictions.unreadable else ""
    reporter.say(f"{len(predictions)} images labeled{'' if to_stdout else f' in {output}'}{left_out}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str, typer.Argument(help="Labeled images: a folder of class folders, one with test/<class>/*, or a dataset.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV file path,label: which images of the folder DATA to evaluate on, and what they show."),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the datasets.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every measure as JSON.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at an image that cannot be read instead of leaving it out.")
    ] = False,
) -> None:
    """Accuracy of a trained model on labeled images, class by class."""
    from selftrain.console import Reporter
    from selftrain.engine import metrics
    from selftrain.runs.run import Run

    measures = Run(run, Reporter()).evaluate(data, labels, root=root, strict=strict)
    if as_json:
        typer.echo(json.dumps(metrics.as_json(measures), indent=2, ensure_ascii=False))
    else:
        _print_measures(measures, data)


@app.command()
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="One run folder, or several to put side by side.", metavar="RUN...", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File to write. With --figure: its name without .png and .svg, or a folder.",
            show_default="report.html in the run folder, or here for several runs",
        ),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="Train on the same labels alone, to tell what self-training gave and took. Done once."
        ),
    ] = False,
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Draw this figure of the paper instead, as PNG and SVG; see 'selftrain list figures'."),
    ] = None,
) -> None:
    """Show what self-training did to each class: one HTML page that needs no network.

    The page has the figures of the runs, what to do next in plain words, curves, classes that gain and lose, bias,
    confusions, calibration and pictures to look at. Without ground truth it shows what can be known without it.
    """
    from selftrain.console import Reporter

    reporter = Reporter()
    if figure:
        from selftrain.report.paper_figures import draw_figures

        for path in draw_figures(figure, runs or [], output):
            reporter.say(f"figure: {path}")
        return
    from selftrain.report import write_report

    reporter.say(f"report: {write_report(runs or [], output, reference=reference, reporter=reporter)}")


class Engine(str, Enum):
    local = "local"
    ray = "ray"


@app.command()
def bench(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Which one; see 'selftrain list benches'. Or a YAML file with a bench of your own.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="local: as many processes as there are cores, or GPUs. ray: a Ray cluster (extra 'ray'); --out must "
            "be on a path that all its machines share."
        ),
    ] = Engine.local,
    seeds: Annotated[int, typer.Option(min=1, help="How often each method is trained on each dataset.")] = 3,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Only these methods, or others: --methods fixmatch --methods 'dst(fixmatch)'."),
    ] = None,
    datasets: Annotated[
        list[str] | None, typer.Option(help="Other datasets, or folders of images under --root.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the datasets.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every run.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run folders and the table.")] = Path("runs/bench"),
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time on this machine.", show_default="cores, or GPUs")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster.", show_default="$RAY_ADDRESS, or a cluster on this machine"),
    ] = None,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(
            min=0, help="ray: GPUs of a run; 0.25 lets four runs share one.", show_default="1 if there are any"
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Instead of a bench: repeat one line of the CSV file that a bench wrote, and compare. Exit code 1 if "
            "it differs.",
        ),
    ] = None,
    row: Annotated[str | None, typer.Option(help="--verify: the line's row.", show_default="any")] = None,
    dataset: Annotated[str | None, typer.Option(help="--verify: the line's dataset.", show_default="any")] = None,
    variant: Annotated[str | None, typer.Option(help="--verify: the line's variant.", show_default="any")] = None,
    seed: Annotated[int | None, typer.Option(help="--verify: the line's seed.", show_default="any")] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="--verify: how far apart shares may be on another machine or with other versions."),
    ] = 0.02,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the table.")] = False,
) -> None:
    """Run every method of a bench on every dataset with every seed, and show the table.

    A cell that is finished is not run again: the same command goes on where it was stopped. The table is written as
    Markdown, LaTeX and CSV.
    """
    if verify is not None:
        wanted = {"row": row, "dataset": dataset, "variant": variant, "seed": None if seed is None else str(seed)}
        _verify(verify, wanted, root, tolerance)
        return
    if name is None:
        raise UserError("bench: which one? See 'selftrain list benches'.")
    from dataclasses import replace

    from selftrain.bench.catalogue import find_bench, rows_of
    from selftrain.bench.executors.local import Local
    from selftrain.bench.executors.ray import OnRay
    from selftrain.bench.grid import cells_of, run_grid
    from selftrain.bench.table import as_csv, latex, markdown
    from selftrain.cli.assignments import parse_assignment
    from selftrain.console import Reporter
    from selftrain.files import write_text

    chosen = find_bench(name)
    if methods:
        known = {row.name: row for row in chosen.rows}
        chosen = replace(chosen, rows=tuple(known.get(text) or rows_of([text])[0] for text in dict.fromkeys(methods)))
    if datasets:
        chosen = replace(chosen, datasets=tuple(dict.fromkeys(datasets)))
    cells = cells_of(chosen, seeds, dict(parse_assignment(text) for text in set_ or []))
    reporter = Reporter(quiet)
    where = OnRay(ray_address, gpus_per_run, processes) if engine is Engine.ray else Local(processes)
    with _terminated_as_by_ctrl_c():
        done, failed = run_grid(cells, root.resolve() if root else None, out, engine=where, reporter=reporter)
    table = markdown(chosen, done)
    stem = Path(name).stem if Path(name).suffix in (".yaml", ".yml") else name.replace("/", "-")
    write_text(out / f"{stem}.md", table + "\n")
    write_text(out / f"{stem}.tex", latex(chosen, done))
    write_text(out / f"{stem}.csv", as_csv(done))
    typer.echo(table)
    reporter.say(f"table: {out / stem}.md, .tex and .csv")
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} runs failed, the first: {next(iter(failed.values()))}")


@app.command()
def sweep(
    data: Annotated[str, typer.Argument(help="A folder of images, or a dataset's name, as for 'selftrain train'.")],
    method: Annotated[str, typer.Option(help="What to train; see 'selftrain list methods'.")] = "dst(fixmatch)",
    trials: Annotated[int, typer.Option(min=1, help="Settings to try, by all processes together.")] = 20,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database of the study, e.g. sqlite:///study.db or postgresql://...; processes and machines that are "
            "given the same one share the work.",
            show_default="an SQLite file in --out",
        ),
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in its database.")] = "selftrain",
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Search this instead of the paper's grid: 'method.tau=0.7,0.8,0.9' or 'optim.lr=0.001..0.03 log'.",
        ),
    ] = None,
    space: Annotated[Path | None, typer.Option(help="YAML file with what to search.", metavar="FILE.yaml")] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Cut the labels of each class into so many parts, and hold each of them out once.",
            show_default="2, unless data.validation_per_class is set",
        ),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="CSV file with the columns path,label.")] = None,
    labels_per_class: Annotated[
        int | None, typer.Option(min=1, help="Keep this many labels of each class and hide the others.")
    ] = None,
    regime: Annotated[str | None, typer.Option(help="As for train.", metavar="scratch|finetune|frozen")] = None,
    backbone: Annotated[str | None, typer.Option(help="As for train.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps of a run.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the datasets.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every trial.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run folders, best.yaml and the trials.")] = Path(
        "runs/sweep"
    ),
    prune: Annotated[bool, typer.Option(help="End a trial early that does worse than half of the others.")] = True,
    grace: Annotated[
        int,
        typer.Option(min=2, help="Seconds of silence after which a process counts as dead and its trial is retried."),
    ] = 60,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the best settings.")] = False,
) -> None:
    """Search for good settings, measured on held-out labels and never on the test set.

    The same command goes on where it was stopped, and may be started several times, on several machines. It writes
    best.yaml ('selftrain train --config best.yaml'), trials.csv and trials.md.
    """
    from selftrain.cli.assignments import parse_assignment
    from selftrain.console import Reporter
    from selftrain.runs.trainer import absolute_path, data_path
    from selftrain.sweep.search import Sweep
    from selftrain.sweep.space import parse_search, read_space

    given: dict[str, Any] = {
        "data.path": data_path(data, labels),
        "data.labels": absolute_path(labels),
        "data.root": absolute_path(root),
        "data.labels_per_class": labels_per_class,
        "network.backbone": backbone,
        "method": method,
        "regime": regime,
        "train.steps": steps,
    }
    given = {key: value for key, value in given.items() if value is not None}
    given |= dict(parse_assignment(text) for text in set_ or [])
    result = Sweep(
        given,
        out,
        {**(read_space(space) if space else {}), **parse_search(search or [])},
        trials,
        folds or (0 if "data.validation_per_class" in given else 2),
        storage,
        study,
        prune,
        grace,
    ).run(Reporter(quiet))
    if not quiet:
        typer.echo(result.markdown())
    best = "  ".join(f"{key}={value}" for key, value in result.best.items())
    typer.echo(f"best: trial {result.number} with {100 * result.value:.1f} on held-out labels: {best}")
    typer.echo(f"train with it: selftrain train --config {out / 'best.yaml'} --out RUN")


def _verify(file: Path, wanted: dict[str, str | None], root: Path | None, tolerance: float) -> None:
    from selftrain.bench.verify import choose, read_lines, verify

    verdict = verify(choose(read_lines(file), wanted), root.resolve() if root else None, tolerance)
    typer.echo(str(verdict))
    if not verdict.good:
        raise typer.Exit(1)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete caches instead of listing them.")] = False,
    name: Annotated[str | None, typer.Argument(help="Only caches whose name starts so.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where they are.", show_default="$SELFTRAIN_CACHE")] = None,
) -> None:
    """List the cached features of the frozen regime, or delete them.

    Caches are shared by runs, methods and seeds. They can be deleted at any time: they are made again when needed.
    """
    from rich.table import Table

    from selftrain.data.features.store import cache_root, clear_caches, list_caches

    root = cache_root(str(folder) if folder else None) / "features"
    console = Console()
    if clear:
        gone, left = clear_caches(root, name)
        freed = sum(info.bytes for info in gone) / 1e6
        console.print(f"deleted {len(gone)} caches, {freed:.1f} MB, from {root}", soft_wrap=True)
        for info in left:
            console.print(f"left alone, being in use or read-only: {info.folder}", soft_wrap=True)
        return
    table = Table("name", "backbone", "pixels", "images", "views", "MB", "done", "used, days ago")
    for info in list_caches(root):
        if name is None or info.folder.name.startswith(name):
            about = info.about
            table.add_row(
                info.folder.name,
                str(about.get("backbone", "damaged")),
                str(about.get("preprocessing", {}).get("size", "-")),
                *map(str, about.get("shape", "--")[:2]),
                f"{info.bytes / 1e6:.1f}",
                f"{100 * info.done:.0f}%",
                f"{info.days:.1f}",
            )
    table.caption = str(root)
    console.print(table)


@app.command("list")
def list_(
    what: Annotated[What, typer.Argument(help="What to list.")],
    pattern: Annotated[str | None, typer.Argument(help="Only names like this: 'dst', 'resnet*', 'optim.*'.")] = None,
) -> None:
    """List methods (with every option), datasets, backbones, benches, figures, or settings."""
    from selftrain.cli import listing

    console = Console()
    for table in listing.tables(what.value, pattern):
        console.print(table)


def _print_measures(measures: dict[str, Any], where: str | None) -> None:
    from rich.table import Table

    from selftrain.console import LastingConsole

    console = LastingConsole()
    if measures["accuracy"] is None:
        console.print("Not evaluated: there is no test set (--test DIR) and no held-out label.")
        return
    table = Table(title=f"on {escape(str(where))}", show_header=False)
    ratio = float(measures["imbalance_ratio"])
    for name, value in (
        ("accuracy", f"{100 * measures['accuracy']:.2f}"),
        ("mean per class", f"{100 * measures['mean_per_class']:.2f}"),
        ("worst fifth of the classes", f"{100 * measures['worst20_percent']:.2f}"),
        (
            "imbalance ratio of predictions",
            "infinite: a class is never predicted" if ratio == float("inf") else f"{ratio:.2f}",
        ),
    ):
        table.add_row(name, value)
    console.print(table)
    names = measures.get("classes")
    if names:
        per_class = Table("class", "accuracy")
        known = sorted(zip(names, measures["per_class"], strict=True), key=lambda pair: (pair[1] is None, pair[1] or 0))
        for name, value in known:
            per_class.add_row(escape(name), "-" if value is None else f"{100 * value:.1f}")
        console.print(per_class)


def main() -> None:
    """Run the command line; errors that the user can put right take one line and exit code 2."""
    end_with_launcher()
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        if devices := getattr(error, "devices", None):  # a run wants more processes than this one
            sys.exit(launch(devices, sys.argv[1:]))
        text = translator_of(_command(sys.argv[1:]))(str(error))
        Console(stderr=True).print(f"[red]error:[/red] {_escaped(text)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:  # torch raises the latter
        if isinstance(error, RuntimeError) and not re.search("allocate memory|out of memory", str(error)):
            raise
        why = f" ({_escaped(str(error))[:200]})" if str(error) else ""
        hint = "Smaller batches need less: --set train.batch=N and train.unlabeled_batch=N."
        Console(stderr=True).print(f"[red]error:[/red] not enough memory{why}. {hint}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _command(words: list[str]) -> Any:
    """Return the command that the words ask for, or nothing."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    return commands.get(words[0]) if words else None


@contextmanager
def _terminated_as_by_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM (a batch system at its time limit) is as good as Ctrl-C: runs under way save their state."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_table(output: Path) -> None:
    """Refuse what a CSV file is not to be called: a photo of that name would be gone."""
    from selftrain.data.images import IMAGE_SUFFIXES

    suffix = output.suffix.lower()
    if suffix in (*IMAGE_SUFFIXES, ".json", ".jsonl", ".parquet", ".xlsx", ".npz", ".npy", ".html"):
        raise UserError(f"--output {output}: predictions are written as CSV; call the file {output.stem}.csv.")


def _escaped(text: str) -> str:
    return escape(" ".join(text.encode("utf-8", "replace").decode().split()))


if __name__ == "__main__":
    main()
