"""A trained model on new pictures: class, confidence and probabilities for each.

Knows nothing of training; a run's ``model`` folder is all it needs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selftrain.console import Reporter
from selftrain.data.images import ArrayImages, FileImages, Images, UnreadableImage, find_images
from selftrain.data.views import clean_batches
from selftrain.engine.evaluate import confusion_matrix, probabilities
from selftrain.errors import UserError
from selftrain.files import replacing
from selftrain.metrics import summarise
from selftrain.model import load_model


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
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label", "confidence", *(f"prob_{name}" for name in self.classes)])
            for name, label, p in zip(self.paths, self.labels, self.probabilities, strict=True):
                writer.writerow([name, label, f"{p.max():.6f}", *(f"{value:.6f}" for value in p)])
        return path


class Predictor:
    """The model of a run folder."""

    def __init__(self, folder: Path, reporter: Reporter | None = None, batch: int = 256):
        self.model, self.card = load_model(folder)
        self.reporter = reporter or Reporter(quiet=True)
        self.batch = batch
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model.to(self.device)

    def predict(self, images: Any, *, strict: bool = False) -> Predictions:
        """``images``: a folder (searched with its subfolders), an image file, or a NumPy array of pictures."""
        found = as_images(images)
        parts: list[np.ndarray] = []
        skipped: list[UnreadableImage] = []
        with self.reporter.progress("predicting", len(found), "images") as bar:
            batches = self._batches(found, skipped, strict)
            for p in probabilities(self.model, batches, self.device):
                parts.append(p.cpu().numpy())
                bar.reach(sum(map(len, parts)) + len(skipped))
        if not parts:
            raise UserError(f"{images}: none of its {len(found)} images can be read, e.g. {skipped[0]}")
        bad = {error.index for error in skipped}
        paths = tuple(name for i, name in enumerate(found.names) if i not in bad)
        return Predictions(paths, self.card.classes, np.concatenate(parts), tuple(skipped))

    def evaluate(self, images: Images, labels: np.ndarray) -> dict[str, Any]:
        """Accuracy and the measures beside it on labeled pictures."""
        with self.reporter.progress("evaluating", len(images), "images"):
            confusion = confusion_matrix(
                self.model, self._batches(images, [], True), labels, len(self.card.classes), self.device
            )
        return {
            **summarise(confusion),
            "classes": list(self.card.classes),
            "images": int(confusion.sum()),
            "confusion": confusion.tolist(),
        }

    def _batches(self, images: Images, skipped: list[UnreadableImage], strict: bool) -> Iterator[torch.Tensor]:
        like = self.card.preprocessing
        return clean_batches(
            images, self.batch, like.size, self.card.channels, like.interpolation, None if strict else skipped
        )


def as_images(images: Any) -> Images:
    """A folder, a file, several files, or an array, as pictures."""
    if isinstance(images, Images):
        return images
    if isinstance(images, (str, Path)):
        path = Path(images)
        if path.is_file():
            return FileImages(path.parent, [path.name])
        if not path.is_dir():
            raise UserError(f"{path}: no such folder or image.")
        names = find_images(path)
        if not names:
            raise UserError(f"{path}: no image in it or its subfolders.")
        return FileImages(path, names)
    if isinstance(images, Sequence) and images and all(isinstance(name, (str, Path)) for name in images):
        return FileImages("", [str(name) for name in images])
    return ArrayImages(images)
