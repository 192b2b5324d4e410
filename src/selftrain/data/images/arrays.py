"""A sequence of images held in memory as one array.

Knows nothing of files, labels, classes, splits or training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from selftrain.data.images.content import digest
from selftrain.data.images.sequence import Images
from selftrain.errors import UserError


class ArrayImages(Images):
    """Images in memory.

    Parameters
    ----------
    array
        ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` with C = 1 or 3 (if both interpretations fit, channels come
        last), as uint8, or as floats from 0 to 1.
    names
        One per image; by default the positions, padded with zeros so that they sort.
    """

    pixels: NDArray[np.uint8]
    """``(N, C, H, W)``, contiguous: a batch can be gathered without creating image objects."""

    def __init__(self, array: ArrayLike, names: Sequence[str] | None = None) -> None:
        values = np.asarray(array)
        self.pixels = _channels_first(values)
        count = len(self.pixels)
        if names is None:
            width = len(str(max(count - 1, 0)))
            names = [f"{i:0{width}d}" for i in range(count)]
        self.names = list(names)
        if len(self.names) != count:
            raise UserError(f"{len(self.names)} names for {count} images: give one name per image.")
        if len(set(self.names)) != count:
            raise UserError("two images have the same name: give each image a unique name.")

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        if mode not in ("RGB", "L"):
            raise ValueError(f"mode must be 'RGB' or 'L', not {mode!r}")
        pixels = self.pixels[i]
        grey = len(pixels) == 1
        image = Image.fromarray(pixels[0] if grey else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        return image if image.mode == mode else image.convert(mode)

    def check(self, i: int, full: bool = True) -> None:
        pass  # checked by the constructor

    def content(self, i: int) -> bytes:
        return digest(b"pixels", repr(self.pixels.shape[1:]).encode(), np.ascontiguousarray(self.pixels[i]).data)

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield repr(self.pixels.shape).encode()
        yield self.pixels.tobytes()

    def subset(self, indices: ArrayLike) -> ArrayImages:
        positions = self._positions(indices)
        everything = np.array_equal(positions, np.arange(len(self)))
        part = ArrayImages.__new__(ArrayImages)
        part.pixels = self.pixels if everything else self.pixels[positions]
        part.names = self.names if everything else [self.names[i] for i in positions.tolist()]
        return part


def _channels_first(values: NDArray[Any]) -> NDArray[np.uint8]:
    found = f"got shape {values.shape}, {values.dtype}"
    if values.ndim == 3 and values.shape[2] in (3, 4) and min(values.shape[:2]) > 4:
        raise UserError(f"images: this looks like a single colour image ({found}); pass x[None], an array of images.")
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    elif values.ndim != 4 or values.shape[1] not in (1, 3):
        raise UserError(f"images must be (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3; {found}.")
    if 0 in values.shape[1:]:
        raise UserError(f"images must be at least one pixel high and wide; {found}.")
    if values.dtype == np.uint8:
        return np.require(values, requirements=["C", "W"])  # tensors can share only writable memory
    if not np.issubdtype(values.dtype, np.floating):
        raise UserError(f"images must be uint8 (0 to 255) or floats from 0 to 1; {found}.")
    pixels = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), 1024):  # in pieces: no second copy of a large array in floats
        part = values[start : start + 1024].astype(np.float64)
        low, high = float(part.min()), float(part.max())
        if not (low >= 0 and high <= 1):  # also false for NaN
            hint = ' Features need `backbone="features"`.' if values.shape[1] == 1 else ""
            raise UserError(
                f"float images must lie between 0 and 1, these range from {low:g} to {high:g}; scale them, or give "
                f"uint8 from 0 to 255; {found}.{hint}"
            )
        pixels[start : start + 1024] = np.rint(part * 255)
    return pixels
