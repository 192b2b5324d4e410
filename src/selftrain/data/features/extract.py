"""Run a backbone once over clean, weak and strong views of every image, and cache the features.

Knows nothing of methods or of which backbone it is: it is given a function from pixels to features and a description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selftrain.console import Reporter
from selftrain.data.features.store import cached_array
from selftrain.data.images import fingerprint
from selftrain.data.views.image_views import ImageViews

PIECE = 16  # images per piece of the cache: a kill costs at most one piece per thread

Encode = Callable[[Tensor], Tensor]
"""uint8 images (B, C, side, side) -> features (B, dim); safe to call from several threads"""


def view_names(weak: int, strong: int) -> tuple[str, ...]:
    """Return the names of the views stored per image, in their order in the cache."""
    return (
        "clean",
        *(f"weak_{i + 1}" for i in range(weak)),
        *(f"strong_{i + 1}" for i in range(strong)),
    )


def extract_features(
    views: ImageViews,
    names: Sequence[str],
    encode: Encode,
    *,
    dim: int,
    about: dict[str, Any],
    root: Path | None,
    seed: int = 0,
    zoom: bool = False,
    dtype: str = "float16",
    threads: int = 1,
    batch: int = 64,
    reporter: Reporter | None = None,
) -> NDArray[Any]:
    """Return features (n, views, dim) of every image; those that the cache already holds are not recomputed.

    ``about`` lists everything besides the images that they depend on: backbone, weights, size, augmentation. With
    ``zoom``, the clean features are the mean of those of the clean and the zoomed view. Without a folder of caches,
    ``root``, nothing is stored.
    """
    made = [*names, "zoomed"] if zoom else list(names)

    def compute(start: int, stop: int) -> NDArray[Any]:
        rng = np.random.default_rng([seed, start])
        images = views.make(np.arange(start, stop), made, rng)
        together = torch.stack([images[name] for name in made], dim=1).flatten(0, 1)
        features = torch.cat([encode(part) for part in torch.split(together, batch)]).view(-1, len(made), dim)
        if zoom:
            clean = names.index("clean")
            features[:, clean] = (features[:, clean] + features[:, -1]) / 2
        return features[:, : len(names)].numpy()

    if root is None:
        starts = range(0, len(views), PIECE)
        with ThreadPoolExecutor(threads) as pool:
            parts = pool.map(lambda start: compute(start, min(start + PIECE, len(views))), starts)
            return np.concatenate([np.empty((0, len(names), dim)), *parts]).astype(dtype)
    return cached_array(
        root,
        {**about, "views": list(names), "seed": seed, "images": fingerprint(views.images)},
        (len(views), len(names), dim),
        dtype,
        compute,
        piece=PIECE,
        threads=threads,
        reporter=reporter,
        what="extracting features",
        unit="images",
    )
