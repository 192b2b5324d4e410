"""Find the images of a sequence that cannot be read.

Knows nothing of files, folders or labels: every sequence of images knows how to check one of its images.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from selftrain.data.images.arrays import ArrayImages
from selftrain.data.images.content import unknown
from selftrain.data.images.decode import UnreadableImage
from selftrain.data.images.memory import Memory
from selftrain.data.images.pixel_budget import MOST_PIXELS, most_pixels
from selftrain.data.images.sequence import Images
from selftrain.errors import UserError


def check_images(
    images: Images,
    *,
    strict: bool,
    full: bool = True,
    progress: Callable[[int, int], object] | None = None,
    workers: int = 2,
    memory: Memory | None = None,
) -> list[UnreadableImage]:
    """Read every image once and return those that cannot be read, in order, each with its ``index``.

    Parameters
    ----------
    strict
        Raise ``UserError`` at the first one instead.
    full
        Decode everything; otherwise look only at headers, which is fast but misses truncated files.
    progress
        Called as ``progress(done, total)`` from this thread.
    workers
        Threads; Pillow releases Python's lock while it decodes.
    memory
        What is known from earlier runs: contents that were decoded once are not decoded again.
    """
    total = len(images)
    if isinstance(images, ArrayImages) or total == 0:
        if progress is not None:
            progress(total, total)
        return []
    memory = memory or Memory(None)
    contents = unknown(total)
    if memory.folder is not None:
        contents = memory.contents(images, read=full, threads=workers)
    most = most_pixels()
    rows = np.flatnonzero(~memory.readable(contents)) if most >= MOST_PIXELS else np.arange(total)
    unreadable = _unreadable(images, rows, strict, full, progress, workers)
    if full and most <= MOST_PIXELS:  # what is remembered holds for the usual limit
        good = np.setdiff1d(rows, [error.index for error in unreadable if error.index is not None])
        memory.add_readable(contents[good])
    return unreadable


def _unreadable(
    images: Images,
    rows: NDArray[np.int64],
    strict: bool,
    full: bool,
    progress: Callable[[int, int], object] | None,
    workers: int,
) -> list[UnreadableImage]:
    """Check these images of a sequence."""
    known, total = len(images) - len(rows), len(images)
    if progress is not None:
        progress(known, total)

    def check(indices: list[int]) -> list[UnreadableImage]:
        bad = []
        for i in indices:
            try:
                images.check(i, full)
            except UnreadableImage as error:
                bad.append(UnreadableImage(error.path, error.reason, i))
                if strict:
                    break
        return bad

    size = max(1, min(256, len(rows) // (workers * 8)))
    parts = [rows[start : start + size].tolist() for start in range(0, len(rows), size)]
    unreadable: list[UnreadableImage] = []
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="check-images")
    try:
        for part, bad in enumerate(pool.map(check, parts)):
            if bad and strict:
                raise UserError(f"{bad[0]}. Leave out `strict` to skip unreadable images.")
            unreadable += bad
            if progress is not None:
                progress(known + min((part + 1) * size, len(rows)), total)
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, do not wait for the rest
    return unreadable
