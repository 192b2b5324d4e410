"""The public names of ``selftrain`` that need torch.

Knows nothing of how a run is made or read; it joins runs with reports, which read run folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from selftrain.engine.allocator import keep_freed_memory
from selftrain.engine.metrics import pseudo_label_measures
from selftrain.export.export import export
from selftrain.export.exported import ExportedModel
from selftrain.export.hub import pull, push
from selftrain.report import write_report
from selftrain.runs import bias, trainer
from selftrain.runs.layout import CrossValidated, Reference
from selftrain.runs.run import Run as RunFolder
from selftrain.suggest import Suggestions
from selftrain.suggest import suggest as find_suggestions

__all__ = ["ExportedModel", "Run", "keep_freed_memory", "pseudo_label_measures", "train", "write_report"]

P = ParamSpec("P")


class Run(RunFolder):
    """A run folder written by ``train``: its results, predictions, evaluations and reports."""

    def report(
        self,
        out: str | Path | None = None,
        *,
        images: Sequence[str | Path] | str | Path = (),
        reference: bool = False,
    ) -> Path:
        """Write one HTML page about the run and return its path.

        Parameters
        ----------
        out
            The file to write; ``report.html`` in the run folder by default.
        images
            The folders that the run's images are in, to show examples; nothing else outside the run folder is opened.
        reference
            First train on the same labels alone, so that the page can say what self-training changed. Done once.
        """
        return write_report([self.folder], out, images=images, reference=reference, reporter=self.reporter)

    def suggest(self, n: int = 20, *, seed: int = 0) -> Suggestions:
        """Return the unlabeled images of the run that are most worth a label, the most useful first."""
        return find_suggestions(self.folder, n, seed=seed, reporter=self.reporter)

    def export(self, out: str | Path, *, format: str | None = None, int8: Any = None) -> Path:
        """Write the model as one file that runs without torch or selftrain, and return its path.

        Parameters
        ----------
        out
            The file to write: .onnx, .pt2 (``torch.export``) or .xml (OpenVINO). ``predict.py`` and the classes are
            written beside an .onnx file.
        format
            ``onnx``, ``torch`` or ``openvino``; by default, whatever the suffix says.
        int8
            Images like those to predict. The backbone is then computed in 8-bit integers, whose ranges they set (ONNX).
        """
        return export(self.folder, out, format=format, int8=int8, reporter=self.reporter)

    def push(self, repository: str, *, private: bool = False) -> str:
        """Upload the model and its card to the Hugging Face Hub as ``user/name``, and return the new revision."""
        return push(self.folder, repository, private=private, reporter=self.reporter)

    @classmethod
    def from_hub(cls, name: str) -> Run:
        """Return a model of the Hugging Face Hub, ``user/name`` or ``user/name@revision``, downloaded if needed."""
        return cls(pull(name))

    def decompose(self, *, data: Any = None, test: Any = None) -> Reference:
        """Return data bias and training bias of every class; train on the same labels alone first, if needed.

        ``data`` and ``test`` are the arrays of a run that was trained on arrays.
        """
        return bias.decompose(self.folder, self.reporter, data=data, test=test)

    def cross_validate(self, folds: int, *, data: Any = None) -> CrossValidated:
        """Estimate the accuracy by training ``folds`` more runs, each with another part of the labels held out.

        ``data`` are the arrays of a run that was trained on arrays.
        """
        return bias.cross_validate(self.folder, self.reporter, folds=folds, data=data)


def _with_reports(train: Callable[P, RunFolder]) -> Callable[P, Run]:
    @wraps(train)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Run:
        run = train(*args, **kwargs)
        return Run(run.folder, run.reporter)

    return wrapped


train = _with_reports(trainer.train)
