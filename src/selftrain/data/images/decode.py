"""Read one image file, or the bytes of one, as upright 8-bit pixels.

Knows nothing of folders, sequences of images, labels or tensors.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from selftrain.data.images.pixel_budget import VERY_LARGE, TooManyPixelsError, check_pixels, decoding
from selftrain.errors import UserError, is_of_the_machine
from selftrain.regular_files import open_regular
from selftrain.text import first_line

STRIP = 1 << 21
"""pixels that are converted at a time"""
HAS_AVIF = "avif" in features.modules and bool(features.check("avif"))

# Listed explicitly, so that a file with a harmless suffix cannot reach a decoder that starts other programs (EPS does).
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(("AVIF",) if HAS_AVIF else ()))

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow logs oddities of a file. Without a handler Python prints them to stderr, in the middle of a progress bar.
logging.getLogger("PIL").addHandler(logging.NullHandler())


class UnreadableImage(UserError):  # noqa: N818 - a record that is collected and counted, not only raised
    """A file that cannot be decoded: ``path``, ``reason`` and, from ``check_images``, its ``index``."""

    def __init__(self, path: str | os.PathLike[str], reason: str, index: int | None = None) -> None:
        super().__init__(os.fspath(path), reason, index)
        self.path = os.fspath(path)
        self.reason = reason
        self.index = index

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class _WithoutWarnings:
    """Silences Pillow's warnings while at least one thread is inside.

    ``warnings.catch_warnings`` swaps a global list, so overlapping threads would restore each other's filters. Here
    the first thread to enter saves the filters and the last one to leave restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(None, None, None)

    def renew_lock(self) -> None:
        """Replace the lock: a process forked while another thread held it would wait forever."""
        self._lock = threading.Lock()


_without_warnings = _WithoutWarnings()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_warnings.renew_lock)


