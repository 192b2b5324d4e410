"""Views of images whose features are stored: each depends on the image, the name of the view and a seed, on no other.

Knows nothing of features, methods or where images are. Other images and views made at the same time change nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from torch import Tensor

from selftrain.batch import kind_of
from selftrain.config.settings import DataSettings
from selftrain.data.images import Images
from selftrain.data.images.content import Digests
from selftrain.data.views.augment import (
    Augmentation,
    CentreResize,
    Compose,
    ComposeParams,
    Cutout,
    RandAugment,
    RandomCrop,
    RandomFlip,
    ResizedCrop,
    join_params,
)
from selftrain.data.views.image_views import CLEAN_DETAIL, stack_images

VERSION = 2
"""of how views are made; features of other versions are not used"""


@dataclass(frozen=True)
class ContentViews:
    """Clean, mirrored, weak and strong views of images, as a frozen backbone sees them."""

    images: Images
    data: DataSettings
    side: int
    channels: int
    interpolation: str
    flip: bool
    crop: float = 1.0
    """share of the shorter side that the clean view shows"""
    zoom: float = 0.0
    """share of that crop which a second, smaller one shows; 0: none"""

    def __len__(self) -> int:
        return len(self.images)

    def spec(self, name: str) -> dict[str, Any]:
        """Return everything that a view depends on, apart from the image."""
        data, kind = self.data, kind_of(name)
        about: dict[str, Any] = {"view": name, "version": VERSION, "least_side": self._least_side(kind)}
        if kind in ("clean", "mirrored"):
            return about | {"crop": self.crop, "zoom": self.zoom if kind == "clean" else 0.0}
        about |= {"seed": data.views_seed, "flip": self.flip}
        about |= {"crop_scale": data.crop_scale} if data.crop == "resized" else {"padded": True, "crop": self.crop}
        if kind == "strong":
            operations = (data.randaugment_n, data.randaugment_m, data.randaugment_jitter)
            about |= {"randaugment": list(operations), "cutout": data.cutout}
        return about

    def make(self, rows: NDArray[np.int64], names: Sequence[str], contents: Digests) -> list[Tensor]:
        """Return for each view its crops, uint8 (rows, crops, C, side, side); features are their mean."""
        mode = "L" if self.channels == 1 else "RGB"
        made: dict[str, Tensor] = {}
        for least in sorted({self._least_side(kind_of(name)) for name in names}):
            originals = [self.images.load(int(row), mode, min_side=least) for row in rows]
            for name in names:
                if self._least_side(kind_of(name)) == least:
                    made[name] = self._one(originals, name, contents)
        return [made[name] for name in names]

    def _one(self, originals: list[PIL.Image.Image], name: str, contents: Digests) -> Tensor:
        kind = kind_of(name)
        if kind == "clean" and self.zoom:
            both = [cut(image) for image in originals for cut in (self._centre, self._inner)]
            pairs = stack_images(both)
            return pairs.view(len(originals), 2, *pairs.shape[1:])
        if kind in ("clean", "mirrored"):
            pixels = stack_images([self._centre(image) for image in originals])
            return (pixels.flip(-1) if kind == "mirrored" else pixels)[:, None]
        drawn = [self._draw(kind, self._generator(name, content)) for content in contents]
        if self._resized is None:
            start = stack_images([self._centre(image) for image in originals])
        else:
            crops = [self._resized.apply_one(image, crop) for image, (crop, _) in zip(originals, drawn, strict=True)]
            start = stack_images(crops)
        return self._augmentations[kind].apply(start, join_params([params for _, params in drawn]))[:, None]

    def _generator(self, name: str, content: NDArray[np.uint64]) -> np.random.Generator:
        return np.random.default_rng([self.data.views_seed, zlib.crc32(name.encode()), *content.tolist()])

    def _draw(self, kind: str, rng: np.random.Generator) -> tuple[NDArray[Any], ComposeParams]:
        crop = np.empty(4) if self._resized is None else self._resized.draw(1, rng)[0]
        return crop, self._augmentations[kind].draw(1, rng)

    def _least_side(self, kind: str) -> int:
        """Return the shorter side at which a large JPEG is decoded at least; the same for clean and random views
        if the default settings are used, so that one decoding serves them all."""
        zoomed = self.zoom if kind != "mirrored" and self.zoom else 1.0
        detail = math.ceil(CLEAN_DETAIL * self.side / (self.crop * zoomed))
        random = kind in ("weak", "strong") and self._resized is not None
        return max(detail, self._resized.least_side) if random and self._resized else detail

    @cached_property
    def _centre(self) -> CentreResize:
        return CentreResize(self.side, self.interpolation, self.crop)

    @cached_property
    def _inner(self) -> CentreResize:
        return CentreResize(self.side, self.interpolation, self.crop * self.zoom)

    @cached_property
    def _resized(self) -> ResizedCrop | None:
        if self.data.crop != "resized":
            return None
        return ResizedCrop(self.side, self.interpolation, (self.data.crop_scale, 1.0))

    @cached_property
    def _augmentations(self) -> dict[str, Compose]:
        data = self.data
        moves: list[Augmentation[Any]] = [] if self._resized else [RandomCrop()]
        if self.flip:
            moves.append(RandomFlip())
        colours: list[Augmentation[Any]] = []
        if data.randaugment_n:
            colours.append(RandAugment(data.randaugment_n, data.randaugment_m, data.randaugment_jitter))
        if data.cutout:
            colours.append(Cutout(data.cutout))
        return {"weak": Compose(tuple(moves)), "strong": Compose((*moves, *colours))}
