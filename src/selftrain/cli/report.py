"""``selftrain report``: one HTML page about runs, or a figure of the paper drawn from them.

Knows nothing of what a page or a figure shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import make_reporter

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="One run folder, or several to compare.", metavar="RUN...", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="File to write. With --figure: its name without .png and .svg, or a folder.",
        show_default="report.html in the run folder, or here for several runs",
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Option(
        help="Folder or tar files that the images of the runs are in, to show examples; can be repeated. A report "
        "opens nothing else outside the run folders.",
        metavar="FOLDER",
    ),
]
Reference = Annotated[
    bool,
    typer.Option(
        "--reference",
        help="Also train on the same labels alone, to show what self-training gained and lost. Done once per run. "
        "Reads the data that the run names, so use it only for runs that you trust.",
    ),
]
FigureNames = Annotated[
    list[str] | None,
    typer.Option(help="Draw this figure of the paper instead, as PNG and SVG. See 'selftrain list figures'."),
]


def report(
    context: typer.Context,
    runs: Runs = None,
    output: Output = None,
    images: Images = None,
    reference: Reference = False,
    figure: FigureNames = None,
) -> None:
    """Show what self-training did to each class: one HTML page that needs no network.

    The page shows the results of the runs, suggestions for what to do next, learning curves, classes that gain and
    lose, bias, confusions, calibration and example images. Without ground truth it shows what can be known without it.
    """
    reporter = make_reporter(context)
    if figure:
        from selftrain.report.paper_figures import draw_figures

        for path in draw_figures(figure, runs or [], output):
            reporter.say(f"figure: {path}")
        return
    from selftrain.report import write_report

    path = write_report(runs or [], output, images=images or (), reference=reference, reporter=reporter)
    reporter.say(f"report: {path}")
