"""The public functions: ``selftrain.train`` and ``selftrain.Run``.

Knows nothing of how a run is made or read; it joins runs with reports, which read run folders.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from selftrain.report import write_report
from selftrain.runs import trainer
from selftrain.runs.run import Run as RunFolder

P = ParamSpec("P")


class Run(RunFolder):
    """A run folder written by ``train``: its results, predictions, evaluations and reports."""

    def report(self, out: str | Path | None = None, *, reference: bool = False) -> Path:
        """Write one HTML page about the run and return its path.

        Parameters
        ----------
        out
            The file to write; ``report.html`` in the run folder by default.
        reference
            First train on the same labels alone, so that the page can say what self-training changed. Done once.
        """
        return write_report([self.folder], out, reference=reference, reporter=self.reporter)


def _with_reports(train: Callable[P, RunFolder]) -> Callable[P, Run]:
    @wraps(train)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Run:
        run = train(*args, **kwargs)
        return Run(run.folder, run.reporter)

    return wrapped


train = _with_reports(trainer.train)
