"""What the network is fed: pixels that are augmented on the way, or features that a frozen backbone gave beforehand.

Knows nothing of methods or of the training loop; regimes differ here and nowhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.config.settings import DataSettings, Settings
from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.features.extract import extract_features, view_names
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.features.store import cache_root
from selftrain.data.features.views import FeatureSpaceViews, FeatureViews
from selftrain.data.images import ArrayImages, Images
from selftrain.data.views.image_views import CLEAN_DETAIL, ImageViews, ViewMaker, clean_batches
from selftrain.errors import UserError
from selftrain.nn.backbones import build_backbone
from selftrain.nn.fold import fold_batch_norm
from selftrain.nn.layers import Classifier, Encoder, OnFeatures, UnitFeatures
from selftrain.runs.model import ModelCard, make_card, make_classifier, make_encoder, weights_hash

LARGEST_CACHED_TEST_SET = 1 << 30  # bytes of decoded test pictures kept between evaluations
LARGEST_KEPT_POOL = 1 << 30  # bytes of decoded training pictures held in memory
PIXELS_A_PASS = 1 << 17  # on a CPU, small passes keep activations in reach: 8 pictures of 128 x 128


class Inputs(Protocol):
    card: ModelCard
    classifier: Classifier
    """the classifier to train"""

    def views(self, rows: np.ndarray) -> ViewMaker:
        """Views of these rows of the training pool."""

    def clean(self, images: Images, batch: int, rows: slice = ...) -> Iterable[Tensor]:
        """Inputs without chance, for evaluation, in batches: those of all images, or of some rows."""

    def clean_pool(self, rows: np.ndarray, batch: int) -> Iterable[Tensor]:
        """The same of these rows of the training pool."""

    def whole(self, trained: nn.Module) -> nn.Module:
        """A trained classifier as it is saved and used on new data."""


def make_inputs(settings: Settings, corpus: Corpus, device: torch.device, reporter: Reporter) -> Inputs:
    if isinstance(corpus.images, FeatureRows):
        return FeatureArrayInputs(settings, corpus, corpus.images)
    if settings.regime == "frozen":
        return FrozenInputs(settings, corpus, device, reporter)
    return PixelInputs(settings, corpus)


def _flip(settings: Settings, corpus: Corpus) -> bool:
    return corpus.flip if settings.data.flip is None else settings.data.flip


def _clean_crop(data: DataSettings) -> float:
    """Where training pads pictures it sees them whole, and so does evaluation."""
    return data.clean_crop if data.crop == "resized" else 1.0


def _parts(rows: np.ndarray, batch: int) -> Iterable[np.ndarray]:
    return (rows[start : start + batch] for start in range(0, len(rows), batch))


class PixelInputs:
    """Scratch and finetune: psi sees pixels, and its backbone is trained."""

    def __init__(self, settings: Settings, corpus: Corpus):
        self.settings, self.corpus = settings, corpus
        network, data = settings.network, settings.data
        grey = isinstance(corpus.images, ArrayImages) and corpus.images.pixels.shape[1] == 1
        weights = "none" if settings.regime == "scratch" and network.weights == "auto" else network.weights
        torch.manual_seed(settings.seed)
        backbone = build_backbone(network.backbone, weights=weights, size=data.size, channels=1 if grey else 3)
        if settings.regime == "scratch":
            # Statistics that lag behind the weights would make a short run's model useless in evaluation.
            momentum = network.bn_momentum or min(0.1, max(0.001, 1000 / settings.train.steps))
            for module in backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = momentum
        side = data.size or backbone.preprocessing.size
        self.card = make_card(network, backbone, corpus.classes, side, _clean_crop(data))
        self.classifier = make_classifier(self.card, backbone, channels_last=settings.train.channels_last)
        self._kept: dict[tuple[int, int, int], list[Tensor]] = {}

    def views(self, rows: np.ndarray) -> ImageViews:
        settings, flip = self.settings, _flip(self.settings, self.corpus)
        size = len(rows) * self.card.channels * self.card.preprocessing.size**2
        often = settings.train.steps * settings.train.unlabeled_batch >= len(
            rows
        )  # else files are read as they come up
        keep = size <= LARGEST_KEPT_POOL and often
        return image_views(self.corpus.images.subset(rows), settings.data, self.card, flip, keep)

    def clean(self, images: Images, batch: int, rows: slice = slice(None)) -> Iterable[Tensor]:
        key = (id(images), rows.start, rows.stop)
        if key in self._kept:
            return self._kept[key]
        like = self.card.preprocessing
        some = images if rows == slice(None) else images.subset(np.arange(len(images))[rows])
        fresh = clean_batches(some, batch, like.size, self.card.channels, like.interpolation, like.crop)
        if len(some) * self.card.channels * like.size**2 > LARGEST_CACHED_TEST_SET:
            return fresh
        return self._kept.setdefault(key, list(fresh))

    def clean_pool(self, rows: np.ndarray, batch: int) -> Iterable[Tensor]:
        images, like = self.corpus.images.subset(rows), self.card.preprocessing
        return clean_batches(images, batch, like.size, self.card.channels, like.interpolation, like.crop)

    def whole(self, trained: nn.Module) -> nn.Module:
        return trained


def _check_bottleneck(width: int) -> None:
    if not width:
        raise UserError(
            "network.bottleneck=0: with a frozen backbone psi is the bottleneck, and without one nothing but the "
            "heads would learn. Set a width such as 256."
        )


class FrozenInputs:
    """Frozen: the backbone runs once over views of every picture; psi is a small projection of what it gave."""

    def __init__(self, settings: Settings, corpus: Corpus, device: torch.device, reporter: Reporter):
        network, data = settings.network, settings.data
        _check_bottleneck(network.bottleneck)
        backbone = build_backbone(network.backbone, weights=network.weights, size=data.size, channels=3)
        if not backbone.pretrained:
            raise UserError(
                f"--regime frozen: backbone {network.backbone!r} has random weights, and its features would mean "
                f"nothing. Take a pretrained one such as lite0, or --regime scratch."
            )
        native = backbone.preprocessing.size
        side = data.size or native
        if not native / 4 <= side <= 2 * native:
            reporter.warn(
                f"--size {side}: {network.backbone} has learnt from pictures of {native} px; of those of another scale "
                f"its features say less. Try --size {max(64, native // 2)} to {native}."
            )
        self.settings = settings
        self.card = make_card(
            network, backbone, corpus.classes, side, _clean_crop(data), frozen=True, weights=weights_hash(backbone)
        )
        self.extractor = Extractor(make_encoder(self.card, backbone), self.card, data, device, reporter)
        self.names = view_names(data.weak_views, data.strong_views)
        self.features = self.extractor.features(corpus.images, self.names, flip=_flip(settings, corpus))
        self._clean: tuple[Images, np.ndarray] | None = None
        torch.manual_seed(settings.seed)
        self.classifier = make_classifier(self.card, UnitFeatures(backbone.dim, network.unit_features))

    def views(self, rows: np.ndarray) -> FeatureViews:
        return FeatureViews(self.features, self.names, rows)

    def clean(self, images: Images, batch: int, rows: slice = slice(None)) -> Iterable[Tensor]:
        if self._clean is None or self._clean[0] is not images:  # asked for at every evaluation, looked up once
            self._clean = images, self.extractor.features(images, ("clean",))
        return feature_batches(self._clean[1][rows], batch)

    def clean_pool(self, rows: np.ndarray, batch: int) -> Iterable[Tensor]:
        return (part for some in _parts(rows, batch) for part in feature_batches(self.features[some], batch))

    def whole(self, trained: nn.Module) -> nn.Module:
        return OnFeatures(self.extractor.encoder, trained)


class FeatureArrayInputs:
    """Frozen, on features that the user brings."""

    def __init__(self, settings: Settings, corpus: Corpus, rows: FeatureRows):
        _check_bottleneck(settings.network.bottleneck)
        self.settings, self.rows = settings, rows
        dim = rows.values.shape[2]
        self.card = make_card(settings.network, None, corpus.classes, 0, frozen=True, features=dim)
        torch.manual_seed(settings.seed)
        self.classifier = make_classifier(self.card, UnitFeatures(dim, settings.network.unit_features))

    def views(self, rows: np.ndarray) -> ViewMaker:
        values, data = self.rows.values, self.settings.data
        if values.shape[1] > 1:
            names = ("weak", *(f"strong_{i}" for i in range(1, values.shape[1])))
            return FeatureViews(values, names, rows)
        return FeatureSpaceViews(
            values[:, 0], rows, noise=data.feature_noise, dropout=data.feature_dropout, mixup=data.feature_mixup
        )

    def clean(self, images: Images, batch: int, rows: slice = slice(None)) -> Iterable[Tensor]:
        assert isinstance(images, FeatureRows)
        return feature_batches(images.values[rows], batch)

    def clean_pool(self, rows: np.ndarray, batch: int) -> Iterable[Tensor]:
        return (part for some in _parts(rows, batch) for part in feature_batches(self.rows.values[some], batch))

    def whole(self, trained: nn.Module) -> nn.Module:
        return trained


class Extractor:
    """A frozen backbone as a function from pictures to cached features."""

    def __init__(self, encoder: Encoder, card: ModelCard, data: DataSettings, device: torch.device, reporter: Reporter):
        self.card, self.data, self.device, self.reporter = card, data, device, reporter
        self.encoder = encoder.eval().requires_grad_(False)
        self.encoder = self.encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dim = encoder.dim
        self._quick: nn.Module | None = None
        self._making = threading.Lock()  # several threads ask for it

    def __call__(self, pixels: Tensor) -> Tensor:
        torch.set_num_threads(1)  # of this thread: several of them share the cores, each with a piece of its own
        with torch.inference_mode():
            features: Tensor = self.quick(pixels.to(self.device)).float()
        return features.cpu()

    @property
    def quick(self) -> nn.Module:
        """The encoder as it runs quickest; made when there is something to compute."""
        with self._making:
            if self._quick is None:
                like = self.card.preprocessing
                chance = torch.Generator().manual_seed(0)
                shape = (2, self.card.channels, like.size, like.size)
                example = torch.randint(256, shape, dtype=torch.uint8, generator=chance)
                self._quick = fold_batch_norm(self.encoder, example.to(self.device))
            return self._quick

    def features(self, images: Images, names: Sequence[str], flip: bool = True) -> np.ndarray:
        """Features (n, views, dim) of every picture, from the cache or now."""
        about: dict[str, Any] = {
            "backbone": self.card.backbone,
            "weights": self.card.weights,
            "preprocessing": asdict(self.card.preprocessing),
            "clean_detail": CLEAN_DETAIL,
        }
        data = self.data
        if set(names) != {"clean"}:
            chosen = ("crop", "crop_scale", "randaugment_n", "randaugment_m", "randaugment_jitter", "cutout")
            about |= {"augmentation": {name: getattr(data, name) for name in chosen} | {"flip": flip}}
        else:
            data = DataSettings(crop="pad", randaugment_n=0, cutout=0.0)  # no chance, the same whoever asks
        threads = torch.get_num_threads()
        on_cpu = self.device.type == "cpu"
        try:
            return extract_features(
                image_views(images, data, self.card, flip),
                names,
                self,
                dim=self.dim,
                about=about,
                root=cache_root(self.data.cache) / "features",
                seed=self.data.views_seed,
                dtype=self.data.cache_dtype,
                threads=threads if on_cpu else 4,
                batch=max(1, PIXELS_A_PASS // self.card.preprocessing.size**2) if on_cpu else 256,
                reporter=self.reporter,
            )
        finally:
            torch.set_num_threads(threads)


def image_views(images: Images, data: DataSettings, card: ModelCard, flip: bool, keep: bool = False) -> ImageViews:
    like = card.preprocessing
    return ImageViews(
        images, data, side=like.size, channels=card.channels, interpolation=like.interpolation, clean_crop=like.crop,
        flip=flip, keep=keep,
    )  # fmt: skip
