"""Thumbnails of images, cached: a cheap answer to which images look alike.

Knows nothing of classes, splits or backbones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows
from selftrain.data.features.store import cached_array
from selftrain.data.images import Images, JoinedImages, fingerprint
from selftrain.errors import UserError

SIDE, PIECE = 16, 256


def thumbnails(images: Images, root: Path, reporter: Reporter | None = None) -> NDArray[np.uint8]:
    """Return every image as SIDE x SIDE colours, (n, 3 SIDE^2), cached under ``root``."""
    if isinstance(images, FeatureRows):
        raise UserError("`data.label_modes`: features have no pixels; images are needed to find those that look alike.")
    if isinstance(images, JoinedImages):
        joined = np.empty((len(images), 3 * SIDE**2), np.uint8)
        for piece, places in images.pieces():
            joined[places] = thumbnails(piece, root, reporter)
        return joined

    def compute(start: int, stop: int) -> NDArray[np.uint8]:
        small = [
            images.load(i, min_side=2 * SIDE).resize((SIDE, SIDE), Image.Resampling.BOX) for i in range(start, stop)
        ]
        return np.stack([np.asarray(image) for image in small]).reshape(stop - start, -1)

    return cached_array(
        root,
        {"backbone": "thumbnails", "preprocessing": {"size": SIDE}, "images": fingerprint(images)},
        (len(images), 3 * SIDE**2),
        "uint8",
        compute,
        piece=PIECE,
        reporter=reporter,
        what="making thumbnails",
        unit="images",
    )
