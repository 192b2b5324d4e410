"""A finished run: its results, and predictions and evaluations with its model.

Knows nothing of how a run is made.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.files import read_json, read_yaml
from selftrain.runs.layout import ModelLayout, RunLayout
from selftrain.runs.places import known_cache
from selftrain.runs.predict import Predictions, Predictor, load_predictor
from selftrain.runs.seen import read_seen
from selftrain.text import listed, plural


class Run:
    """A folder written by ``train``; for prediction, its ``model`` folder is enough."""

    def __init__(self, folder: str | Path, reporter: Reporter | None = None):
        self.folder = Path(folder)
        self.reporter = reporter
        self.layout = RunLayout(self.folder)
        if not ModelLayout(self.layout.model).card.exists():
            self.layout.check()

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.layout.model

    @property
    def config(self) -> dict[str, Any]:
        """The settings, as the tree in ``config.yaml``."""
        config = read_yaml(self.layout.config, "run")
        if not isinstance(config, dict):
            raise UserError(f"{self.layout.config}: expected settings, found {type(config).__name__}.")
        return config

    @property
    def results(self) -> dict[str, Any]:
        """``results.json``, which exists once the run is finished."""
        results: dict[str, Any] = read_json(self.layout.results)
        return results

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations, oldest first."""
        return [dict(row) for row in self.layout.read_metrics().rows]

    @cached_property
    def predictor(self) -> Predictor:
        cache = self.layout.read_settings().get("data.cache") if self.layout.exists else None
        predictor = load_predictor(self.model, self.reporter, cache=known_cache(cache))
        if predictor.extractor is None or not self.layout.exists:
            return predictor
        return replace(predictor, seen=read_seen(self.layout.read_seen(), predictor.extractor.dim))

    def predict(self, images: Any, *, strict: bool = False, engine: str = "local") -> Predictions:
        """Return the class and the probabilities of new images: a folder, a file, a URL, or a NumPy array.

        ``engine="ray"`` extracts features on a Ray cluster.
        """
        return self.predictor.predict(images, strict=strict, engine=engine)

    def evaluate(
        self, data: Any, labels: Any = None, *, root: str | Path | None = None, strict: bool = False
    ) -> dict[str, Any]:
        """Return the accuracy, per-class accuracy and other measures of the model on labeled images.

        Parameters
        ----------
        data
            A folder of class folders; a folder with ``test/<class>/*`` in it; the name of a dataset, whose test set is
            used; any folder, together with ``labels``; a file of features, for a run trained on features; or an array
            of images or features with their ``labels``, as two arguments or a pair.
        labels
            A CSV file ``path,label`` of the images to evaluate on, or one label per row of ``data``.
        """
        classes, features = self.predictor.card.classes, self.predictor.card.features
        if labels is None and isinstance(data, tuple) and len(data) == 2:
            data, labels = data
        source = Source.parse(data, root=root, labels=labels)
        if features and self.predictor.takes(source) == "images":
            features = 0
        elif features and source.kind != "features" and (labels is None or isinstance(labels, (str, Path))):
            raise UserError(
                f"`data`: {self.folder} was trained on features, not on images. Give a .npz file (selftrain embed), or "
                f"arrays in Python: run.evaluate((x, y)), with {features} numbers per row of x and one label per row."
            )
        reporter = self.reporter or Reporter(quiet=True)
        if labels is None:
            source.prepare(strict=strict, reporter=reporter)
        with reporter.progress("reading images", 1, "images") as bar:
            images, truth, skipped = source.test_set(classes, strict=strict, progress=bar.reach, features=features)
        if skipped:
            reporter.warn(f"left out {plural(len(skipped), 'image')} that cannot be read: {listed(skipped)}")
        return self.predictor.evaluate(images, truth)

    def __getstate__(self) -> dict[str, Any]:
        # Without the console and the loaded model, which cannot be pickled; a copy loads the model again.
        return {"folder": self.folder, "layout": self.layout, "reporter": None}

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
