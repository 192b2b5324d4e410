"""Weak, strong and clean views of images, each a uint8 batch (B, C, side, side).

Knows nothing of labels, splits or methods: it turns rows and view names into tensors, with the given random generator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from selftrain.batch import kind_of
from selftrain.config.settings import DataSettings
from selftrain.data.images import ArrayImages, Images
from selftrain.data.views.augment import (
    Augmentation,
    CentreResize,
    Compose,
    Cutout,
    RandAugment,
    RandomCrop,
    RandomFlip,
    ResizedCrop,
)

CLEAN_DETAIL = 2
"""A large JPEG is decoded at no less than this many times the side of a clean view. The final resizing then dominates,
and the same image from an array or a PNG file looks the same."""


class ViewMaker(Protocol):
    """Makes views of a set of samples: of images here, of features elsewhere."""

    def __len__(self) -> int: ...

    def make(
        self, rows: np.ndarray, names: Sequence[str], rng: np.random.Generator, mine: slice = ...
    ) -> dict[str, Tensor]:
        """Return views of ``rows[mine]``; random numbers are drawn for all ``rows``, so ranks share the same batch."""


class ImageViews:
    """Views of images: weak (crop, flip), strong (RandAugment and cutout on top), clean (the centre square)."""

    def __init__(
        self,
        images: Images,
        data: DataSettings,
        *,
        side: int,
        channels: int,
        interpolation: str,
        flip: bool,
        clean_crop: float = 1.0,
        keep: bool = False,
    ):
        self.images = images
        self.keep = keep  # read every file once, for the first batch, and hold the images in memory
        self.mode = "L" if channels == 1 else "RGB"
        self.clean_one = CentreResize(side, interpolation, clean_crop)
        # Images in memory are resized once, unless a random resized crop needs the originals.
        self.resized = ResizedCrop(side, interpolation, (data.crop_scale, 1.0)) if data.crop == "resized" else None
        self.pixels = None
        if self.resized is None and isinstance(images, ArrayImages):
            self.pixels = self._whole(images, side)
        moves: list[Augmentation[Any]] = [] if self.resized else [RandomCrop()]
        if flip:
            moves.append(RandomFlip())
        colours: list[Augmentation[Any]] = []
        if data.randaugment_n:
            colours.append(RandAugment(data.randaugment_n, data.randaugment_m, data.randaugment_jitter))
        if data.cutout:
            colours.append(Cutout(data.cutout))
        self.augmentations = {
            "clean": Compose(()),
            "weak": Compose(tuple(moves)),
            "strong": Compose((*moves, *colours)),
        }

    def __len__(self) -> int:
        return len(self.images)

    def make(
        self, rows: np.ndarray, names: Sequence[str], rng: np.random.Generator, mine: slice = slice(None)
    ) -> dict[str, Tensor]:
        if not names:
            return {}
        drawn = {}
        for name in names:
            crops = self.resized.draw(len(rows), rng)[mine] if self.resized and kind_of(name) != "clean" else None
            drawn[name] = (crops, self.augmentations[kind_of(name)].draw(len(rows), rng)[mine])
        rows = rows[mine]
        starts = {}
        if self.resized is not None and len(rows):
            starts = self._cropped(self.resized, rows, {name: crops for name, (crops, _) in drawn.items()})
        whole = None if starts else self._clean(rows)
        views = {}
        for name, (_, params) in drawn.items():
            start = starts[name] if whole is None else whole
            views[name] = self.augmentations[kind_of(name)].apply(start, params)
        return views

    def _cropped(self, resized: ResizedCrop, rows: np.ndarray, crops: dict[str, Any]) -> dict[str, Tensor]:
        """Return the crops of every image by view; one image at a time is in memory as a whole.

        Images are decoded no larger than the smallest crop or the clean view needs.
        """
        least = max(resized.least_side, _detail(self.clean_one) if "clean" in crops else 0)
        found: dict[str, list[PIL.Image.Image]] = {name: [] for name in crops}
        for i, row in enumerate(rows.tolist()):
            image = self.images.load(row, self.mode, min_side=least)
            for name, drawn in crops.items():
                found[name].append(self.clean_one(image) if drawn is None else resized.apply_one(image, drawn[i]))
        return {name: stack_images(images) for name, images in found.items()}

    def _clean(self, rows: np.ndarray) -> Tensor:
        if self.pixels is None and self.keep:
            like = self.clean_one
            channels = 1 if self.mode == "L" else 3
            whole = clean_batches(self.images, 256, like.size, channels, like.interpolation, like.crop_share)
            self.pixels = torch.cat(list(whole))
        if self.pixels is not None:
            return self.pixels[torch.from_numpy(rows)]
        least = _detail(self.clean_one)
        return stack_images([self.clean_one(self.images.load(int(row), self.mode, min_side=least)) for row in rows])

    def _whole(self, images: ArrayImages, side: int) -> Tensor:
        pixels = torch.from_numpy(images.pixels)
        if self.mode == "RGB" and pixels.shape[1] == 1:
            pixels = pixels.expand(-1, 3, -1, -1)
        as_they_are = pixels.shape[2:] == (side, side) and self.clean_one.crop_share == 1
        if pixels.shape[1] == (1 if self.mode == "L" else 3) and as_they_are:
            return pixels.contiguous()
        return stack_images([self.clean_one(images.load(i, self.mode)) for i in range(len(images))])


def clean_batches(
    images: Images, batch: int, side: int, channels: int, interpolation: str, crop: float = 1.0, threads: int = 2
) -> Iterator[Tensor]:
    """Yield the clean view of every image, in order, decoded a batch ahead in threads."""
    resize = CentreResize(side, interpolation, crop)
    mode = "L" if channels == 1 else "RGB"

    def load(row: int) -> PIL.Image.Image:
        return resize(images.load(row, mode, min_side=_detail(resize)))

    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[list[Future[PIL.Image.Image]]] = deque()
        for start in range(0, len(images), batch):
            ahead.append([pool.submit(load, row) for row in range(start, min(start + batch, len(images)))])
            if len(ahead) > 1:
                yield stack_images([future.result() for future in ahead.popleft()])
        while ahead:
            yield stack_images([future.result() for future in ahead.popleft()])


def _detail(clean: CentreResize) -> int:
    """Return the smallest shorter side that an image may be decoded at."""
    return math.ceil(CLEAN_DETAIL * clean.size / clean.crop_share)


def stack_images(images: list[PIL.Image.Image]) -> Tensor:
    """Return PIL images of one size as a uint8 batch (B, C, side, side)."""
    arrays = np.stack([np.asarray(image) for image in images])
    arrays = arrays[:, None] if arrays.ndim == 3 else arrays.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(arrays))
