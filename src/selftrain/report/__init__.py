"""From run folders to what people look at: one HTML page, or a figure of the paper.

Knows nothing of training; ``--reference`` asks ``selftrain.runs.bias`` for a run to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from selftrain.errors import UserError
from selftrain.files import write_text

if TYPE_CHECKING:
    from selftrain.console import Reporter

PAGE = "report.html"


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    reference: bool = False,
    reporter: Reporter | None = None,
) -> Path:
    """Write the page of one run, or of several side by side, and say where it is.

    Parameters
    ----------
    folders
        Run folders; they may be of different methods, seeds and datasets.
    out
        The file. Unset: ``report.html`` in the run folder, or here for several runs.
    reference
        Train on the same labels without pseudo labels, where that has not been done yet, to tell what self-training
        gave and took.
    """
    from selftrain.report.page import render
    from selftrain.report.reading import read_runs

    places = [Path(folder) for folder in folders]
    if not places:
        raise UserError("report: name at least one run folder.")
    path = Path(out) if out is not None else (places[0] if len(places) == 1 else Path()) / PAGE
    runs = read_runs(places)  # whatever is wrong with a folder is told before anything is trained
    if reference:
        from selftrain.console import Reporter as AReporter
        from selftrain.runs import bias

        reporter = reporter or AReporter(quiet=True)
        for run in runs:
            if run.per_class is None:
                reporter.warn(f"{run.folder}: no reference, because there was nothing to evaluate on")
            elif run.reference is None and not run.method.startswith("supervised"):
                bias.decompose(run.folder, reporter)
        runs = read_runs(places)
    write_text(path, render(runs))
    return path
