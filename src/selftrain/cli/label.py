"""``selftrain label``: a page to label a folder of photos.

Knows nothing of the page: it turns options into the arguments of one call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import Backbone, Quiet, Settings, Size, make_reporter, settings_from

Photos = Annotated[Path, typer.Argument(help="A folder of images, searched with its subfolders.")]
LabelFile = Annotated[
    Path | None,
    typer.Option(help="CSV file for the answers; it may already have labels.", show_default="PHOTOS/labels.csv"),
]
Classes = Annotated[str | None, typer.Option(help="Class names to begin with: --classes cat,dog,other.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")]
Out = Annotated[Path, typer.Option(help="Folder for the runs that are started from the page.")]


def label(
    context: typer.Context,
    photos: Photos,
    labels: LabelFile = None,
    classes: Classes = None,
    port: Port = 0,
    browser: Browser = True,
    out: Out = Path("runs"),
    backbone: Backbone = None,
    size: Size = None,
    set_: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Label photos on a page in your browser, with suggestions from a model that trains while you label.

    Every answer is written at once to the CSV file, which 'selftrain train PHOTOS --labels FILE' takes as it is. You
    can stop at any time; the same command continues. The page can be reached from this machine only.
    """
    from selftrain.web.label.start import label as serve_label_page

    given: dict[str, object] = {**settings_from(set_)}
    given |= {"network.backbone": backbone} if backbone is not None else {}
    given |= {"data.size": size} if size is not None else {}
    serve_label_page(
        photos,
        labels=labels,
        classes=[name for name in (classes or "").split(",") if name.strip()],
        port=port,
        browser=browser,
        settings=given,
        runs=out,
        reporter=make_reporter(context, quiet),
    )
