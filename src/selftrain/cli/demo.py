"""``selftrain demo``: compare three methods on data that comes with the package.

Knows nothing of how a demo is run; it passes two options on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import make_reporter

Out = Annotated[Path, typer.Option(help="Folder for the run folders, the table and the plot.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of runs per method.")]


def demo(context: typer.Context, out: Out = Path("demo"), seeds: Seeds = 3) -> None:
    """Compare supervised training, FixMatch and DST on handwritten digits with 4 labels per class.

    Needs no data and no network, and takes a few minutes on two cores. Run it again to resume where it stopped.
    """
    from selftrain.bench.demo import run_demo

    run_demo(out, seeds, make_reporter(context))
