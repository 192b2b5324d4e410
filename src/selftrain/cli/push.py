"""``selftrain push``: upload a trained model to the Hugging Face Hub.

Knows nothing of the hub: it turns options into the arguments of one call.
"""

from __future__ import annotations

from typing import Annotated

import typer

from selftrain.cli.options import RunFolder, make_reporter

Repository = Annotated[str, typer.Argument(help="USER/NAME on the Hugging Face Hub; it is created if needed.")]
Private = Annotated[bool, typer.Option("--private", help="Make a new repository private.")]


def push(context: typer.Context, run: RunFolder, repository: Repository, private: Private = False) -> None:
    """Upload the trained model and its card to the Hugging Face Hub.

    Only model.json, safetensors files and README.md are uploaded: no images, no labels and no code. Log in first with
    'hf auth login'. Anybody who may read it can then use it: selftrain predict hf:USER/NAME IMAGES
    """
    from selftrain.export.hub import push as upload

    upload(run, repository, private=private, reporter=make_reporter(context))
