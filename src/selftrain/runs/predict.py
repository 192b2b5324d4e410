"""A trained model on new images: class, confidence, novelty and probabilities of each.

Knows nothing of training; a run's ``model`` folder is all it needs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from selftrain.config.settings import DataSettings
from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.features.origin import Origin, check_origins
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.images import Images, UnreadableImage, check_images
from selftrain.data.images.memory import Memory
from selftrain.data.source import Source
from selftrain.data.views.image_views import clean_batches
from selftrain.engine.evaluate import probabilities, tally
from selftrain.engine.metrics import calibration, summarise
from selftrain.engine.ray_cluster import one_cluster
from selftrain.errors import UserError
from selftrain.files import replacing
from selftrain.methods.confidence import estimate_prior, surest, with_prior
from selftrain.methods.junk import Novelty
from selftrain.nn.backbones import build_backbone
from selftrain.nn.layers import OnFeatures
from selftrain.nn.runtimes import why_not_bf16
from selftrain.runs.extractor import Extractor
from selftrain.runs.model import (
    ModelCard,
    load_model,
    load_novelty,
    make_encoder,
    preprocessing_from,
    weights_hash,
)
from selftrain.runs.prediction_table import SUFFIX, write_parquet
from selftrain.runs.ray_extraction import check_on_ray
from selftrain.runs.seen import Seen
from selftrain.runs.shares import given_shares
from selftrain.text import spreadsheet_safe

UNSURE, UNKNOWN = "unsure", "unknown"
"""what stands in place of a label"""


@dataclass(frozen=True)
class Predictions:
    """Class, confidence and probabilities of each image that could be read."""

    paths: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: np.ndarray
    """(n, K)"""
    unreadable: tuple[UnreadableImage, ...] = ()
    novelty: np.ndarray | None = None
    """(n,) 0 to 1: above 0.5, an image looks like none of the classes; None if the model cannot tell"""
    integer_classes: bool = False
    """whether the model was trained on integer labels"""
    noun: str = "image"
    """what the predictions are about: image, or row"""
    prior: np.ndarray | None = None
    """(K,) class frequencies that the probabilities assume; None if the model does not know them"""
    duplicate_of: tuple[str, ...] | None = None
    """the training image that each image is nearly the same as, empty if there is none; None if that is not known"""
    unsure: np.ndarray | None = None
    """(n,) bool: no label is given, because the confidence is too low; None if every image gets one"""

    @property
    def labels(self) -> list[Any]:
        """The class of each image: text, or integers if the model was trained on integer labels."""
        names: list[Any] = [int(name) for name in self.classes] if self.integer_classes else list(self.classes)
        return [names[k] for k in self.probabilities.argmax(axis=1)]

    @property
    def confidence(self) -> NDArray[Any]:
        highest: NDArray[Any] = self.probabilities.max(axis=1)
        return highest

    @property
    def answers(self) -> list[Any]:
        """The class of each image as a file has it: ``unknown`` or ``unsure`` where no class is given."""
        answers = self.labels
        for word, marked in ((UNSURE, self.unsure), (UNKNOWN, self.unknown)):
            for i in np.flatnonzero(marked) if marked is not None else ():
                answers[i] = word
        return answers

    @property
    def unknown(self) -> np.ndarray | None:
        """(n,) bool: the image looks like none of the classes; None if the model cannot tell."""
        if self.novelty is None or UNKNOWN in self.classes:
            return None
        marked: np.ndarray = self.novelty > 0.5
        return marked

    def with_threshold(self, threshold: float) -> Predictions:
        """Return predictions that give no label to images with a lower confidence."""
        if not 0 <= threshold <= 1:
            raise UserError(f"`threshold={threshold}`: must be between 0 and 1.")
        return self._unsure(self.confidence < threshold, "threshold")

    def with_coverage(self, coverage: float) -> Predictions:
        """Return predictions that give a label to this share of the images, the surest ones."""
        if not 0 < coverage <= 1:
            raise UserError(f"`coverage={coverage}`: must be a share above 0 and up to 1, such as 0.8.")
        return self._unsure(~surest(self.confidence, coverage), "coverage")

    def _unsure(self, unsure: np.ndarray, argument: str) -> Predictions:
        if UNSURE in self.classes:
            raise UserError(f"`{argument}`: the model has a class {UNSURE!r}, so images cannot be left as unsure.")
        return replace(self, unsure=unsure)

    def with_prior(self, prior: str | Path | Sequence[float]) -> Predictions:
        """Return predictions for images with other class frequencies than those of training.

        ``prior`` is a CSV file ``class,share``, one share per class, ``"uniform"``, or ``"estimate"`` to estimate them
        from these images.
        """
        if self.prior is None:
            raise UserError("`prior`: this model does not know the class frequencies that it was trained on.")
        new = estimate_prior(self.probabilities, self.prior) if prior == "estimate" else self._shares(prior)
        p = with_prior(self.probabilities, self.prior, new).astype(self.probabilities.dtype)
        return replace(self, probabilities=p, prior=np.asarray(new, self.prior.dtype))

    def _shares(self, prior: str | Path | Sequence[float]) -> np.ndarray:
        if isinstance(prior, (str, Path)):
            found = given_shares(str(prior), self.classes, "`prior`", "estimate, uniform")
            return found.numpy()
        shares = np.asarray(prior, np.float64)
        if shares.shape != (len(self.classes),) or not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
            raise UserError(f"`prior`: expected {len(self.classes)} shares of at least 0, one per class.")
        return np.asarray(shares / shares.sum())

    @property
    def novel(self) -> list[str]:
        """The paths of the images that look like none of the classes."""
        if self.novelty is None:
            return []
        return [self.paths[i] for i in np.flatnonzero(self.novelty > 0.5)]

    @property
    def duplicates(self) -> list[str]:
        """The paths of the images that are nearly the same as a training image."""
        return [path for path, of in zip(self.paths, self.duplicate_of or (), strict=False) if of]

    def __len__(self) -> int:
        return len(self.paths)

    def save(self, path: str | Path) -> Path:
        """Write a CSV file, or a Parquet file if ``path`` ends in .parquet, and return its path.

        Its columns are path, label, confidence, novelty (if the model has it), duplicate_of (the training image that an
        image is nearly the same as, if the run remembers its images), and ``prob_<class>`` for each class. The label is
        ``unknown`` if the novelty is above 0.5, and ``unsure`` if a threshold or a coverage was asked for.

        In CSV, a path or label that a spreadsheet would take for a formula has an apostrophe in front of it.
        """
        path = Path(path)
        if path.suffix.lower() == SUFFIX:
            write_parquet(path, self._columns())
            return path
        with (
            replacing(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            self.write(file)
        return path

    def _columns(self) -> dict[str, Any]:
        """Return the columns of the table, as they are without CSV."""
        columns: dict[str, Any] = {"path": self.paths, "label": self.answers, "confidence": self.confidence}
        columns |= {} if self.novelty is None else {"novelty": self.novelty}
        columns |= {} if self.duplicate_of is None else {"duplicate_of": self.duplicate_of}
        return columns | {f"prob_{name}": self.probabilities[:, k] for k, name in enumerate(self.classes)}

    def write(self, file: TextIO) -> None:
        """Write the same CSV to an open file."""
        writer = csv.writer(file)
        more = [] if self.novelty is None else ["novelty"]
        more += [] if self.duplicate_of is None else ["duplicate_of"]
        writer.writerow(["path", "label", "confidence", *more, *(f"prob_{name}" for name in self.classes)])
        for i, (name, label, p) in enumerate(zip(self.paths, self.answers, self.probabilities, strict=True)):
            novelty = [] if self.novelty is None else [f"{self.novelty[i]:.4f}"]
            cells = [spreadsheet_safe(str(text)) for text in (name, label)]
            same = [] if self.duplicate_of is None else [spreadsheet_safe(self.duplicate_of[i])]
            writer.writerow([*cells, f"{p.max():.6f}", *novelty, *same, *(f"{value:.6f}" for value in p)])


@dataclass(frozen=True)
class Predictor:
    """A trained model, ready for new images."""

    model: nn.Module
    """takes images, or features where there is an extractor"""
    card: ModelCard
    device: torch.device
    reporter: Reporter
    extractor: Extractor | None = None
    """the frozen backbone, whose features are stored; the model on top of them is fast"""
    batch: int = 256
    novelty: Novelty | None = None
    """takes features as well"""
    cache: str | None = None
    """folder of stored features; None: the user's"""
    seen: Seen | None = None
    """the training images, to recognise near-duplicates of them"""

    @one_cluster()
    def predict(self, images: Any, *, strict: bool = False, engine: str = "local") -> Predictions:
        """Predict images: a folder and its subfolders, a file, tar, Parquet, a URL, hf:NAME, or an array."""
        self._use(engine)
        source = Source.parse(images, argument="images")
        dim = 0 if self.takes(source) == "images" else self.card.features
        images_given = source.images(features=dim, reporter=self.reporter)
        found, skipped = keep_readable(images_given, strict, self.reporter, self.cache, on_ray=engine == "ray")
        noun = "row" if isinstance(found, FeatureRows) else "image"
        if not len(found) and not skipped:
            raise UserError("`images`: there are no images to predict.")
        if not len(found):
            raise UserError(f"{images}: none of its {len(skipped)} images can be read; the first is {skipped[0]}")
        parts: list[np.ndarray] = []
        novelty: list[np.ndarray] = []
        same: list[str] = []
        inputs = self._screened(self._inputs(found), novelty, same)
        with self.reporter.progress("predicting", len(found), f"{noun}s") as bar:
            for p in probabilities(self.model, _counted(inputs, bar.reach), self.device):
                parts.append(p.cpu().numpy())
        return Predictions(
            tuple(found.names),
            self.card.classes,
            np.concatenate(parts),
            tuple(skipped),
            np.concatenate(novelty) if novelty else None,
            self.card.integer_classes,
            noun,
            np.array(self.card.prior) if self.card.prior else None,
            tuple(same) if self.seen is not None else None,
        )

    def _use(self, engine: str) -> None:
        """Extract features in this process (local), or on a Ray cluster."""
        if engine not in ("local", "ray"):
            raise UserError(f"`engine` {engine}: choose local or ray.")
        extractor = self.embedder if self.card.features and self.origin is not None else self.extractor
        if engine == "ray" and extractor is None:
            raise UserError("`engine` ray: only models on the features of a frozen backbone can use it.")
        if extractor is not None:
            extractor.on_ray = engine == "ray"

    def takes(self, source: Source) -> Literal["images", "features"]:
        """Return what is read from a source: a model on features takes images if it knows which backbone made them."""
        if not self.card.features:
            return "images"
        of_features = source.kind in ("arrays", "features") or str(source.data).endswith((".npz", ".npy"))
        return "features" if self.origin is None or of_features else "images"

    @cached_property
    def origin(self) -> Origin | None:
        """The backbone of the features that the model was trained on, if it is known."""
        return Origin.parse(self.card.origin)

    @cached_property
    def embedder(self) -> Extractor:
        """That backbone, to turn images into such features."""
        assert self.origin is not None
        return load_embedder(self.origin, self.card, self.cache, self.device, self.reporter)

    def evaluate(self, images: Images, labels: np.ndarray) -> dict[str, Any]:
        """Return the accuracy and other measures on labeled images."""
        inputs = self._inputs(images)
        noun = "rows" if isinstance(images, FeatureRows) else "images"
        with self.reporter.progress("evaluating", len(images), noun) as bar:
            counted = _counted(inputs, bar.reach)
            confusion, bins = tally(self.model, counted, labels, len(self.card.classes), self.device)
        return {
            **summarise(confusion),
            **calibration(bins),
            "classes": list(self.card.classes),
            "images": int(confusion.sum()),
            "confusion": confusion.tolist(),
        }

    def _screened(
        self, batches: Iterable[torch.Tensor], novelty: list[np.ndarray], same: list[str]
    ) -> Iterator[torch.Tensor]:
        """Yield the batches of features, and add the novelty and the near-duplicates of each to lists."""
        for batch in batches:
            if self.seen is not None:
                same += self.seen.duplicates(batch)
            if self.novelty is not None:
                with torch.inference_mode():
                    novelty.append(self.novelty(batch.to(self.device)).cpu().numpy())
            yield batch

    def _inputs(self, images: Images) -> Iterable[torch.Tensor]:
        if isinstance(images, FeatureRows):
            check_origins(images.origin, self.origin, "`images`", "those that the model was trained on")
            return feature_batches(images.values, self.batch)
        extractor = self.embedder if self.card.features else self.extractor
        if extractor is not None:
            return feature_batches(extractor.features(images, ("clean",)), self.batch)
        like = self.card.preprocessing
        return clean_batches(images, self.batch, like.size, self.card.channels, like.interpolation, like.crop)


