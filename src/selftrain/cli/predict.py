"""``selftrain predict``: label new images with a trained model.

Knows nothing of models: it checks the output file, asks a run for predictions and writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selftrain.cli.options import RunFolder, Strict, make_reporter, report_unreadable
from selftrain.errors import UserError

if TYPE_CHECKING:
    from selftrain.console import Reporter
    from selftrain.runs.predict import Predictions

NOT_CSV = (".json", ".jsonl", ".parquet", ".xlsx", ".npz", ".npy", ".html")

Images = Annotated[
    str,
    typer.Argument(
        help="A folder (searched with its subfolders), a single image, tar files ('new/*.tar') or hf:NAME; for a run "
        "trained on features, also a .npz or .npy file (see 'selftrain embed')."
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="CSV file to write; - is standard output.")]


def predict(
    context: typer.Context,
    run: RunFolder,
    images: Images,
    output: Output = Path("predictions.csv"),
    strict: Strict = False,
) -> None:
    """Label new images: write a CSV file with path, label, confidence and one probability per class.

    If the run looked for images of no class, the column novelty says how little an image looks like any class, from 0
    to 1. Check images above 0.5 before you trust their labels.
    """
    from selftrain.files import check_writable
    from selftrain.runs.run import Run

    to_stdout = str(output) == "-"
    if not to_stdout:
        _check_name(output)
        check_writable(output)
    reporter = make_reporter(context)
    predictions = Run(run, reporter).predict(images, strict=strict)
    if to_stdout:
        _print_csv(predictions)
    else:
        predictions.save(output)
    report_unreadable(predictions.unreadable, reporter)
    left_out = f", {len(predictions.unreadable)} unreadable left out" if predictions.unreadable else ""
    reporter.say(f"{len(predictions)} {predictions.noun}s labeled{'' if to_stdout else f' in {output}'}{left_out}")
    _report_novel(predictions, reporter)


def _check_name(output: Path) -> None:
    """Refuse a name that no CSV file should have: a photo of that name would be overwritten."""
    from selftrain.data.images import IMAGE_SUFFIXES

    if output.suffix.lower() in (*IMAGE_SUFFIXES, *NOT_CSV):
        raise UserError(f"`output` {output}: predictions are written as CSV; call the file {output.stem}.csv.")


def _print_csv(predictions: Predictions) -> None:
    from selftrain.files import cannot_write

    try:
        with open(1, "w", newline="", encoding="utf-8", errors="surrogateescape", closefd=False) as file:
            predictions.write(file)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(Path("standard output"), error) from None


def _report_novel(predictions: Predictions, reporter: Reporter) -> None:
    from selftrain.text import listed, plural

    if novel := predictions.novel:
        look = "looks" if len(novel) == 1 else "look"
        reporter.say(
            f"{len(novel):,} of {plural(len(predictions), predictions.noun)} {look} like none of the classes "
            f"(column novelty > 0.5): {listed(novel)}"
        )