def read_image(
    source: str | os.PathLike[str] | bytes, mode: str = "RGB", min_side: int | None = None, name: str | None = None
) -> Image.Image:
    """Read one file, or the bytes of one, as an upright 8-bit image without metadata.

    EXIF orientation is applied, transparency is blended onto white, 16-bit grey keeps its upper 8 bits, and an
    animation gives its first frame.

    Parameters
    ----------
    mode
        ``"RGB"`` or ``"L"`` (grey).
    min_side
        The shorter side that is needed. A JPEG at least twice as large is decoded at 1/2, 1/4 or 1/8 of its size,
        never below ``min_side``. A very large image in another format is reduced in the same way once it is decoded.
    name
        The name of the image in errors; the path of the file by default.

    Raises
    ------
    UnreadableImage
        The file is missing, empty, truncated, not an image, or a decompression bomb.
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f"mode must be 'RGB' or 'L', not {mode!r}")
    with opened(source, name) as image:
        if min_side is not None:
            image.draft(None, (min_side, min_side))
        with decoding(image):
            image.load()
            result = as_pixels(image, mode)
            image.close()  # large memory is free before another thread begins
            result = _reduced(result, min_side)
        return result


def _reduced(image: Image.Image, min_side: int | None) -> Image.Image:
    """Return a very large image at 1/2, 1/4 or 1/8 of its size, so that none is held longer than it takes to decode."""
    if min_side is None or image.width * image.height <= VERY_LARGE:
        return image
    factor = next((k for k in (8, 4, 2) if min(image.size) // k >= min_side), 1)
    return image.reduce(factor) if factor > 1 else image


def as_pixels(image: Image.Image, mode: str) -> Image.Image:
    """Return a copy of a loaded image as upright 8-bit pixels without metadata, in the way of ``read_image``."""
    orientation = _orientation(image)
    result = _eight_bits(image)
    if result.mode != mode:
        if result.mode not in ("RGB", "L"):
            result = result.convert("RGB")  # CMYK, palette, LAB, ...: grey is computed from colour
        result = result.convert(mode)
    elif result is image:
        result = image.copy()  # releases the file
    if orientation in _UPRIGHT:
        result = result.transpose(_UPRIGHT[orientation])
    result.info = {}
    return result


@contextlib.contextmanager
def opened(source: str | os.PathLike[str] | bytes, name: str | None = None) -> Iterator[Image.Image]:
    """Open an image; any failure inside the block is raised as ``UnreadableImage``."""
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file,
            _without_warnings,
            Image.open(file, formats=_FORMATS) as image,
        ):
            if image.format != "JPEG":  # which can be decoded at a fraction of its size
                check_pixels(image)
            yield image
    except (MemoryError, UserError):
        raise  # a problem of the machine or of a setting, not of the file
    except Exception as error:  # broken files raise OSError, SyntaxError, ValueError, struct.error, EOFError, ...
        called = name or ("(bytes)" if isinstance(source, bytes) else source)
        if isinstance(error, OSError) and is_of_the_machine(error):  # no image is left out because of it
            raise UserError(
                f"{os.fspath(called)}: cannot be read now ({error.strerror}). That is a problem of the disk or of this "
                f"machine, not of the image. Repeat the command, or move the image away if it cannot be read again."
            ) from None
        raise UnreadableImage(called, _reason(source, error)) from error


def _reason(source: str | os.PathLike[str] | bytes, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        with contextlib.suppress(OSError):
            if (len(source) if isinstance(source, bytes) else os.path.getsize(source)) == 0:
                return "it is empty (0 bytes)"
        return "it is not an image in a supported format"
    if isinstance(error, (TooManyPixelsError, Image.DecompressionBombError)):
        return f"it has too many pixels ({first_line(error)})"
    if isinstance(error, OSError) and error.errno is not None:
        return (error.strerror or str(error)).lower()
    text = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in text.lower():
        return f"it is truncated ({text})"
    return f"it cannot be decoded ({text})"


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except MemoryError:
        raise
    except Exception:  # broken metadata does not make an image unreadable
        return 1


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return wide pixels (16 bits, 32 bits, float) as 8-bit grey, blend transparency onto white, else the image."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        transparent = image.info.get("transparency")
        scale = _scaling(values, image.mode, known_range=image.format in ("PNG", "PPM"))
        grey = np.empty(values.shape, np.uint8)
        for rows in _strips(image):
            grey[rows] = scale(values[rows])
            if isinstance(transparent, int):
                grey[rows][values[rows] == transparent] = 255
        return Image.fromarray(grey)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        result = Image.new("RGB", image.size)
        for rows in _strips(image):
            part = image.crop((0, rows.start, image.width, rows.stop))
            layer = part.convert("LA").convert("RGBA") if image.mode == "La" else part.convert("RGBA")
            white = Image.new("RGBA", part.size, (255, 255, 255, 255))
            result.paste(Image.alpha_composite(white, layer).convert("RGB"), (0, rows.start))
        return result
    return image


def _strips(image: Image.Image) -> Iterator[slice]:
    """Yield rows of an image, few enough that intermediate results of a large image take little memory."""
    height = max(1, STRIP // max(1, image.width))
    for top in range(0, image.height, height):
        yield slice(top, min(top + height, image.height))


def _scaling(values: NDArray[Any], mode: str, known_range: bool) -> Callable[[NDArray[Any]], NDArray[np.uint8]]:
    """Return a function that scales grey values to 8 bits, by the range of the format if it has one, else theirs."""
    if mode.startswith("I;16") or (mode == "I" and known_range):
        return lambda part: (part >> 8).astype(np.uint8)
    low, high = _range(values, mode)
    if mode == "F" and low >= 0 and high <= 1:
        return lambda part: np.asarray(np.rint(_finite(part, mode) * 255), np.uint8)
    if low >= 0 and high <= 255:
        return lambda part: np.asarray(np.rint(_finite(part, mode)), np.uint8)
    if mode == "I" and low >= 0 and high <= 65535:
        return lambda part: (part >> 8).astype(np.uint8)
    # Elevations, counts, ...: no range is known, so the image's own range is used.
    factor = 255 / max(high - low, 1e-12)
    return lambda part: np.rint((_finite(part, mode).astype(np.float64) - low) * factor).astype(np.uint8)


def _range(values: NDArray[Any], mode: str) -> tuple[float, float]:
    parts = [_finite(part, mode) for part in np.array_split(values, max(1, values.size // STRIP))]
    return min(float(part.min()) for part in parts if part.size), max(float(part.max()) for part in parts if part.size)


def _finite(values: NDArray[Any], mode: str) -> NDArray[Any]:
    if mode != "F":
        return values
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
