"""``selftrain predict``: label new images with a trained model.

Knows nothing of models: it checks the output file, asks a run for predictions and writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selftrain.cli.options import Engine, RunOrModel, Strict, make_reporter, open_model, report_unreadable
from selftrain.errors import UserError

if TYPE_CHECKING:
    from selftrain.console import Reporter
    from selftrain.runs.predict import Predictions

NOT_CSV = (".json", ".jsonl", ".xlsx", ".npz", ".npy", ".html")

Images = Annotated[
    str,
    typer.Argument(
        help="A folder (searched with its subfolders), a single image, tar files ('new/*.tar'), Parquet files "
        "('new/*.parquet'), a URL (s3://...) or hf:NAME; for a run trained on features, also a .npz or .npy file (see "
        "'selftrain embed')."
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="P", help="Leave images with a lower confidence as unsure."),
]
Coverage = Annotated[
    float | None,
    typer.Option(max=1, metavar="SHARE", help="Label this share of the images, the surest ones; the rest is unsure."),
]
PriorOption = Annotated[
    str | None,
    typer.Option(
        "--prior",
        metavar="FILE|estimate|uniform",
        help="Class frequencies of these images, if they differ from those of training: a CSV file with the columns "
        "class,share; estimate, from the images themselves; or uniform.",
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="CSV file to write, or .parquet; - is standard output.")]


def predict(
    context: typer.Context,
    run: RunOrModel,
    images: Images,
    output: Output = Path("predictions.csv"),
    threshold: Threshold = None,
    coverage: Coverage = None,
    prior: PriorOption = None,
    engine: Engine = "local",
    strict: Strict = False,
) -> None:
    """Label new images: write a CSV or Parquet file with path, label, confidence and one probability per class.

    Confidences are calibrated: of images with a confidence of 0.8, about 80% should be labeled correctly.

    If the run looked for images of no class, the column novelty says how little an image looks like any class, from 0
    to 1. Above 0.5, the label is unknown. The column duplicate_of names the training image that an image is nearly the
    same as.
    """
    from selftrain.files import check_writable
    from selftrain.runs.run import Run

    to_stdout = str(output) == "-"
    if not to_stdout:
        _check_name(output)
        check_writable(output)
    if threshold is not None and coverage is not None:
        raise UserError("`threshold`: conflicts with `coverage`, which was also given. Give one of them.")
    reporter = make_reporter(context)
    model = open_model(run, reporter)
    if engine == "local":
        predictions = model.predict(images, strict=strict)
    elif isinstance(model, Run):
        predictions = model.predict(images, strict=strict, engine=engine)
    else:
        raise UserError(f"`engine` {engine}: an exported model runs on this machine only.")
    if prior is not None:
        predictions = predictions.with_prior(prior)
        reporter.say(_mix(predictions))
    if threshold is not None:
        predictions = predictions.with_threshold(threshold)
    if coverage is not None:
        predictions = predictions.with_coverage(coverage)
    if to_stdout:
        _print_csv(predictions)
    else:
        predictions.save(output)
    report_unreadable(predictions.unreadable, reporter)
    left_out = f", {len(predictions.unreadable)} unreadable left out" if predictions.unreadable else ""
    reporter.say(f"{len(predictions)} {predictions.noun}s labeled{'' if to_stdout else f' in {output}'}{left_out}")
    if predictions.unsure is not None:
        unsure = int(predictions.unsure.sum())
        reporter.say(f"{unsure:,} of {len(predictions):,} {predictions.noun}s are left as unsure")
    _report_novel(predictions, reporter)
    _report_duplicates(predictions, reporter)


def _mix(predictions: Predictions) -> str:
    """Return the class frequencies that the predictions assume, the most frequent classes first."""
    from selftrain.text import listed

    assert predictions.prior is not None
    order = (-predictions.prior).argsort(kind="stable")[:3].tolist()
    named = listed([f"{100 * predictions.prior[k]:.0f}% {predictions.classes[k]}" for k in order])
    return f"class frequencies of these {predictions.noun}s: {named}"


def _check_name(output: Path) -> None:
    """Refuse a name that no table should have: a photo of that name would be overwritten."""
    from selftrain.data.images import IMAGE_SUFFIXES
    from selftrain.runs.prediction_table import SUFFIX, check_parquet

    if output.suffix.lower() == SUFFIX:
        check_parquet(output)
    if output.suffix.lower() in (*IMAGE_SUFFIXES, *NOT_CSV):
        raise UserError(
            f"`output` {output}: predictions are written as CSV or Parquet; call the file {output.stem}.csv."
        )


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


def _report_duplicates(predictions: Predictions, reporter: Reporter) -> None:
    from selftrain.text import listed, plural

    if same := predictions.duplicates:
        verb = "is" if len(same) == 1 else "are"
        reporter.say(
            f"{len(same):,} of {plural(len(predictions), predictions.noun)} {verb} nearly the same as a training image "
            f"(column duplicate_of): {listed(same)}"
        )
