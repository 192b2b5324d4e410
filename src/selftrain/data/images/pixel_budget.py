"""How many pixels an image may have, and how many may be decoded at the same time.

Knows nothing of files or formats. A file of some kilobytes can stand for gigabytes of pixels, and several threads
decode at once; both limits keep the memory of a process within what its machine has.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from PIL import Image

from selftrain.errors import UserError

VARIABLE = "SELFTRAIN_MAX_PIXELS"
MOST_PIXELS = 50_000_000
"""the default of ``data.max_pixels``: 50 megapixels"""
AT_ONCE = 64_000_000
"""pixels that are decoded at the same time, unless a single image has more"""

VERY_LARGE = 16_000_000
"""pixels above which an image is reduced to what is needed as soon as it is decoded"""


class TooManyPixelsError(Exception):
    """An image is larger than the limit."""


def most_pixels() -> int:
    """Return the limit: ``$SELFTRAIN_MAX_PIXELS``, which a run sets to ``data.max_pixels``, or the default."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return MOST_PIXELS
    if not given.isascii() or not given.isdecimal() or not 0 < int(given) < 1 << 40:
        raise UserError(f"{VARIABLE}={given!r}: expected a number of pixels, such as {MOST_PIXELS}.")
    return int(given)


@contextmanager
def pixel_limit(most: int | None) -> Iterator[None]:
    """Inside, images may have this many pixels, in this process and in those that it starts; None changes nothing."""
    before = os.environ.get(VARIABLE)
    if most is not None:
        os.environ[VARIABLE] = str(most)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def check_pixels(image: Image.Image) -> None:
    """Raise an error if an image, at the size at which it is decoded, has more pixels than the limit."""
    pixels, most = image.width * image.height, most_pixels()
    if pixels > most:
        raise TooManyPixelsError(
            f"{image.width} x {image.height}; data.max_pixels and ${VARIABLE} allow {most / 1e6:,.0f} million"
        )


@contextmanager
def decoding(image: Image.Image) -> Iterator[None]:
    """Wait until the pixels of an image fit beside those that other threads are decoding."""
    check_pixels(image)
    pixels = image.width * image.height
    with _free:
        while _Busy.pixels and _Busy.pixels + pixels > AT_ONCE:
            _free.wait()
        _Busy.pixels += pixels
    try:
        yield
    finally:
        if pixels > VERY_LARGE:
            _give_back()
        with _free:
            _Busy.pixels -= pixels
            _free.notify_all()


def _give_back() -> None:
    """Return freed memory to the system: glibc would keep the memory of each thread's largest image."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class _Busy:
    pixels = 0


_free = threading.Condition()


def _renew() -> None:
    """Start over in a forked process, whose other threads are gone."""
    global _free
    _free, _Busy.pixels = threading.Condition(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
