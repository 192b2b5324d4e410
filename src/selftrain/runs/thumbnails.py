"""Small copies of the images of a run that are worth looking at, and of labeled ones, kept in its folder.

Reports and served models open nothing outside a run folder, so the images that they show have to be in it. Knows
nothing of how images are chosen; see ``selftrain.runs.notable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from selftrain.data.features.rows import FeatureRows
from selftrain.data.images import EncodedImages, Images
from selftrain.data.images.thumbnail import thumbnail_jpeg
from selftrain.errors import UserError
from selftrain.runs.image_outputs import sampled
from selftrain.runs.layout import Arrays
from selftrain.runs.notable import notable
from selftrain.runs.training import Training

SIDE = 144
"""longest side in pixels"""
LABELED = "labeled_"
"""begins the names of the arrays of labeled images"""
MOST_LABELED = 500
"""of which so many are kept"""


class StoredThumbnails(EncodedImages):
    """Image files in memory, by name."""

    def __init__(self, names: Sequence[str], files: Sequence[bytes]):
        self.names, self.files = list(names), list(files)

    @classmethod
    def read(cls, arrays: Arrays, kind: str = "") -> StoredThumbnails:
        """Return the images of ``thumbnails.npz``; a UserError if they are not stored as training stores them.

        ``kind`` is ``LABELED`` for those of labeled images.
        """
        names, ends, data = (arrays.get(f"{kind}{name}") for name in ("names", "ends", "jpeg"))
        if (
            names is None or ends is None or data is None or names.ndim != 1 or names.shape != ends.shape
            or names.dtype.kind != "U" or ends.dtype.kind not in "iu" or data.dtype != np.uint8 or data.ndim != 1
        ):  # fmt: skip
            raise UserError("thumbnails.npz: must hold the arrays names, ends and jpeg, as training writes them.")
        places = [0, *ends.tolist()]
        return cls(names.tolist(), [data[a:b].tobytes() for a, b in pairwise(places)])

    def source(self, i: int) -> bytes:
        return self.files[i]

    def subset(self, indices: ArrayLike) -> StoredThumbnails:
        rows = self._positions(indices).tolist()
        return StoredThumbnails([self.names[i] for i in rows], [self.files[i] for i in rows])


def run_thumbnails(training: Training, outputs: Arrays) -> Arrays:
    """Return the arrays of ``thumbnails.npz`` for a finished run; none for features, which have no pixels."""
    corpus, split, tested = training.problem.corpus, training.problem.split, training.evaluated.images
    if isinstance(corpus.images, FeatureRows):
        return {}
    chosen = notable(outputs, {corpus.images.names[i] for i in split.labeled})
    pool = split.unlabeled[sampled(len(split.unlabeled))]
    shown = [(corpus.images, int(pool[i])) for i in (*chosen.to_label, *chosen.novel)]
    if tested is not None:
        rows = sampled(len(tested))
        shown += [(tested, int(rows[i])) for i in chosen.confident]
    labeled = split.labeled[:: max(1, -(-len(split.labeled) // MOST_LABELED))]
    return thumbnails_of(shown) | thumbnails_of([(corpus.images, int(i)) for i in labeled], LABELED)


def thumbnails_of(images: Sequence[tuple[Images, int]], kind: str = "") -> Arrays:
    """Return the arrays of ``thumbnails.npz``; images that cannot be read are left out."""
    names, ends, parts, total = [], [], [], 0
    for sequence, i in images:
        if (encoded := thumbnail_jpeg(sequence, i, SIDE, quality=85)) is not None:
            total += len(encoded)
            names.append(sequence.names[i])
            ends.append(total)
            parts.append(encoded)
    data = np.frombuffer(b"".join(parts), np.uint8)
    return {f"{kind}names": np.array(names, np.str_), f"{kind}ends": np.array(ends, np.int64), f"{kind}jpeg": data}
