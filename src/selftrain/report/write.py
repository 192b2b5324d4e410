"""Write the report: read the runs, train references if asked to, render the page.

Knows nothing of what is on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.files import write_text
from selftrain.report.page import render
from selftrain.report.run_data import RunData, read_runs
from selftrain.runs import bias
from selftrain.runs.layout import RunLayout


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    images: Sequence[str | Path] | str | Path = (),
    reference: bool = False,
    reporter: Reporter | None = None,
) -> Path:
    """Write a page about one run, or about several side by side, and return its path.

    Parameters
    ----------
    folders
        Run folders. Methods, seeds and datasets may differ.
    out
        The file to write. By default ``report.html``, in the run folder for one run and in the current folder for
        several.
    images
        The folders that the images of the runs are in, to show examples. Nothing else outside the run folders is
        opened, because a run folder may come from somebody else.
    reference
        First train on the same labels without pseudo labels, so that the page can show what self-training changed.
        Skipped for runs that have a reference already.
    reporter
        Receives log lines and warnings; silent by default.
    """
    places = [Path(folder) for folder in folders]
    if not places:
        raise UserError("A report needs at least one run folder, and none was given.")
    home = places[0] if len(places) == 1 and out is None else None
    path = Path(out) if out is not None else RunLayout(home or Path()).report
    shown = [images] if isinstance(images, (str, Path)) else images
    runs = read_runs(places, shown)  # before any training, so that a broken folder is an error right away
    if reference:
        _add_references(runs, reporter or Reporter(quiet=True))
        runs = read_runs(places, shown)
    write_text(path, render(runs).encode("utf-8", "replace").decode(), within=home)
    return path


def _add_references(runs: Sequence[RunData], reporter: Reporter) -> None:
    for run in runs:
        if run.per_class is None:
            reporter.warn(f"{run.folder}: no reference was trained, because there is no labeled set to evaluate on")
        elif run.reference is None and not run.labels_only:
            bias.decompose(run.folder, reporter)
