"""The folder in which everything is kept that can be computed again: features, contents of images, indices of shards.

Knows nothing of what is in it.
"""

from __future__ import annotations

import os
from pathlib import Path

from selftrain.files import expanded


def cache_root(given: str | None = None) -> Path:
    """Return the folder of caches: as given, else ``$SELFTRAIN_CACHE``, else the user's cache folder."""
    if given:
        return expanded(given)
    if own := os.environ.get("SELFTRAIN_CACHE"):
        return expanded(own)
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "selftrain"


def can_be_kept(root: Path) -> bool:
    """Return whether caches can be written to this folder."""
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return there.is_dir() and os.access(there, os.W_OK)
