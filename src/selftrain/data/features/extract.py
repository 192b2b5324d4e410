"""Run a backbone once over clean, weak and strong views of every image, and store the features.

Knows nothing of methods or of which backbone it is: it is given a function from pixels to features and a description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.console import Reporter
from selftrain.data.features.collection import Collection
from selftrain.data.features.store import FEATURES, Compute, Fill, in_parallel, missing_jobs, stored_vectors
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images.content import Digests
from selftrain.data.images.memory import Memory
from selftrain.data.views.content_views import ContentViews

PIECE = 16  # images per piece: a kill costs at most one piece per thread

Encode = Callable[[Tensor], Tensor]
"""uint8 images (batch, C, side, side) -> features (batch, dim); safe to call from several threads"""


def view_names(weak: int, strong: int) -> tuple[str, ...]:
    """Return the names of the views stored per image, in their order in the cache."""
    return (
        "clean",
        *(f"weak_{i + 1}" for i in range(weak)),
        *(f"strong_{i + 1}" for i in range(strong)),
    )


def extract_features(
    views: ContentViews,
    names: Sequence[str],
    encode: Encode,
    *,
    dim: int,
    about: dict[str, Any],
    root: Path | None,
    dtype: str = "float16",
    threads: int = 1,
    batch: int = 64,
    reporter: Reporter | None = None,
    before: Callable[[int], None] = lambda missing: None,
    fill: Callable[[Digests], Fill] | None = None,
) -> NDArray[Any] | StoredFeatures:
    """Return features (n, views, dim) of every image; stored ones are not recomputed.

    ``about`` lists everything that features depend on besides the image and the view: backbone, weights, engine.
    ``root`` is the cache folder; without one, nothing is stored. ``before`` is called with the number of views that are
    not stored, if there are any. ``fill`` is given the contents of the images and returns what computes features
    elsewhere.
    """
    reporter = reporter or Reporter(quiet=True)
    with reporter.progress("reading contents", len(views), "images") as bar:
        contents = Memory(root).contents(views.images, progress=bar.reach)

    compute = computing(views, names, encode, contents, dim=dim, batch=batch)
    specs = [views.spec(name) for name in names]
    if root is not None:
        collection = Collection(root / FEATURES, about, dim, np.dtype(dtype))
        return stored_vectors(
            collection, contents, specs, compute, piece=PIECE, threads=threads, reporter=reporter,
            what="extracting features", before=before,
            fill=None if fill is None else fill(contents),
        )  # fmt: skip
    found = np.empty((len(views), len(names), dim), dtype)
    jobs = missing_jobs(contents, np.ones((len(views), len(names)), bool), PIECE)
    for (rows, _), values in in_parallel(jobs, compute, threads):
        found[rows] = values
    _, first, inverse = np.unique(contents, axis=0, return_index=True, return_inverse=True)
    copies: NDArray[Any] = found[first[inverse.reshape(-1)]]
    return copies


def computing(
    views: ContentViews, names: Sequence[str], encode: Encode, contents: Digests, *, dim: int, batch: int
) -> Compute:
    """Return what computes the features of some rows and views."""

    def compute(rows: NDArray[np.int64], some: Sequence[int]) -> NDArray[Any]:
        made = views.make(rows, [names[j] for j in some], contents[rows])
        features = encode_padded(encode, torch.cat([crops.flatten(0, 1) for crops in made]), batch)
        parts = torch.split(features, [len(rows) * crops.shape[1] for crops in made])
        means = [part.view(len(rows), -1, dim).mean(dim=1) for part in parts]
        return torch.stack(means, dim=1).numpy()

    return compute


def encode_padded(encode: Encode, pixels: Tensor, batch: int) -> Tensor:
    """Encode images in batches of one size, the last filled up: rounding depends on the size of a batch."""
    n = len(pixels)
    if n % batch:
        pixels = torch.cat([pixels, pixels[-1:].expand(batch - n % batch, -1, -1, -1)])
    return torch.cat([encode(part) for part in torch.split(pixels, batch)])[:n]
