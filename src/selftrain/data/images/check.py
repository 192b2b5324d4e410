"""Find the images of a sequence that cannot be read.

Knows nothing of files, folders or labels: every sequence of images knows how to check one of its images.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from selftrain.data.images.arrays import ArrayImages
from selftrain.data.images.decode import UnreadableImage
from selftrain.data.images.sequence import Images
from selftrain.errors import UserError


def check_images(
    images: Images,
    *,
    strict: bool,
    full: bool = True,
    progress: Callable[[int, int], object] | None = None,
    workers: int = 2,
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
    """
    total = len(images)
    if isinstance(images, ArrayImages) or total == 0:
        if progress is not None:
            progress(total, total)
        return []

    def check(indices: range) -> list[UnreadableImage]:
        bad = []
        for i in indices:
            try:
                images.check(i, full)
            except UnreadableImage as error:
                bad.append(UnreadableImage(error.path, error.reason, i))
                if strict:
                    break
        return bad

    size = max(1, min(256, total // (workers * 8)))
    unreadable: list[UnreadableImage] = []
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="check-images")
    try:
        for part, bad in enumerate(pool.map(check, (range(i, min(i + size, total)) for i in range(0, total, size)))):
            if bad and strict:
                raise UserError(f"{bad[0]}. Leave out `strict` to skip unreadable images.")
            unreadable += bad
            if progress is not None:
                progress(min((part + 1) * size, total), total)
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, do not wait for the rest
    return unreadable
