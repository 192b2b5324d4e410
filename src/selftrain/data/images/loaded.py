"""Pillow images in memory, of any size and mode, as a sequence of images.

Knows nothing of files, labels or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from selftrain.data.images.content import digest
from selftrain.data.images.decode import as_pixels
from selftrain.data.images.sequence import Images


class LoadedImages(Images):
    """Images that the user has opened or made with Pillow; they are left as they are."""

    def __init__(self, images: Sequence[Image.Image], names: Sequence[str] | None = None) -> None:
        self.images = list(images)
        self.names = [str(i) for i in range(len(self.images))] if names is None else list(names)

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        return as_pixels(self.images[i], mode)

    def check(self, i: int, full: bool = True) -> None:
        self.images[i].load()

    def content(self, i: int) -> bytes:
        pixels = np.asarray(as_pixels(self.images[i], "RGB"))
        return digest(b"pixels", repr(pixels.shape).encode(), np.ascontiguousarray(pixels).data)

    def subset(self, indices: ArrayLike) -> LoadedImages:
        rows = self._positions(indices).tolist()
        return LoadedImages([self.images[i] for i in rows], [self.names[i] for i in rows])
