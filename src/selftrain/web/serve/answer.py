"""What a served model says about one image, and the bytes that it accepts as an image.

Knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from selftrain.data.images import Images, UnreadableImage, read_image

Array = NDArray[Any]
MOST_PIXELS = 50_000_000
UNKNOWN = 0.5
"""an image with a higher novelty looks like none of the classes"""


class Labeled(NamedTuple):
    """The labeled training images that a run folder holds."""

    images: Images
    labels: list[str]
    unit: Array
    """(n, 256) projected features of unit length, see ``selftrain.runs.seen``"""


class Served(Protocol):
    """A model that answers for the bytes of an image."""

    name: str
    classes: list[str]
    labeled: Labeled | None
    """training images to show beside an answer"""

    def answer(self, content: bytes) -> dict[str, Any]:
        """Return the answer, as the schema describes it; UnreadableImage if the bytes are no image."""


def as_answer(classes: Sequence[str], p: Array, novelty: float | None, nearest: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an answer from the probabilities (K,) of an image."""
    order = np.argsort(-p, kind="stable")
    unknown = novelty is not None and novelty > UNKNOWN
    return {
        "label": None if unknown else classes[order[0]],
        "guess": classes[order[0]],
        "confidence": round(float(p[order[0]]), 6),
        "unknown": unknown,
        "novelty": None if novelty is None else round(novelty, 6),
        "probabilities": {classes[k]: round(float(p[k]), 6) for k in order.tolist()},
        "nearest": nearest,
    }


def opened_image(content: bytes, least_side: int | None = None) -> Image:
    """Return the pixels of an image; its header is looked at first, so that a bomb is never unpacked.

    ``least_side`` is the shorter side at which a larger JPEG may be decoded.
    """
    from selftrain.data.images.decode import opened

    if not content:
        raise UnreadableImage("image", "it is empty (0 bytes)")
    with opened(content, "image") as header:
        width, height = header.size
    if width * height > MOST_PIXELS:
        raise UnreadableImage("image", f"it has {width * height:,} pixels, more than {MOST_PIXELS:,}")
    return read_image(content, "RGB", least_side, "image")
