"""A random order of names: the same on every machine, because it depends on the names and a seed alone.

Knows nothing of images, classes or splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def drawn_order(names: Sequence[str], seed: int, about: str) -> NDArray[np.int64]:
    """Return positions in ``names`` in the order in which they are drawn; ``about`` tells several draws apart.

    Whether the names are sorted makes no difference to the names that come first.
    """
    positions = sorted(range(len(names)), key=names.__getitem__)
    word = int.from_bytes(hashlib.sha256(as_bytes(about)).digest()[:16], "big")
    # Sorted by raw generator output: its stream is the same in every NumPy version, unlike a Generator's shuffle.
    keys = np.random.PCG64(np.random.SeedSequence([seed, word])).random_raw(len(positions))
    return np.asarray(positions, np.int64)[np.argsort(keys, kind="stable")]


def as_bytes(text: str) -> bytes:
    """Return the bytes of a text that may be a file name, which need not be UTF-8."""
    return text.encode("utf-8", "surrogatepass")
