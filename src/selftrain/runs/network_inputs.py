"""What the network sees: pixels that are augmented during training, or features of a frozen backbone.

Knows nothing of methods or of the training loop. Regimes differ here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selftrain.batch import kind_of
from selftrain.config.settings import DataSettings, Settings
from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.features.extract import view_names
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.features.views import FeatureSpaceViews, FeatureViews
from selftrain.data.images import ArrayImages, Images
from selftrain.data.views.image_views import ImageViews, ViewMaker, clean_batches
from selftrain.errors import UserError
from selftrain.nn.backbones import build_backbone
from selftrain.nn.layers import Classifier, OnFeatures, UnitFeatures
from selftrain.nn.onnx_backbone import is_file_backbone
from selftrain.nn.runtimes import why_not_bf16
from selftrain.nn.tuning import tune
from selftrain.runs.extractor import Extractor, Features, image_views
from selftrain.runs.model import ModelCard, make_card, make_classifier, make_encoder, weights_hash

LARGEST_CACHED_TEST_SET = 1 << 30  # bytes of decoded test images kept between evaluations
LARGEST_KEPT_POOL = 1 << 30  # bytes of decoded training images held in memory

Rows = NDArray[np.int64]
EVERY_ROW = slice(None)


class Inputs(Protocol):
    """The input of the network, the classifier that takes it, and the card that describes both."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def classifier(self) -> Classifier:
        """The classifier to train."""

    def views(self, rows: Rows) -> ViewMaker:
        """Return the views of these rows of the training pool."""

    def extract(self, images: Images) -> None:
        """Compute now what ``clean`` needs for these images and keeps between evaluations."""

    def clean(self, images: Images, batch: int, rows: slice = ...) -> Iterable[Tensor]:
        """Return inputs without augmentation, for evaluation, in batches: those of all images, or of some rows."""

    def clean_pool(self, rows: Rows, batch: int) -> Iterable[Tensor]:
        """Return the same for these rows of the training pool."""

    def whole(self, trained: nn.Module) -> nn.Module:
        """Return a trained classifier as it is saved and used on new data."""


def prepare_inputs(
    settings: Settings, corpus: Corpus, device: torch.device, reporter: Reporter, extractor: Extractor | None = None
) -> Inputs:
    """Build the classifier and prepare its inputs; with a frozen backbone, extract the features of every image."""
    if isinstance(corpus.images, FeatureRows):
        return _feature_array_inputs(settings, corpus, corpus.images)
    if settings.regime == "frozen":
        return _frozen_inputs(settings, corpus, extractor or make_extractor(settings, corpus, device, reporter))
    return _pixel_inputs(settings, corpus)


def flips(settings: Settings, corpus: Corpus) -> bool:
    """Return whether images are mirrored at random."""
    return corpus.flip if settings.data.flip is None else settings.data.flip


def _clean_crop(data: DataSettings) -> float:
    """Return the share of an image that is evaluated: all of it where training pads images and sees them whole."""
    return data.clean_crop if data.crop == "resized" else 1.0


def _parts(rows: Rows, batch: int) -> Iterable[Rows]:
    return (rows[start : start + batch] for start in range(0, len(rows), batch))


@dataclass
class PixelInputs:
    """Scratch and finetune: psi sees pixels, and its backbone is trained."""

    settings: Settings
    corpus: Corpus
    card: ModelCard
    classifier: Classifier
    _kept: dict[tuple[int, int, int], list[Tensor]] = field(default_factory=dict)

    def views(self, rows: Rows) -> ImageViews:
        settings, flip = self.settings, flips(self.settings, self.corpus)
        size = len(rows) * self.card.channels * self.card.preprocessing.size**2
        seen_again = settings.train.steps * settings.train.unlabeled_batch >= len(rows)
        keep = size <= LARGEST_KEPT_POOL and seen_again  # otherwise files are read when their batch comes
        return image_views(self.corpus.images.subset(rows), settings.data, self.card, flip, keep)

    def extract(self, images: Images) -> None:
        """Do nothing: images are decoded at the first evaluation."""

    def clean(self, images: Images, batch: int, rows: slice = EVERY_ROW) -> Iterable[Tensor]:
        key = (id(images), rows.start, rows.stop)
        if key in self._kept:
            return self._kept[key]
        some = images if rows == EVERY_ROW else images.subset(np.arange(len(images))[rows])
        fresh = self._clean(some, batch)
        if len(some) * self.card.channels * self.card.preprocessing.size**2 > LARGEST_CACHED_TEST_SET:
            return fresh
        return self._kept.setdefault(key, list(fresh))

    def clean_pool(self, rows: Rows, batch: int) -> Iterable[Tensor]:
        return self._clean(self.corpus.images.subset(rows), batch)

    def _clean(self, images: Images, batch: int) -> Iterable[Tensor]:
        like = self.card.preprocessing
        return clean_batches(images, batch, like.size, self.card.channels, like.interpolation, like.crop)

    def whole(self, trained: nn.Module) -> nn.Module:
        return trained


