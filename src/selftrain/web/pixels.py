"""Images as JPEG bytes for a page: small ones in a grid, larger ones on their own.

Knows nothing of requests: images are asked for by their number, never by a path.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict

from selftrain.data.images import Images
from selftrain.errors import UserError

SMALL, LARGE = 256, 1280
"""largest sides in pixels"""
KEPT = 64 << 20
"""bytes of small images that are kept in memory"""


class Pixels:
    """JPEG versions of images, made when they are asked for."""

    def __init__(self, images: Images):
        self.images = images
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def small(self, i: int) -> bytes | None:
        """Return a small version; None if the image cannot be read."""
        with self._lock:
            if i in self._kept:
                self._kept.move_to_end(i)
                return self._kept[i]
        found = self._jpeg(i, SMALL)
        if found is not None:
            with self._lock:
                if i not in self._kept:
                    self._kept[i] = found
                    self._size += len(found)
                while self._size > KEPT:
                    self._size -= len(self._kept.popitem(last=False)[1])
        return found

    def large(self, i: int) -> bytes | None:
        """Return a version that fills a screen; None if the image cannot be read."""
        return self._jpeg(i, LARGE)

    def _jpeg(self, i: int, side: int) -> bytes | None:
        try:
            image = self.images.load(i, "RGB", side)
        except (UserError, OSError):
            return None
        image.thumbnail((side, side))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=82)
        return file.getvalue()
