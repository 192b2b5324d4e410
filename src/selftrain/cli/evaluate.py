"""``selftrain evaluate``: measure a trained model on labeled images.

Knows nothing of models and metrics: it asks a run and prints the answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import Root, RunOrModel, Strict, make_reporter, open_model

Data = Annotated[
    str,
    typer.Argument(
        help="Labeled images: a folder of class folders, a folder with test/<class>/*, or a dataset; for a run trained "
        "on features, also a .npz or .npy file."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="CSV file with the columns path,label: the images of DATA to evaluate on."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print every measure as JSON.")]


def evaluate(
    context: typer.Context,
    run: RunOrModel,
    data: Data,
    labels: Labels = None,
    root: Root = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Show the accuracy of a trained model on labeled images, class by class."""
    from selftrain.cli.measures import print_measures
    from selftrain.engine import metrics

    measures = open_model(run, make_reporter(context)).evaluate(data, labels, root=root, strict=strict)
    if as_json:
        typer.echo(json.dumps(metrics.as_json(measures), indent=2, ensure_ascii=False))
    else:
        print_measures(measures, data)
