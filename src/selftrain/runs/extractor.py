"""A frozen backbone as a function from images to stored features.

Knows nothing of methods or training; views are made and features stored by ``selftrain.data``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selftrain.config.settings import DataSettings
from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.features.extract import extract_features
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images import Images
from selftrain.data.views.content_views import ContentViews
from selftrain.data.views.image_views import ImageViews
from selftrain.nn.fold import fold_batch_norm, folding_of
from selftrain.nn.layers import Encoder
from selftrain.runs.model import ModelCard, weights_hash

PIXELS_PER_PASS = 1 << 17  # on a CPU, small passes keep activations in the cache: 8 images of 128 x 128
Features = NDArray[Any] | StoredFeatures
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
        """Return the features (n, views, dim) of the named views of every image; only those not stored are computed.

        Features belong to the content of an image: names, folders and other images of the list do not matter. Without
        ``store``, all features are computed now, and none are stored.
        """
        like, on_cpu = self.card.preprocessing, self.device.type == "cpu"
        zoom = 0.0 if "mirrored" in names else like.zoom  # a mirror image is compared with the same crop
        threads = torch.get_num_threads()
        try:
            return extract_features(
                ContentViews(
                    images, self.data, like.size, self.card.channels, like.interpolation, flip, like.crop, zoom
                ),
                names,
                self,
                dim=self.dim,
                about=self.about,
                root=cache_root(self.data.cache) if store else None,
                dtype=self.data.cache_dtype,
                threads=threads if on_cpu else 4,
                batch=max(1, PIXELS_PER_PASS // like.size**2) if on_cpu else 256,
                reporter=self.reporter,
            )
        finally:
            torch.set_num_threads(threads)

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything that features depend on besides the image and the view.

        The hash is that of the weights in memory, not one that a model's card claims.
        """
        like = self.card.preprocessing
        return {
            "backbone": self.card.backbone,
            "weights": weights_hash(self.encoder.backbone),
            "size": like.size,
            "channels": self.card.channels,
            "mean": list(like.mean),
            "std": list(like.std),
            "interpolation": like.interpolation,
            "engine": f"torch {torch.__version__}",
            "folding": folding_of(self.folded),
        }


def image_views(images: Images, data: DataSettings, card: ModelCard, flip: bool, keep: bool = False) -> ImageViews:
    """Return the views of images as the model's preprocessing asks for them."""
    like = card.preprocessing
    return ImageViews(
        images, data, side=like.size, channels=card.channels, interpolation=like.interpolation, clean_crop=like.crop,
        flip=flip, keep=keep,
    )  # fmt: skip
