"""What a run remembers of its training images, to recognise near-duplicates of them among new images.

A random projection of the features of each image, which keeps cosines (Johnson and Lindenstrauss, 1984). It stays in
the run folder: a model that is copied, pushed or exported does not contain it. Knows nothing of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from selftrain.data.split import Split
from selftrain.errors import UserError
from selftrain.runs.image_outputs import sampled
from selftrain.runs.layout import Arrays
from selftrain.runs.network_inputs import FrozenInputs, Inputs

NEAR_DUPLICATE = 0.97
"""cosine of the projected features above which two images count as nearly the same; docs/concepts/trust.md says why"""
WIDTH = 256
"""of the projection: near a cosine of 0.97 its error is about 0.004"""
CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Seen:
    """Training images by name, as rows that can be compared."""

    names: tuple[str, ...]
    rows: Tensor
    """(n, 256) of unit length"""
    dim: int
    """of the features that were projected"""

    def duplicates(self, features: Tensor) -> list[str]:
        """Return, for each row of features (m, d), the training image that is nearly the same; empty if none is."""
        found: list[str] = []
        for part in torch.split(project(features.float().cpu()), CHUNK):
            likeness, place = (part @ self.rows.T).max(dim=1)
            pairs = zip(likeness.tolist(), place.tolist(), strict=True)
            found += [self.names[i] if cosine > NEAR_DUPLICATE else "" for cosine, i in pairs]
        return found

    def arrays(self) -> Arrays:
        """Return the arrays of ``seen.npz``."""
        rows = self.rows.half().numpy()
        return {"names": np.array(self.names, np.str_), "rows": rows, "dim": np.array(self.dim)}


def project(features: Tensor) -> Tensor:
    """Return features (n, d) as (n, 256) of unit length: sums with random signs, the same on every machine."""
    d = features.shape[1]
    raw: NDArray[Any] = np.random.PCG64(0).random_raw(d * WIDTH // 64)
    bits = np.unpackbits(raw.astype("<u8").view(np.uint8)).reshape(d, WIDTH)
    signs = torch.from_numpy(2 * bits.astype(np.float32) - 1)
    return F.normalize(F.normalize(features, dim=1) @ signs, dim=1)


def seen_images(inputs: Inputs, split: Split, names: Sequence[str]) -> Seen | None:
    """Return the labeled images and at most 20,000 unlabeled ones; None if the run has no features of a backbone."""
    if not isinstance(inputs, FrozenInputs):
        return None
    rows = np.union1d(split.labeled, split.unlabeled[sampled(len(split.unlabeled))])
    features = torch.cat([project(part.float().cpu()) for part in inputs.clean_pool(rows, CHUNK)])
    return Seen(tuple(names[i] for i in rows), features, inputs.extractor.dim)


def read_seen(arrays: Arrays, dim: int) -> Seen | None:
    """Return what ``seen.npz`` holds, if it fits features of ``dim`` numbers; a UserError if it is broken."""
    if not arrays:
        return None
    names, rows, of = (arrays.get(name) for name in ("names", "rows", "dim"))
    if (
        names is None or rows is None or of is None or names.ndim != 1 or names.dtype.kind != "U"
        or rows.dtype.kind != "f" or rows.shape != (len(names), WIDTH) or of.shape != () or of.dtype.kind not in "iu"
        or not np.isfinite(rows).all()
    ):  # fmt: skip
        raise UserError("seen.npz: must hold the arrays names, rows and dim, as training writes them.")
    if int(of) != dim or not len(names):
        return None
    values = F.normalize(torch.from_numpy(rows.astype(np.float32)), dim=1)
    return Seen(tuple(str(name) for name in names), values, dim)
