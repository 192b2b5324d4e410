"""Small JPEG copies of images, for pages and run folders.

Knows nothing of where they are shown.
"""

from __future__ import annotations

import base64
import io

from selftrain.data.images.sequence import Images
from selftrain.errors import UserError


def thumbnail_jpeg(images: Images, i: int, side: int, quality: int = 80) -> bytes | None:
    """Return an image within a square of ``side`` pixels; None if it has no pixels or cannot be read any more."""
    try:
        image = images.load(i, "RGB", side)
    except (UserError, OSError):
        return None
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, optimize=True)
    return file.getvalue()


def thumbnail_uri(images: Images, i: int, side: int) -> str | None:
    """Return the same as a data URI, for a page that needs no other file."""
    encoded = thumbnail_jpeg(images, i, side)
    return None if encoded is None else "data:image/jpeg;base64," + base64.b64encode(encoded).decode("ascii")
