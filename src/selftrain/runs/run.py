"""A run folder: what it holds, and what it is good for once trained.

Knows nothing of how a run is made (see ``selftrain.runs.trainer``).
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selftrain.errors import UserError
from selftrain.files import read_json, read_yaml

if TYPE_CHECKING:
    from selftrain.console import Reporter
    from selftrain.runs.predict import Predictions, Predictor

CONFIG, SPLIT, METRICS, RESULTS, LOG = "config.yaml", "split.json", "metrics.jsonl", "results.json", "log.txt"
CHECKPOINTS, MODEL, CARD = "checkpoints", "model", "model.json"
OUTPUTS, REFERENCE = "outputs.npz", "reference.json"
LOCK = ".lock"  # there while a process trains


class Run:
    """A folder written by ``selftrain train``; for prediction its ``model`` folder will do."""

    def __init__(self, folder: str | Path, reporter: Reporter | None = None):
        self.folder = Path(folder)
        self.reporter = reporter
        self.model = self.folder if (self.folder / CARD).exists() else self.folder / MODEL
        if not (self.folder / CONFIG).exists() and not (self.model / CARD).exists():
            raise UserError(f"{self.folder}: not a run folder (no {CONFIG} in it). Make one with 'selftrain train'.")

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        config = read_yaml(self.folder / CONFIG, "run")
        if not isinstance(config, dict):
            raise UserError(f"{self.folder / CONFIG}: expected settings, found {type(config).__name__}.")
        return config

    @property
    def results(self) -> dict[str, Any]:
        """``results.json``; there once the run is finished."""
        results: dict[str, Any] = read_json(self.folder / RESULTS)
        return results

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations, oldest first."""
        try:
            lines = (self.folder / METRICS).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if number < len(lines):  # the last line may have been cut short by a kill
                    raise UserError(f"{self.folder / METRICS}, line {number}: not JSON.") from None
        return rows

    @cached_property
    def predictor(self) -> Predictor:
        from selftrain.data.features.store import can_be_kept
        from selftrain.runs.predict import Predictor

        config = self.config if (self.folder / CONFIG).exists() else {}
        own = config.get("data", {}).get("cache")  # of no use on another machine, perhaps
        return Predictor(self.model, self.reporter, cache=own if own and can_be_kept(Path(own)) else None)

    def predict(self, images: Any, *, strict: bool = False) -> Predictions:
        """Class and probabilities of new pictures: a folder, a file, or a NumPy array."""
        return self.predictor.predict(images, strict=strict)

    def evaluate(
        self, data: Any, labels: Any = None, *, root: str | Path | None = None, strict: bool = False
    ) -> dict[str, Any]:
        """Accuracy, per-class accuracy, imbalance ratio, ... of the model on labeled pictures.

        ``data``: a folder of class folders, a folder with ``test/<class>/*`` in it, the name of a dataset (its test
        set); any folder with ``labels``, a CSV file ``path,label`` of the pictures to evaluate on; or an array of
        pictures (of features, for a run that was trained on them) with their ``labels``, as two arguments or a pair.
        """
        from selftrain.console import Reporter
        from selftrain.data.source import Source

        classes, features = self.predictor.card.classes, self.predictor.card.features
        if labels is None and isinstance(data, tuple) and len(data) == 2:
            data, labels = data
        if features and (labels is None or isinstance(labels, (str, Path))):
            raise UserError(
                f"evaluate: {self.folder} was trained on features, not on pictures; give it features in Python: "
                f"run.evaluate((x, y)), {features} numbers a row of x and one label each in y."
            )
        source = Source.parse(data, root=root, labels=labels)
        reporter = self.reporter or Reporter(quiet=True)
        if labels is None:
            source.prepare(strict=strict, reporter=reporter)
        with reporter.progress("reading images", 1, "images") as bar:
            images, truth, skipped = source.test_set(classes, strict=strict, progress=bar.reach, features=features)
        if skipped:
            reporter.warn(f"left out {len(skipped)} images that cannot be read: {', '.join(skipped[:3])}")
        return self.predictor.evaluate(images, truth)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
