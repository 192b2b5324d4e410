"""``selftrain suggest``: which images to label next.

Knows nothing of how images are ranked: it turns options into the arguments of one call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import Backbone, Labels, Quiet, Settings, Size, Strict, make_reporter, settings_from

Data = Annotated[
    Path, typer.Argument(help="A folder of images, a run folder, or a file of features (selftrain embed).")
]
Count = Annotated[int, typer.Option("-n", "--n", min=1, help="Number of suggestions.")]
Output = Annotated[
    Path, typer.Option("-o", "--output", help="CSV file to write; the page has the same name with .html.")
]
Page = Annotated[bool, typer.Option("--page/--no-page", help="Also write a page with thumbnails.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the clusters over which suggestions are spread.")]


def suggest(
    context: typer.Context,
    data: Data,
    n: Count = 20,
    output: Output = Path("suggest.csv"),
    labels: Labels = None,
    page: Page = True,
    backbone: Backbone = None,
    size: Size = None,
    set_: Settings = None,
    seed: Seed = 0,
    strict: Strict = False,
    quiet: Quiet = False,
) -> None:
    """Name the images that are most worth a label.

    For a folder without labels, these are typical images that cover the pile. With --labels, or for a run, they are
    images that models disagree on or are unsure of, of classes with few labels, and of possible new kinds. The CSV file
    has the columns path, label (empty, for you to fill in), kind, why, score, guess, confidence and same (images that
    are nearly the same).
    """
    from selftrain.errors import UserError
    from selftrain.files import check_writable
    from selftrain.suggest import suggest as find_suggestions
    from selftrain.text import plural

    reporter = make_reporter(context, quiet)
    if page and output.suffix == ".html":
        raise UserError(f"`output` {output}: the file is a CSV, beside the page; call it {output.with_suffix('.csv')}.")
    check_writable(output)
    found = find_suggestions(
        data,
        n,
        labels=labels,
        backbone=backbone,
        size=size,
        settings=settings_from(set_),
        seed=seed,
        strict=strict,
        reporter=reporter,
    )
    found.save(output)
    shown = f" and {found.save_page(output.with_suffix('.html'))}" if page else ""
    if len(found) < n:
        reporter.warn(f"only {plural(len(found), 'image')} without a label: all of them are suggested")
    reporter.say(f"{plural(len(found), 'image')} to label, of {len(found.images):,}: {output}{shown}")
