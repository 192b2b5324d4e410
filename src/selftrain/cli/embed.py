"""``selftrain embed``: the features of images in a file, for 'selftrain train' and for other tools.

Knows nothing of backbones: it turns options into the arguments of one call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import (
    Backbone,
    Engine,
    Quality,
    Quiet,
    Settings,
    Size,
    Strict,
    make_reporter,
    report_unreadable,
    settings_from,
)

Images = Annotated[
    str,
    typer.Argument(
        help="A folder (searched with its subfolders), a single image, tar files ('new/*.tar'), Parquet "
        "files ('new/*.parquet'), a URL (s3://...) or hf:NAME."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="FILE.npz, or a folder: features.npy in it can be memory-mapped, so it may be larger than memory.",
    ),
]
Weak = Annotated[
    int,
    typer.Option(
        min=0, max=64, help="Weak views (crop, mirror) stored per image, after the clean one; needs --strong."
    ),
]
Strong = Annotated[
    int,
    typer.Option(
        min=0,
        max=64,
        help="Strong views (RandAugment) stored per image. Without them, training makes strong views out of the "
        "features.",
    ),
]
Dtype = Annotated[str, typer.Option(help="Number format; float16 takes half the space.", metavar="float32|float16")]


def embed(
    context: typer.Context,
    images: Images,
    output: Output = Path("features.npz"),
    backbone: Backbone = None,
    quality: Quality = None,
    size: Size = None,
    weak: Weak = 0,
    strong: Strong = 0,
    dtype: Dtype = "float32",
    engine: Engine = "local",
    set_: Settings = None,
    strict: Strict = False,
    quiet: Quiet = False,
) -> None:
    """Write the features of images by a frozen backbone to a file, for 'selftrain train' and for other tools.

    A .npz file holds the arrays features (images x numbers; with --strong images x views x numbers), names (paths
    relative to IMAGES), views and card (the backbone, as JSON). Train on it with
    'selftrain train features.npz --labels labels.csv'.
    """
    from selftrain.runs.embed import embed as write_embedding
    from selftrain.text import plural

    reporter = make_reporter(context, quiet)
    written = write_embedding(
        images,
        output,
        backbone=backbone,
        quality=quality,
        size=size,
        weak=weak,
        strong=strong,
        dtype=dtype,
        settings={"data.extract_on": engine} | settings_from(set_),
        strict=strict,
        reporter=reporter,
    )
    report_unreadable(written.unreadable, reporter)
    left_out = f", {len(written.unreadable)} unreadable left out" if written.unreadable else ""
    views = f" in {plural(len(written.views), 'view')}" if len(written.views) > 1 else ""
    reporter.say(
        f"{plural(written.images, 'image')}{views} as features of {written.dim} numbers ({written.origin}) in {output}"
        f"{left_out}"
    )
