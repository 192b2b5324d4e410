"""``selftrain check``: problems of images and labels, before training.

Knows nothing of how they are found: it turns options into the arguments of one call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import (
    Backbone,
    Labels,
    LabelsPerClass,
    Quiet,
    Root,
    Settings,
    Size,
    make_reporter,
    settings_from,
)

Data = Annotated[
    str, typer.Argument(help="Images as for 'selftrain train': a folder, a dataset, hf:NAME or tar files.")
]
Test = Annotated[Path | None, typer.Option(help="Folder of test images, or a CSV file, as for 'selftrain train'.")]
Unlabeled = Annotated[str | None, typer.Option(help="More unlabeled images: a folder, tar files or hf:NAME.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Page to write (.html); a JSON file of the same name goes beside it."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with an error if test images are also in the training data.")
]
MOST_SHOWN = 8


def check(
    context: typer.Context,
    data: Data,
    labels: Labels = None,
    test: Test = None,
    unlabeled: Unlabeled = None,
    labels_per_class: LabelsPerClass = None,
    output: Output = None,
    backbone: Backbone = None,
    size: Size = None,
    root: Root = None,
    set_: Settings = None,
    strict: Strict = False,
    quiet: Quiet = False,
) -> None:
    """Look for problems in images and labels, without training.

    Duplicates and near-duplicates within and across labeled, unlabeled and test images; labels that are likely wrong;
    classes that cannot be told apart; images that are too small, too large or odd; mirror images that change the class;
    uneven labels. Features are computed once and kept for training.
    """
    from selftrain.check.check import check as look
    from selftrain.check.check import check_leaks
    from selftrain.check.findings import TITLES
    from selftrain.errors import UserError
    from selftrain.files import check_writable

    if output is not None:
        if output.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"`output` {output}: the page must end in .html; call it {output.with_suffix('.html')}.")
        check_writable(output)
    reporter = make_reporter(context, quiet)
    found = look(
        data,
        labels=labels,
        test=test,
        unlabeled=unlabeled,
        labels_per_class=labels_per_class,
        backbone=backbone,
        size=size,
        root=root,
        settings=settings_from(set_),
        reporter=reporter,
    )
    for kind, title in TITLES.items():
        own = [one for one in found.findings if one.kind == kind]
        if own:
            reporter.say(f"{title}: {len(own)}")
        for one in own[:MOST_SHOWN]:
            reporter.say(f"  {one.text}")
        if len(own) > MOST_SHOWN:
            reporter.say(f"  and {len(own) - MOST_SHOWN} more")
    if not found.findings:
        reporter.say("nothing was found")
    if output is not None:
        reporter.say(f"{found.save_page(output)} and {found.save(output.with_suffix('.json'))}")
    if strict:
        check_leaks(found)