def load_predictor(folder: Path, reporter: Reporter | None = None, *, cache: str | None = None) -> Predictor:
    """Load the model of a run's ``model`` folder, on a GPU if there is one."""
    model, card = load_model(folder)
    reporter = reporter or Reporter(quiet=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    extractor, dim = None, card.features
    if card.frozen and not card.features:
        assert isinstance(model, OnFeatures)
        extractor = Extractor(model.encoder, card, _like(card.precision, cache, device), device, reporter)
        model, dim = model.predictor, extractor.dim
    novelty = load_novelty(folder, classes=len(card.classes), dim=dim) if dim else None
    novelty = novelty if novelty is None else novelty.to(device)
    return Predictor(model, card, device, reporter, extractor, novelty=novelty, cache=cache)


def load_embedder(
    origin: Origin, card: ModelCard, cache: str | None, device: torch.device, reporter: Reporter
) -> Extractor:
    """Return the backbone that made the features a model was trained on; an error if its weights are others here."""
    like = preprocessing_from(dict(origin.preprocessing))
    backbone = build_backbone(origin.backbone, weights="pretrained", size=like.size, channels=origin.channels)
    if weights_hash(backbone) != origin.weights:
        raise UserError(
            f"backbone {origin.backbone}: these are not the weights that made the features of this model. Make "
            f"features with 'selftrain embed' and the same weights, and predict those."
        )
    own = replace(
        card, backbone=origin.backbone, weights=origin.weights, channels=origin.channels, preprocessing=like, features=0
    )
    return Extractor(make_encoder(own, backbone), own, _like(origin.precision, cache, device), device, reporter)


def _like(precision: str, cache: str | None, device: torch.device) -> DataSettings:
    """Return settings for features like those of training; with 32 bits where this machine has no others."""
    half = precision == "bf16" and not why_not_bf16("auto", device.type)
    return DataSettings(cache=cache, precision="bf16" if half else "32")


def keep_readable(
    images: Images, strict: bool, reporter: Reporter, cache: str | None = None, *, on_ray: bool = False
) -> tuple[Images, list[UnreadableImage]]:
    """Return the images that can be decoded, and the errors of the others; ``cache`` is the folder of caches."""
    if isinstance(images, FeatureRows):
        return images, []
    memory = Memory(cache_root(cache))
    if on_ray:
        check_on_ray(images, memory, reporter)
    with reporter.progress("reading images", len(images), "images") as bar:
        bad = check_images(images, strict=strict, progress=bar.reach, memory=memory)
    if not bad:
        return images, bad
    good = np.ones(len(images), bool)
    good[np.array([error.index for error in bad])] = False
    return images.subset(good), bad


def _counted(batches: Iterable[torch.Tensor], progress: Callable[[int], object]) -> Iterator[torch.Tensor]:
    """Yield the batches, and report after each how many rows are done."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done)
