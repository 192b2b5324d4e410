"""A frozen backbone as a function from images to stored features.

Knows nothing of methods or training; views are made and features stored by ``selftrain.data``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selftrain.config.settings import DataSettings
from selftrain.console import Reporter
from selftrain.data.features.extract import extract_features
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.store import cache_root
from selftrain.data.images import Images, JoinedImages
from selftrain.data.views.image_views import CLEAN_DETAIL, ImageViews
from selftrain.nn.fold import fold_batch_norm
from selftrain.nn.layers import Encoder
from selftrain.runs.model import ModelCard

PIXELS_PER_PASS = 1 << 17  # on a CPU, small passes keep activations in the cache: 8 images of 128 x 128
Features = NDArray[Any] | JoinedFeatures
AUGMENTATION = ("crop", "crop_scale", "randaugment_n", "randaugment_m", "randaugment_jitter", "cutout")


class Extractor:
    """Features of images by a frozen backbone, from the store on disk or computed now."""

    def __init__(self, encoder: Encoder, card: ModelCard, data: DataSettings, device: torch.device, reporter: Reporter):
        self.card, self.data, self.device, self.reporter = card, data, device, reporter
        self.encoder = encoder.eval().requires_grad_(False)
        self.encoder = self.encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dim = encoder.dim
        self._folded: nn.Module | None = None
        self._folding = threading.Lock()  # several threads ask for it

    def __call__(self, pixels: Tensor) -> Tensor:
        torch.set_num_threads(1)  # for this thread: several threads share the cores, each with a batch of its own
        with torch.inference_mode():
            features: Tensor = self.folded(pixels.to(self.device)).float()
        return features.cpu()

    @property
    def folded(self) -> nn.Module:
        """The encoder in its fastest form, made when there is something to compute."""
        with self._folding:
            if self._folded is None:
                like = self.card.preprocessing
                generator = torch.Generator().manual_seed(0)
                shape = (2, self.card.channels, like.size, like.size)
                example = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
                self._folded = fold_batch_norm(self.encoder, example.to(self.device))
            return self._folded

    def features(self, images: Images, names: Sequence[str], flip: bool = True, *, store: bool = True) -> Features:
        """Return the features (n, views, dim) of the named views of every image.

        Each part of joined images has a cache of its own, so adding images recomputes nothing for the others. Without
        ``store``, all features are computed now, and none are stored.
        """
        if isinstance(images, JoinedImages):
            pieces = [(self._extracted(piece, names, flip, store), places) for piece, places in images.pieces()]
            return JoinedFeatures.of(pieces)
        return self._extracted(images, names, flip, store)

    def _extracted(self, images: Images, names: Sequence[str], flip: bool, store: bool) -> NDArray[Any]:
        preprocessing = asdict(self.card.preprocessing)
        zoom = preprocessing.pop("zoom")
        if "clean" not in names or "mirrored" in names:  # a mirror image is compared with the same crop
            zoom = 0.0
        about: dict[str, Any] = {
            "backbone": self.card.backbone,
            "weights": self.card.weights,
            "preprocessing": preprocessing | ({"zoom": zoom} if zoom else {}),
            "clean_detail": CLEAN_DETAIL,
        }
        data = self.data
        if not set(names) <= {"clean", "mirrored"}:
            about |= {"augmentation": {name: getattr(data, name) for name in AUGMENTATION} | {"flip": flip}}
        else:
            data = DataSettings(crop="pad", randaugment_n=0, cutout=0.0)  # nothing random: the same for every run
        threads = torch.get_num_threads()
        on_cpu = self.device.type == "cpu"
        try:
            return extract_features(
                image_views(images, data, self.card, flip),
                names,
                self,
                dim=self.dim,
                about=about,
                root=cache_root(self.data.cache) / "features" if store else None,
                seed=self.data.views_seed,
                zoom=zoom > 0,
                dtype=self.data.cache_dtype,
                threads=threads if on_cpu else 4,
                batch=max(1, PIXELS_PER_PASS // self.card.preprocessing.size**2) if on_cpu else 256,
                reporter=self.reporter,
            )
        finally:
            torch.set_num_threads(threads)


def image_views(images: Images, data: DataSettings, card: ModelCard, flip: bool, keep: bool = False) -> ImageViews:
    """Return the views of images as the model's preprocessing asks for them."""
    like = card.preprocessing
    return ImageViews(
        images, data, side=like.size, channels=card.channels, interpolation=like.interpolation, clean_crop=like.crop,
        clean_zoom=like.zoom, flip=flip, keep=keep,
    )  # fmt: skip
