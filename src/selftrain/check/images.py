"""Images that are too small, too large, very wide or high, or nearly of one colour.

Knows nothing of labels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selftrain.check.findings import Finding
from selftrain.check.pool import Pool
from selftrain.data.images import EncodedImages, Images, JoinedImages
from selftrain.data.images.decode import UnreadableImage, opened

ENLARGED = 2.0
"""an image is too small if it is enlarged by more than this"""
MOST_PIXELS = 50_000_000
LONGEST = 3.0
"""longer side divided by the shorter one: the central crop shows no more than a third of the image"""
FLAT = 3.0
"""standard deviation of the colours of an image of one colour"""
MOST_NAMED = 12


def sizes_of(images: Images) -> NDArray[np.int64]:
    """Return the width and height (n, 2) of every image, from its header; zeros if they cannot be read."""
    sizes = np.zeros((len(images), 2), np.int64)
    if isinstance(images, JoinedImages):
        for piece, places in images.pieces():
            sizes[places] = sizes_of(piece)
        return sizes
    for i in range(len(images)):
        try:
            if isinstance(images, EncodedImages):
                with opened(images.source(i), images.where(i)) as image:
                    sizes[i] = image.size
            else:
                sizes[i] = images.load(i).size
        except UnreadableImage:
            continue
    return sizes


def find_odd_images(pool: Pool, side: int) -> list[Finding]:
    """Return findings about the sizes and colours of images, one of each kind with all its images."""
    sizes = sizes_of(pool.images)
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    known = short > 0
    flat = pool.thumbnails.astype(np.float32).std(axis=1) < FLAT
    kinds = (
        (
            known & (short * ENLARGED < side),
            f"smaller than {side / ENLARGED:.0f} px, so that they are enlarged to {side} px",
        ),
        (known & (sizes.prod(axis=1) > MOST_PIXELS), "larger than 50 million pixels, which are slow to read"),
        (known & (long > LONGEST * short), "more than three times as long as wide: most of them is cut off"),
        (flat, "nearly of one colour"),
    )
    findings = []
    for mask, words in kinds:
        rows = np.flatnonzero(mask)
        if len(rows):
            shown = rows[:MOST_NAMED].tolist()
            findings.append(
                Finding(
                    "image",
                    "note",
                    f"{len(rows)} of {len(pool)} images are {words}",
                    tuple(pool.images.names[i] for i in rows.tolist()),
                    tuple(shown),
                    tuple(f"{sizes[i, 0]} x {sizes[i, 1]}" for i in shown),
                    {"count": len(rows)},
                )
            )
    return findings