def _pixel_inputs(settings: Settings, corpus: Corpus) -> PixelInputs:
    network, data = settings.network, settings.data
    grey = isinstance(corpus.images, ArrayImages) and corpus.images.pixels.shape[1] == 1
    weights = "none" if settings.regime == "scratch" and network.weights == "auto" else network.weights
    torch.manual_seed(settings.seed)
    if is_file_backbone(network.backbone):
        raise UserError(
            f'`regime="{settings.regime}"`: backbone {network.backbone!r} is a file, which cannot be trained. '
            f'Choose `regime="frozen"`.'
        )
    backbone = build_backbone(network.backbone, weights=weights, size=data.size, channels=1 if grey else 3)
    side = data.size or backbone.preprocessing.size
    tune(backbone, network.tune, network.lora_rank, side)
    if settings.regime == "scratch":
        # Statistics that lag behind the weights would make a short run's model useless in evaluation.
        momentum = network.bn_momentum or min(0.1, max(0.001, 1000 / settings.train.steps))
        for module in backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = momentum
    integers = corpus.integer_classes
    card = make_card(network, backbone, corpus.classes, side, _clean_crop(data), integer_classes=integers)
    classifier = make_classifier(card, backbone, channels_last=settings.train.channels_last)
    return PixelInputs(settings, corpus, card, classifier)


@dataclass
class FrozenInputs:
    """Frozen: the backbone ran once over views of every image; psi is a small projection of its features."""

    card: ModelCard
    classifier: Classifier
    extractor: Extractor
    names: tuple[str, ...]
    """the stored views of each image, in the order of ``features``"""
    features: Features
    """(n, views, dim) of the training pool"""
    _clean: tuple[Images, Features] | None = None

    def views(self, rows: Rows) -> FeatureViews:
        return FeatureViews(self.features, self.names, rows)

    def extract(self, images: Images) -> None:
        if self._clean is None or self._clean[0] is not images:
            self._clean = images, self.extractor.features(images, ("clean",))

    def clean(self, images: Images, batch: int, rows: slice = EVERY_ROW) -> Iterable[Tensor]:
        self.extract(images)
        assert self._clean is not None
        return feature_batches(self._clean[1][rows], batch)

    def clean_pool(self, rows: Rows, batch: int) -> Iterable[Tensor]:
        return (part for some in _parts(rows, batch) for part in feature_batches(self.features[some], batch))

    def whole(self, trained: nn.Module) -> nn.Module:
        return OnFeatures(self.extractor.encoder, trained, self.card.preprocessing.zoom)


