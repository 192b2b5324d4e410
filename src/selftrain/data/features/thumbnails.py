"""Thumbnails of images, cached: a cheap answer to which images look alike.

Knows nothing of classes, splits or backbones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from selftrain.console import Reporter
from selftrain.data.features.collection import Collection
from selftrain.data.features.rows import FeatureRows
from selftrain.data.features.store import FEATURES, stored_vectors
from selftrain.data.images import Images
from selftrain.data.images.memory import Memory
from selftrain.errors import UserError

SIDE, PIECE = 16, 256


def thumbnails(images: Images, root: Path, reporter: Reporter | None = None, *, detail: int = 2) -> NDArray[np.uint8]:
    """Return every image as SIDE x SIDE colours, (n, 3 SIDE^2), cached in the folder ``root``.

    Large JPEGs are decoded at a fraction of their size, down to ``detail`` times SIDE. With little detail, copies of an
    image in other sizes have somewhat different colours, because fractions are rounded to whole pixels.
    """
    if isinstance(images, FeatureRows):
        raise UserError("`data.label_modes`: features have no pixels; images are needed to find those that look alike.")

    def compute(rows: NDArray[np.int64], _: Sequence[int]) -> NDArray[np.uint8]:
        small = [
            images.load(i, min_side=detail * SIDE).resize((SIDE, SIDE), Image.Resampling.BOX) for i in rows.tolist()
        ]
        return np.stack([np.asarray(image) for image in small]).reshape(len(rows), 1, -1)

    about = {"backbone": "thumbnails", "size": SIDE, **({} if detail == 2 else {"detail": detail})}
    collection = Collection(root / FEATURES, about, 3 * SIDE**2, np.dtype("uint8"))
    found = stored_vectors(
        collection, Memory(root).contents(images), [{"view": "thumbnail"}], compute, piece=PIECE, reporter=reporter,
        what="making thumbnails",
    )  # fmt: skip
    whole: NDArray[np.uint8] = found[:][:, 0]
    return whole
