"""A trained model on new pictures: class, confidence and probabilities for each.

Knows nothing of training; a run's ``model`` folder is all it needs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from selftrain.config.settings import DataSettings
from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.images import Images, UnreadableImage, check_images
from selftrain.data.source import Source
from selftrain.data.views.image_views import clean_batches
from selftrain.engine.evaluate import confusion_matrix, probabilities
from selftrain.engine.metrics import summarise
from selftrain.errors import UserError
from selftrain.files import replacing
from selftrain.nn.layers import OnFeatures
from selftrain.runs.model import load_model
from selftrain.runs.network_inputs import Extractor


@dataclass(frozen=True)
class Predictions:
    """Class, confidence and probabilities of each picture that could be read."""

    paths: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: np.ndarray
    """(n, K)"""
    unreadable: tuple[UnreadableImage, ...] = ()

    @property
    def labels(self) -> list[str]:
        return [self.classes[k] for k in self.probabilities.argmax(axis=1)]

    @property
    def confidence(self) -> np.ndarray:
        return self.probabilities.max(axis=1)

    def __len__(self) -> int:
        return len(self.paths)

    def save(self, path: str | Path) -> Path:
        """A CSV file: path, label, confidence, and ``prob_<class>`` for each class."""
        path = Path(path)
        with (
            replacing(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            self.write(file)
        return path

    def write(self, file: TextIO) -> None:
        """The same to a file that is open."""
        writer = csv.writer(file)
        writer.writerow(["path", "label", "confidence", *(f"prob_{name}" for name in self.classes)])
        for name, label, p in zip(self.paths, self.labels, self.probabilities, strict=True):
            writer.writerow([name, label, f"{p.max():.6f}", *(f"{value:.6f}" for value in p)])


class Predictor:
    """The model of a run folder."""

    def __init__(self, folder: Path, reporter: Reporter | None = None, batch: int = 256, cache: str | None = None):
        self.model, self.card = load_model(folder)
        self.reporter = reporter or Reporter(quiet=True)
        self.batch = batch
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device)
        self.extractor: Extractor | None = None
        if self.card.frozen and not self.card.features:
            # Two halves: the backbone's features are cached, what was trained on them is quick.
            assert isinstance(self.model, OnFeatures)
            data = DataSettings(cache=cache)
            self.extractor = Extractor(self.model.encoder, self.card, data, self.device, self.reporter)
            self.model = self.model.predictor

    def predict(self, images: Any, *, strict: bool = False) -> Predictions:
        """``images``: a folder (searched with its subfolders), an image file, tar files, hf:NAME, or a NumPy array."""
        source = Source.parse(images, argument="images")
        found, skipped = self._readable(source.images(features=self.card.features, reporter=self.reporter), strict)
        if not len(found) and not skipped:
            raise UserError("images: there are none to predict.")
        if not len(found):
            raise UserError(f"{images}: none of its {len(skipped)} images can be read, e.g. {skipped[0]}")
        parts: list[np.ndarray] = []
        inputs = self._inputs(found)
        with self.reporter.progress("predicting", len(found), "images") as bar:
            for p in probabilities(self.model, _counted(inputs, bar.reach), self.device):
                parts.append(p.cpu().numpy())
        return Predictions(tuple(found.names), self.card.classes, np.concatenate(parts), tuple(skipped))

    def evaluate(self, images: Images, labels: np.ndarray) -> dict[str, Any]:
        """Accuracy and the measures beside it on labeled pictures."""
        inputs = self._inputs(images)
        with self.reporter.progress("evaluating", len(images), "images") as bar:
            counted = _counted(inputs, bar.reach)
            confusion = confusion_matrix(self.model, counted, labels, len(self.card.classes), self.device)
        return {
            **summarise(confusion),
            "classes": list(self.card.classes),
            "images": int(confusion.sum()),
            "confusion": confusion.tolist(),
        }

    def _readable(self, images: Images, strict: bool) -> tuple[Images, list[UnreadableImage]]:
        """Those pictures that decode; a picture costs far less to check than to predict."""
        with self.reporter.progress("reading images", len(images), "images") as bar:
            bad = check_images(images, strict=strict, progress=bar.reach)
        if not bad:
            return images, bad
        good = np.ones(len(images), bool)
        good[np.array([error.index for error in bad])] = False
        return images.subset(good), bad

    def _inputs(self, images: Images) -> Iterable[torch.Tensor]:
        if isinstance(images, FeatureRows):
            return feature_batches(images.values, self.batch)
        if self.extractor is not None:
            return feature_batches(self.extractor.features(images, ("clean",)), self.batch)
        like = self.card.preprocessing
        return clean_batches(images, self.batch, like.size, self.card.channels, like.interpolation, like.crop)


def _counted(batches: Iterable[torch.Tensor], progress: Callable[[int], object]) -> Iterator[torch.Tensor]:
    """The batches; how many rows are done is told after each."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done)