def make_extractor(settings: Settings, corpus: Corpus | None, device: torch.device, reporter: Reporter) -> Extractor:
    """Return the frozen backbone of a run; without a corpus, one whose card names no classes."""
    network, data = settings.network, settings.data
    _check_bottleneck(network.bottleneck)
    backbone = build_backbone(
        network.backbone, weights=network.weights, size=data.size, channels=3, pixels=network.pixels
    )
    if not backbone.trainable and not network.save_backbone:
        raise UserError(
            f"network.save_backbone=false: backbone {network.backbone!r} is a file; its model must hold it."
        )
    if not backbone.pretrained and corpus is None:
        raise UserError(f"`backbone` {network.backbone}: has random weights, so its features mean nothing. Try lite0.")
    if not backbone.pretrained:
        raise UserError(
            f'`regime="frozen"`: backbone {network.backbone!r} has random weights, so its features mean nothing. '
            f'Choose a pretrained one such as lite0, or `regime="scratch"`.'
        )
    if data.precision == "bf16" and (reason := why_not_bf16(data.engine, device.type, backbone.trainable)):
        raise UserError(f"data.precision=bf16: {reason}")
    side = data.size or backbone.preprocessing.size
    warn_of_size(backbone.name, backbone.preprocessing.size, side, reporter)
    weights = weights_hash(backbone)
    card = make_card(
        network, backbone, () if corpus is None else corpus.classes, side, _clean_crop(data), data.clean_zoom,
        frozen=True, weights=weights, integer_classes=corpus is not None and corpus.integer_classes,
        precision=data.precision,
    )  # fmt: skip
    return Extractor(make_encoder(card, backbone), card, data, device, reporter, weights=weights)


def _frozen_inputs(settings: Settings, corpus: Corpus, extractor: Extractor) -> FrozenInputs:
    names = view_names(settings.data.weak_views, settings.data.strong_views)
    features = extractor.features(corpus.images, names, flip=flips(settings, corpus))
    torch.manual_seed(settings.seed)
    classifier = make_classifier(extractor.card, UnitFeatures(extractor.dim, settings.network.unit_features))
    return FrozenInputs(extractor.card, classifier, extractor, names, features)


def warn_of_size(name: str, native: int, side: int, reporter: Reporter) -> None:
    """Warn of images of another size than that at which a backbone was trained."""
    if not native / 4 <= side <= 2 * native:
        reporter.warn(
            f"`size={side}`: {name} was trained on images of {native} px; its features degrade at other "
            f"sizes. Try {max(64, native // 2)} to {native}."
        )


def _check_bottleneck(width: int) -> None:
    if not width:
        raise UserError(
            "network.bottleneck=0: with a frozen backbone, psi is the bottleneck; without one only the heads would "
            "learn. Set a width such as 256."
        )


@dataclass
class FeatureArrayInputs:
    """Frozen, on features that the user brings."""

    settings: Settings
    rows: FeatureRows
    card: ModelCard
    classifier: Classifier

    def views(self, rows: Rows) -> ViewMaker:
        values, data = self.rows.values, self.settings.data
        if values.shape[1] > 1:
            return FeatureViews(values, self.rows.views, rows)
        if isinstance(values, JoinedFeatures):  # some rows of one memory map
            values, rows = values.parts[0], values.row_of[rows]
        return FeatureSpaceViews.compute(
            values[:, 0], rows, noise=data.feature_noise, dropout=data.feature_dropout, mixup=data.feature_mixup
        )

    def extract(self, images: Images) -> None:
        """Do nothing: the images are features already."""

    def clean(self, images: Images, batch: int, rows: slice = EVERY_ROW) -> Iterable[Tensor]:
        assert isinstance(images, FeatureRows)
        return feature_batches(images.values[rows], batch)

    def clean_pool(self, rows: Rows, batch: int) -> Iterable[Tensor]:
        return (part for some in _parts(rows, batch) for part in feature_batches(self.rows.values[some], batch))

    def whole(self, trained: nn.Module) -> nn.Module:
        return trained


def _feature_array_inputs(settings: Settings, corpus: Corpus, rows: FeatureRows) -> FeatureArrayInputs:
    _check_bottleneck(settings.network.bottleneck)
    dim = rows.values.shape[2]
    if len(rows.views) > 1 and not any(kind_of(view) == "strong" for view in rows.views):
        raise UserError(
            f"features: the views are {', '.join(rows.views)}; without strong views, leave only the clean one."
        )
    origin = None if rows.origin is None else rows.origin.to_card()
    card = make_card(
        settings.network, None, corpus.classes, 0, frozen=True, features=dim, origin=origin,
        integer_classes=corpus.integer_classes,
    )  # fmt: skip
    torch.manual_seed(settings.seed)
    classifier = make_classifier(card, UnitFeatures(dim, settings.network.unit_features))
    return FeatureArrayInputs(settings, rows, card, classifier)
