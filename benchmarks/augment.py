"""Batched augmentation against torchvision's, which works image by image, on one thread.

Knows nothing of training or decoding: on both sides the images are in memory.

    python -m benchmarks --only augment
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.v2.functional import to_pil_image

from benchmarks.problems import synthetic_images
from benchmarks.ratios import CLOCK, Row, take_turns
from selftrain.data.views.augment import Augmentation, Compose, RandAugment, RandomCrop, RandomFlip

# side, images per batch, how many times faster it must be
CASES = [(32, 448, 10.0), (224, 64, 1.1)]


def compare(name: str, images: Tensor, ours: Augmentation[Any], theirs: Callable[[Any], Any], bar: float) -> Row:
    """Time both in turns, with new random draws in each round."""
    rng = np.random.default_rng(0)
    each = [to_pil_image(image) for image in images]
    work: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.apply(images, ours.draw(len(images), rng)),
        "torchvision": lambda: [theirs(image) for image in each],
    }
    times = take_turns(work, CLOCK.rounds(15, 5), threads=1)
    speed = len(images) / np.median(times.seconds["ours"])
    return times.gain(
        f"torchvision / ours, {name} at {images.shape[-1]} px ({speed:,.0f}/s)", "ours", "torchvision", bar
    )


def both(side: int, batch: int, bar: float) -> list[Row]:
    """Compare RandAugment alone (PIL to PIL) and a whole strong view (PIL to tensor), two operations of level 10."""
    images = torch.from_numpy(synthetic_images(batch, side))
    randaugment = transforms.RandAugment(num_ops=2, magnitude=10)
    crop = transforms.RandomCrop(side, padding=side // 8, padding_mode="reflect")
    strong = transforms.Compose([transforms.RandomHorizontalFlip(), crop, randaugment, transforms.PILToTensor()])
    whole = Compose((RandomFlip(), RandomCrop(), RandAugment()))
    return [
        compare("RandAugment", images, RandAugment(), randaugment, bar),
        compare("flip, crop, RandAugment", images, whole, strong, bar),
    ]


def rows() -> list[Row]:
    return [row for case in CASES for row in both(*case)]
