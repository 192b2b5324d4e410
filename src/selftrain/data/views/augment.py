"""Augmentation of images: every random choice is drawn first, per sample, and applied afterwards.

Knows nothing of datasets, views, methods or global random state: output is a pure function of images and parameters.

``draw`` uses a NumPy generator on the host and needs no image, so the parameters of a batch can be stored, replayed, or
split over ranks (``params[rows]``) without changing a pixel: a sample gives the same result alone and in a batch.
Batches are uint8 of shape (n, C, H, W), C = 1 or 3, on any device. Images of different sizes are cropped one at a time,
as PIL images, by ``ResizedCrop`` (training) and ``CentreResize`` (evaluation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from selftrain.data.views.randaugment import CPU_CHUNK, OPERATIONS, apply_operations, pick, spans, to_device
from selftrain.errors import UserError, nearest

AnyParams = TypeVar("AnyParams", bound="Params")
Box = tuple[float, float, float, float]  # left, upper, right, lower


@dataclass(frozen=True, eq=False)
class Params:
    """Random choices for n samples. Fields are arrays whose first dimension is n, or tuples of further ``Params``."""

    def __getitem__(self: AnyParams, rows: slice | np.ndarray) -> AnyParams:
        """Return the parameters of some samples; ``rows`` is a slice or an integer array."""
        values = [getattr(self, field.name) for field in fields(self)]
        return type(self)(
            *(tuple(v[rows] for v in value) if isinstance(value, tuple) else value[rows] for value in values)
        )


def join_params(parts: Sequence[AnyParams]) -> AnyParams:
    """Return parameters of the same kind as those of all their samples, one after the other."""
    first = parts[0]
    values = []
    for field in fields(first):
        own = [getattr(part, field.name) for part in parts]
        nested = isinstance(own[0], tuple)
        values.append(tuple(map(join_params, zip(*own, strict=True))) if nested else np.concatenate(own))
    return type(first)(*values)


ParamsT = TypeVar("ParamsT", bound=Params)


class Augmentation(Protocol[ParamsT]):
    """A random change of images in two steps."""

    def draw(self, n: int, rng: np.random.Generator) -> ParamsT:
        """Draw parameters for ``n`` samples, independent of their images and sizes."""

    def apply(self, images: Tensor, params: ParamsT) -> Tensor:
        """Return the changed images, of the same shape; ``images`` is not modified and no random number is used."""


@dataclass(frozen=True, eq=False)
class FlipParams(Params):
    flip: np.ndarray
    """(n,) bool."""


@dataclass(frozen=True)
class RandomFlip:
    """Mirror left and right."""

    p: float = 0.5
    """The probability of a flip."""

    def __post_init__(self) -> None:
        _check_range(self, "p", 0, 1)

    def draw(self, n: int, rng: np.random.Generator) -> FlipParams:
        return FlipParams(rng.random(n) < self.p)

    def apply(self, images: Tensor, params: FlipParams) -> Tensor:
        _check_batch(images, len(params.flip))
        flip = np.flatnonzero(params.flip)
        both = torch.cat([images, images.index_select(0, to_device(flip, images.device)).flip(-1)])
        source = np.arange(len(images))
        source[flip] = len(images) + np.arange(len(flip))
        return both.index_select(0, to_device(source, images.device))


@dataclass(frozen=True, eq=False)
class PlaceParams(Params):
    place: np.ndarray
    """(n, 2) in [0, 1): how far down and how far to the right."""


@dataclass(frozen=True)
class RandomCrop:
    """Shift by up to ``padding`` of each side, with reflection at the border (FixMatch's crop)."""

    padding: float = 0.125
    """The largest shift, as a share of the side."""

    def __post_init__(self) -> None:
        _check_range(self, "padding", 0, 0.5)

    def draw(self, n: int, rng: np.random.Generator) -> PlaceParams:
        return PlaceParams(rng.random((n, 2)))

    def apply(self, images: Tensor, params: PlaceParams) -> Tensor:
        _check_batch(images, len(params.place))
        height, width = images.shape[-2:]
        down = to_device(self._sources(params.place[:, 0], height) * width, images.device)
        across = to_device(self._sources(params.place[:, 1], width), images.device)
        output = torch.empty_like(images, memory_format=torch.contiguous_format)
        for rows in spans(images, 0, len(images), CPU_CHUNK):
            output[rows] = pick(images[rows], down[rows, :, None] + across[rows, None, :])
        return output

    def _sources(self, place: np.ndarray, side: int) -> np.ndarray:
        """Return which row (or column) of the image each row of the output shows, (n, side)."""
        padding = int(self.padding * side)
        shift = np.floor(place * (2 * padding + 1)).astype(np.int64) - padding
        source: np.ndarray = np.abs(np.arange(side) + shift[:, None])
        reflected: np.ndarray = np.minimum(source, 2 * (side - 1) - source)
        return reflected


@dataclass(frozen=True)
class Cutout:
    """Paint over a square. Its centre is any pixel of the image; parts outside are clipped."""

    side: float = 0.5
    """The side of the square, as a share of the shorter side of the image."""
    fill: int = 127
    """The grey level painted."""

    def __post_init__(self) -> None:
        _check_range(self, "side", 0, 1)
        _check_range(self, "fill", 0, 255)

    def draw(self, n: int, rng: np.random.Generator) -> PlaceParams:
        return PlaceParams(rng.random((n, 2)))

    def apply(self, images: Tensor, params: PlaceParams) -> Tensor:
        _check_batch(images, len(params.place))
        height, width = images.shape[-2:]
        square = round(self.side * min(height, width))
        down = to_device(_within(params.place[:, 0], height, square), images.device)
        across = to_device(_within(params.place[:, 1], width, square), images.device)
        hole = down[:, None, :, None] & across[:, None, None, :]
        return (images & ~hole) | (hole & self.fill)  # bit operations are faster than masked_fill


def _within(place: np.ndarray, side: int, length: int) -> np.ndarray:
    """Return 255 for positions within ``length`` pixels around the one at ``place``, else 0; (n, side) of uint8."""
    distance = np.arange(side) - (np.floor(place * side)[:, None] - length // 2)
    inside: np.ndarray = np.where((distance >= 0) & (distance < length), np.uint8(255), np.uint8(0))
    return inside


@dataclass(frozen=True, eq=False)
class RandAugmentParams(Params):
    operation: np.ndarray
    """(n, number of operations), positions in ``OPERATIONS``."""
    level: np.ndarray
    """The same shape, from 0 to 30."""
    negative: np.ndarray
    """The same shape, bool: the sign of operations that have one."""


@dataclass(frozen=True)
class RandAugment:
    """RandAugment (Cubuk et al., NeurIPS 2020) with torchvision's operations; every sample draws its own."""

    n: int = 2
    """The number of operations per sample, applied one after another."""
    m: float = 10
    """Their strength, on torchvision's scale from 0 to 30."""
    jitter: bool = False
    """Draw the strength uniformly from 0 to m, separately per sample and operation (as FixMatch does)."""

    def __post_init__(self) -> None:
        _check_range(self, "n", 0, math.inf)
        _check_range(self, "m", 0, 30)

    def draw(self, n: int, rng: np.random.Generator) -> RandAugmentParams:
        shape = (n, self.n)
        operation = rng.integers(len(OPERATIONS), size=shape)
        negative = rng.random(shape) < 0.5
        return RandAugmentParams(operation, self.m * (rng.random(shape) if self.jitter else np.ones(shape)), negative)

    def apply(self, images: Tensor, params: RandAugmentParams) -> Tensor:
        _check_batch(images, len(params.operation))
        strength = params.level / 30 * np.where(params.negative, -1, 1)
        return apply_operations(images, params.operation, strength)


@dataclass(frozen=True, eq=False)
class ComposeParams(Params):
    steps: tuple[Params, ...]


@dataclass(frozen=True)
class Compose:
    """One augmentation after another."""

    steps: tuple[Augmentation[Any], ...]

    def draw(self, n: int, rng: np.random.Generator) -> ComposeParams:
        return ComposeParams(tuple(step.draw(n, rng) for step in self.steps))

    def apply(self, images: Tensor, params: ComposeParams) -> Tensor:
        for step, drawn in zip(self.steps, params.steps, strict=True):
            images = step.apply(images, drawn)
        return images


@dataclass(frozen=True)
class ResizedCrop:
    """Crop a random area with a random aspect ratio and position, and resize it to a square in one pass."""

    size: int
    """The side of the output in pixels."""
    interpolation: str = "bilinear"
    """nearest, box, bilinear, hamming, bicubic or lanczos."""
    scale: tuple[float, float] = (0.2, 1.0)
    """The smallest and the largest area, as shares of the image's."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """The smallest and the largest width divided by height."""

    def __post_init__(self) -> None:
        _check_range(self, "size", 1, math.inf)
        _check_interpolation(self, self.interpolation)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UserError(f"{type(self).__name__}: scale is {self.scale}; expected 0 < smallest <= largest <= 1.")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise UserError(f"{type(self).__name__}: ratio is {self.ratio}; expected 0 < smallest <= largest.")

    @property
    def least_side(self) -> int:
        """The shorter side that an image needs for its smallest crop to be no smaller than the output."""
        narrowest = min(self.ratio[0], 1 / self.ratio[1])
        return math.ceil(self.size / math.sqrt(self.scale[0] * min(narrowest, 1)))

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw (n, 4) numbers in [0, 1) for area, ratio, down and right; ``box`` turns them into a crop."""
        return rng.random((n, 4))

    def box(self, width: int, height: int, params: np.ndarray) -> Box:
        """Return the crop in an image of ``width`` x ``height``, in fractions of a pixel and always inside.

        The area and the logarithm of the ratio are uniform over the pairs that fit. This is the distribution of
        rejection sampling, but without its loop: the area is drawn by its cumulative distribution, then the ratio among
        those that fit. If no pair fits, the largest crop of an allowed ratio is taken from the middle.
        """
        whole, least, greatest = (math.log(r) for r in (width / height, *self.ratio))
        largest = min(1.0, math.exp(greatest - whole), math.exp(whole - least))
        if largest < self.scale[0]:
            w, h = min(width, height * self.ratio[1]), min(height, width / self.ratio[0])
            return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2

        def ratios(share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # as high as the image; as wide as the image
            return np.maximum(least, whole + np.log(share)), np.minimum(greatest, whole - np.log(share))

        shares = np.linspace(self.scale[0], min(self.scale[1], largest), 65)
        low, high = ratios(shares)
        density = np.maximum(high - low, 0) + 1e-9  # never zero: a single allowed ratio leaves the area uniform
        cumulative = np.cumsum(np.append(0, density[1:] + density[:-1]))
        share = np.interp(params[0] * cumulative[-1], cumulative, shares)
        low, high = ratios(share)
        ratio = math.exp(low + params[1] * max(high - low, 0))
        w = min(math.sqrt(width * height * share * ratio), width)
        h = min(math.sqrt(width * height * share / ratio), height)
        left, upper = params[3] * (width - w), params[2] * (height - h)
        return left, upper, min(left + w, width), min(upper + h, height)

    def apply_one(self, image: PIL.Image.Image, params: np.ndarray) -> PIL.Image.Image:
        """Crop and resize one image with one row of ``draw``."""
        return _cut(image, self.box(image.width, image.height, params), self.size, self.interpolation)


@dataclass(frozen=True)
class CentreResize:
    """The evaluation view: short side to ``size / crop_share``, then the middle ``size`` x ``size``, in one pass."""

    size: int
    """The side of the output in pixels."""
    interpolation: str = "bilinear"
    """nearest, box, bilinear, hamming, bicubic or lanczos."""
    crop_share: float = 1.0
    """The share of the shorter side that is kept."""

    def __post_init__(self) -> None:
        _check_range(self, "size", 1, math.inf)
        _check_interpolation(self, self.interpolation)
        _check_range(self, "crop_share", 1e-3, 1)

    def __call__(self, image: PIL.Image.Image) -> PIL.Image.Image:
        side = min(image.size) * self.crop_share
        left, upper = (image.width - side) / 2, (image.height - side) / 2
        return _cut(image, (left, upper, left + side, upper + side), self.size, self.interpolation)


def _cut(image: PIL.Image.Image, box: Box, size: int, interpolation: str) -> PIL.Image.Image:
    # A much larger image is first reduced by an integer factor, to no less than twice the output size.
    method = PIL.Image.Resampling[interpolation.upper()]
    return image.resize((size, size), method, box=box, reducing_gap=2.0)


def _check_batch(images: Tensor, n: int) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        shape = tuple(images.shape)
        raise ValueError(f"images are {images.dtype} of shape {shape}; expected uint8 of shape (n, 1 or 3, H, W).")
    if len(images) != n:
        raise ValueError(f"{len(images)} images but parameters for {n} samples; select them with params[rows].")


def _check_range(owner: object, name: str, low: float, high: float) -> None:
    value = getattr(owner, name)
    if not low <= value <= high:
        bounds = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
        raise UserError(f"{type(owner).__name__}: {name} is {value}; expected a number {bounds}.")


def _check_interpolation(owner: object, value: str) -> None:
    known = [method.name.lower() for method in PIL.Image.Resampling]
    if value not in known:
        hint = nearest(value, known)
        raise UserError(f"{type(owner).__name__}: interpolation is {value!r}; expected {', '.join(known)}.{hint}")
