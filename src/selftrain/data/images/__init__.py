"""Pictures as sequences: finds, reads and checks image files, in folders or inside larger files, and arrays.

Knows nothing of labels, classes, splits, tensors or training.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, UnidentifiedImageError, features

from selftrain.errors import UserError

__all__ = [
    "IMAGE_SUFFIXES",
    "ArrayImages",
    "EncodedImages",
    "FileImages",
    "FoundOnTheWay",
    "Images",
    "JoinedImages",
    "UnreadableImage",
    "check_images",
    "find_images",
    "is_hidden",
    "read_image",
]

_HAS_AVIF = "avif" in features.modules and bool(features.check("avif"))

IMAGE_SUFFIXES: tuple[str, ...] = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".jpe", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
    *((".avif",) if _HAS_AVIF else ()),
)
"""What counts as an image by its name, in lower case."""

OTHER_PICTURES: tuple[str, ...] = (
    *(".heic", ".heif", ".jxl", ".jp2", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"),
    *(() if _HAS_AVIF else (".avif",)),
)
"""Pictures as well, but not read here: passed over, and said so."""

# Named, so that a file with a harmless suffix can't reach a decoder that starts other programs (EPS does).
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(("AVIF",) if _HAS_AVIF else ()))

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


class UnreadableImage(UserError):  # noqa: N818 - a thing that is collected and counted, not only raised
    """A file that can't be turned into a picture: ``path``, ``reason`` and, from ``check_images``, its ``index``."""

    def __init__(self, path: str | os.PathLike[str], reason: str, index: int | None = None) -> None:
        super().__init__(os.fspath(path), reason, index)
        self.path = os.fspath(path)
        self.reason = reason
        self.index = index

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class _Quiet:
    """Keeps Pillow's warnings from leaking while at least one thread is inside.

    ``warnings.catch_warnings`` swaps a global list, so threads that overlap would restore each other's filters; here
    the first one in saves them and the last one out restores them.
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
        """A process forked while another thread held the lock would otherwise wait for ever."""
        self._lock = threading.Lock()


_quiet = _Quiet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_quiet.renew_lock)


def read_image(
    source: str | os.PathLike[str] | bytes, mode: str = "RGB", min_side: int | None = None, name: str | None = None
) -> Image.Image:
    """Read one file, or the bytes of one, as an upright 8-bit picture without metadata.

    EXIF orientation is applied; transparency lies on white; 16-bit grey keeps its upper 8 bits; an animation gives its
    first frame.

    Parameters
    ----------
    mode
        ``"RGB"`` or ``"L"`` (grey).
    min_side
        The shorter side that is needed. A JPEG at least twice as large is decoded at 1/2, 1/4 or 1/8 of its size,
        never below ``min_side``.
    name
        What an error calls the picture; a file's path unless given.

    Raises
    ------
    UnreadableImage
        Missing, empty, cut short, not an image, or a decompression bomb.
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f"mode must be 'RGB' or 'L', not {mode!r}")
    with _opened(source, name) as picture:
        if min_side is not None:
            picture.draft(None, (min_side, min_side))
        picture.load()
        orientation = _orientation(picture)
        result = _eight_bits(picture)
        if result.mode != mode:
            if result.mode not in ("RGB", "L"):
                result = result.convert("RGB")  # CMYK, palette, LAB, ...: grey comes from colour
            result = result.convert(mode)
        elif result is picture:
            result = picture.copy()  # lets go of the file
        if orientation in _UPRIGHT:
            result = result.transpose(_UPRIGHT[orientation])
        result.info = {}
        return result


@contextlib.contextmanager
def _opened(source: str | os.PathLike[str] | bytes, name: str | None = None) -> Iterator[Image.Image]:
    """The opened file; whatever goes wrong with it becomes an ``UnreadableImage``."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with _quiet, Image.open(file, formats=_FORMATS) as picture:
            yield picture
    except MemoryError:
        raise  # the machine's trouble, not the file's
    except Exception as error:  # broken files raise OSError, SyntaxError, ValueError, struct.error, EOFError, ...
        called = name or ("(bytes)" if isinstance(source, bytes) else source)
        raise UnreadableImage(called, _reason(source, error)) from error


def _reason(source: str | os.PathLike[str] | bytes, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        with contextlib.suppress(OSError):
            if (len(source) if isinstance(source, bytes) else os.path.getsize(source)) == 0:
                return "it is empty (0 bytes)"
        return "it is not an image in a format known here"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has too many pixels (a decompression bomb?): {error}"
    if isinstance(error, OSError) and error.errno is not None:
        return (error.strerror or str(error)).lower()
    text = " ".join(str(error).split()) or type(error).__name__
    if "truncated" in text.lower():
        return f"it is cut short ({text})"
    return f"it does not decode ({text})"


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # broken metadata does not make a picture unreadable
        return 1


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Wide pixels (16 bits, 32 bits, float) made 8-bit grey; transparency laid on white; else the picture itself."""
    if picture.mode.startswith("I") or picture.mode == "F":
        values = np.asarray(picture)
        grey = _scaled(values, picture.mode, known_range=picture.format in ("PNG", "PPM"))
        transparent = picture.info.get("transparency")
        if isinstance(transparent, int):
            grey = np.where(values == transparent, np.uint8(255), grey)
        return Image.fromarray(grey)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        layer = picture.convert("LA").convert("RGBA") if picture.mode == "La" else picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return picture


def _scaled(values: NDArray[Any], mode: str, known_range: bool) -> NDArray[np.uint8]:
    """Grey values of any width as 8 bits: by the format's range where it has one, else by the values' own."""
    if mode.startswith("I;16") or (mode == "I" and known_range):
        return (values >> 8).astype(np.uint8)
    if mode == "F":
        values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if mode == "F" and low >= 0 and high <= 1:
        return np.rint(values * 255).astype(np.uint8)
    if low >= 0 and high <= 255:
        return np.rint(values).astype(np.uint8)
    if mode == "I" and low >= 0 and high <= 65535:
        return (values >> 8).astype(np.uint8)
    # Elevations, counts, ...: no range is known, so the picture's own.
    return np.rint((values.astype(np.float64) - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is the operating system's business, not the user's."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")


@dataclass
class FoundOnTheWay:
    """What a search for images came across besides them."""

    linked: set[str] = field(default_factory=set)
    """images that are links, or lie behind one: the same file may be there under another name"""
    passed_over: Counter[str] = field(default_factory=Counter)
    """pictures of kinds that are not read here, by suffix"""

    @property
    def remark(self) -> str | None:
        """What to tell the user of pictures that were passed over, if there are any."""
        if not self.passed_over:
            return None
        kinds = ", ".join(f"{n} {suffix}" for suffix, n in sorted(self.passed_over.items()))
        return f"passed over pictures of kinds that are not read here ({kinds}); convert them to JPEG or PNG"


def find_images(root: str | os.PathLike[str], besides: FoundOnTheWay | None = None) -> list[str]:
    """Every image under ``root``, at any depth: sorted POSIX paths relative to it.

    Goes by suffix, in any case. Hidden files and folders are left out; links to folders are followed, but not in
    circles. A dangling link with an image's suffix is listed, so that reading it says that it is broken.
    """
    top = os.fspath(root)
    besides = besides or FoundOnTheWay()
    found: list[str] = []
    pending: list[tuple[str, tuple[tuple[int, int], ...], bool]] = [("", (), False)]
    while pending:
        prefix, parents, linked = pending.pop()
        folder = os.path.join(top, prefix)
        try:
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            if identity in parents:
                continue  # a link back to a folder that this one lies in
            with os.scandir(folder) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    if _is_folder(entry):
                        behind = linked or entry.is_symlink()
                        pending.append((f"{prefix}{entry.name}/", (*parents, identity), behind))
                        continue
                    name = entry.name.lower()
                    if name.endswith(IMAGE_SUFFIXES) and (entry.is_symlink() or entry.is_file()):
                        found.append(prefix + entry.name)
                        if linked or entry.is_symlink():
                            besides.linked.add(prefix + entry.name)
                    elif name.endswith(OTHER_PICTURES):
                        besides.passed_over[os.path.splitext(name)[1]] += 1
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{folder}: the folder can't be listed ({reason}).") from error
    found.sort()
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class Images(ABC):
    """A sequence of pictures, each with a name that is its own."""

    names: list[str]
    """One name a picture: for files, the POSIX path relative to the root."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} pictures)"

    @abstractmethod
    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        """Picture ``i`` as ``"RGB"`` or ``"L"``; ``min_side`` as in ``read_image``."""

    @abstractmethod
    def subset(self, indices: ArrayLike) -> Images:
        """The pictures at ``indices`` (integers, or one boolean a picture), in that order."""

    @abstractmethod
    def check(self, i: int, full: bool = True) -> None:
        """Raise ``UnreadableImage`` if picture ``i`` can't be read; ``full=False`` looks at its header only."""

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        """Bytes that are others once a picture is added, removed, renamed or edited: what a cache goes by. Without
        ``times`` a copy of a file is as good as the file."""
        raise TypeError(f"no fingerprint of {type(self).__name__}")

    def _positions(self, indices: ArrayLike) -> NDArray[np.int64]:
        positions = np.asarray(indices)
        if positions.dtype == bool:
            if positions.shape != (len(self),):
                raise IndexError(f"a mask of shape {positions.shape} does not fit {len(self)} pictures")
            return np.flatnonzero(positions)
        return positions.astype(np.int64).reshape(-1)


class EncodedImages(Images):
    """Pictures that are image files, on their own or inside larger ones, decoded when asked for."""

    @abstractmethod
    def source(self, i: int) -> str | bytes:
        """The path of the image file that picture ``i`` is, or its bytes."""

    def where(self, i: int) -> str:
        """What an error calls picture ``i``."""
        return self.names[i]

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        return read_image(self.source(i), mode, min_side, self.where(i))

    def check(self, i: int, full: bool = True) -> None:
        with _opened(self.source(i), self.where(i)) as picture:
            if full:
                # At 1/8 scale a JPEG is still read to its last byte, but most of the arithmetic is left out.
                picture.draft(None, (1, 1))
                picture.load()


SAMPLE = 4096  # bytes


def file_stamp(path: str, times: bool = True) -> bytes:
    """Bytes that are others once a file is edited or is another one: its size, its time, and some of what is in it."""
    try:
        with open(path, "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            digest = hashlib.sha256(f"\0{found.st_size}\0{found.st_mtime_ns if times else ''}\0".encode())
            for place in (0, found.st_size // 2, max(0, found.st_size - SAMPLE)):
                file.seek(place)
                digest.update(file.read(SAMPLE))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}).") from None
    return digest.digest()


class FileImages(EncodedImages):
    """Image files under one folder, read when asked for. Holds the names and nothing else."""

    def __init__(self, root: str | os.PathLike[str], names: Sequence[str]) -> None:
        self.root = os.path.abspath(root)
        self.names = list(names)

    def path(self, i: int) -> str:
        """Where picture ``i`` lies."""
        return os.path.join(self.root, self.names[i])

    def source(self, i: int) -> str:
        return self.path(i)

    def where(self, i: int) -> str:
        return self.path(i)

    def subset(self, indices: ArrayLike) -> FileImages:
        return FileImages(self.root, [self.names[i] for i in self._positions(indices).tolist()])

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        for i, name in enumerate(self.names):
            yield name.encode("utf-8", "surrogateescape") + file_stamp(self.path(i), times)

    def __getstate__(self) -> tuple[str, int, str]:
        # One long string instead of millions of short ones: a loader worker starts faster.
        return self.root, len(self.names), "\0".join(self.names)

    def __setstate__(self, state: tuple[str, int, str]) -> None:
        self.root, count, joined = state
        self.names = joined.split("\0") if count else []


def fingerprint(images: Images, times: bool = True) -> str:
    """A hash that changes when a picture is added, removed, renamed or edited."""
    digest = hashlib.sha256()
    for stamp in images.stamps(times):
        digest.update(stamp)
    return digest.hexdigest()


class JoinedImages(Images):
    """Sequences of pictures of any kind, one after the other."""

    def __init__(self, parts: Sequence[Images], names: Sequence[str] | None = None) -> None:
        self.parts = list(parts)
        self.part_of = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        self.row_of = np.concatenate([np.arange(len(part)) for part in self.parts])
        self.names = [name for part in self.parts for name in part.names] if names is None else list(names)

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        return self.parts[self.part_of[i]].load(int(self.row_of[i]), mode, min_side)

    def check(self, i: int, full: bool = True) -> None:
        self.parts[self.part_of[i]].check(int(self.row_of[i]), full)

    def subset(self, indices: ArrayLike) -> JoinedImages:
        positions = self._positions(indices)
        chosen = JoinedImages.__new__(JoinedImages)
        chosen.parts = self.parts
        chosen.part_of, chosen.row_of = self.part_of[positions], self.row_of[positions]
        chosen.names = [self.names[i] for i in positions.tolist()]
        return chosen

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        for k, part in enumerate(self.parts):
            rows = self.row_of[self.part_of == k]
            yield from part.subset(rows).stamps(times)
        yield self.part_of.tobytes()


class ArrayImages(Images):
    """Pictures in memory.

    Parameters
    ----------
    array
        ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)`` with C = 1 or 3 (where both readings fit, channels come
        last), as uint8, or as floats from 0 to 1.
    names
        One a picture; by default the positions, padded with zeros so that they sort.
    """

    pixels: NDArray[np.uint8]
    """``(N, C, H, W)``, contiguous: a batch can be gathered without making pictures."""

    def __init__(self, array: ArrayLike, names: Sequence[str] | None = None) -> None:
        values = np.asarray(array)
        self.pixels = _channels_first(values)
        count = len(self.pixels)
        if names is None:
            width = len(str(max(count - 1, 0)))
            names = [f"{i:0{width}d}" for i in range(count)]
        self.names = list(names)
        if len(self.names) != count:
            raise UserError(f"{len(self.names)} names for {count} pictures: give one a picture.")
        if len(set(self.names)) != count:
            raise UserError("two pictures have the same name: give each its own.")

    def load(self, i: int, mode: str = "RGB", min_side: int | None = None) -> Image.Image:
        if mode not in ("RGB", "L"):
            raise ValueError(f"mode must be 'RGB' or 'L', not {mode!r}")
        pixels = self.pixels[i]
        grey = len(pixels) == 1
        picture = Image.fromarray(pixels[0] if grey else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        return picture if picture.mode == mode else picture.convert(mode)

    def check(self, i: int, full: bool = True) -> None:
        pass  # checked when it was made

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield repr(self.pixels.shape).encode()
        yield self.pixels.tobytes()

    def subset(self, indices: ArrayLike) -> ArrayImages:
        positions = self._positions(indices)
        everything = np.array_equal(positions, np.arange(len(self)))
        part = ArrayImages.__new__(ArrayImages)
        part.pixels = self.pixels if everything else self.pixels[positions]
        part.names = self.names if everything else [self.names[i] for i in positions.tolist()]
        return part


def _channels_first(values: NDArray[Any]) -> NDArray[np.uint8]:
    found = f"got shape {values.shape}, {values.dtype}"
    if values.ndim == 3 and values.shape[2] in (3, 4) and min(values.shape[:2]) > 4:
        raise UserError(f"images: this looks like one colour picture ({found}); give x[None], an array of pictures.")
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    elif values.ndim != 4 or values.shape[1] not in (1, 3):
        raise UserError(f"images must be (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3; {found}.")
    if 0 in values.shape[1:]:
        raise UserError(f"images must be at least one pixel high and wide; {found}.")
    if values.dtype == np.uint8:
        return np.require(values, requirements=["C", "W"])  # writable, because tensors can't share what is not
    if not np.issubdtype(values.dtype, np.floating):
        raise UserError(f"images must be uint8 (0 to 255) or floats from 0 to 1; {found}.")
    pixels = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), 1024):  # in pieces: no second copy of a large array in floats
        part = values[start : start + 1024].astype(np.float64)
        low, high = float(part.min()), float(part.max())
        if not (low >= 0 and high <= 1):  # false for NaN too
            raise UserError(
                f"float images must lie from 0 to 1, these go from {low:g} to {high:g}; scale them, or give uint8 "
                f"from 0 to 255; {found}." + (" Features want backbone='features'." if values.shape[1] == 1 else "")
            )
        pixels[start : start + 1024] = np.rint(part * 255)
    return pixels


def check_images(
    images: Images,
    *,
    strict: bool,
    full: bool = True,
    progress: Callable[[int, int], object] | None = None,
    workers: int = 2,
) -> list[UnreadableImage]:
    """Read every picture once and return those that can't be read, in order, each with its ``index``.

    Parameters
    ----------
    strict
        Raise ``UserError`` on the first one instead.
    full
        Decode everything; otherwise look at headers only, which is quick but misses files that were cut short.
    progress
        Called as ``progress(done, total)`` from this thread.
    workers
        Threads; Pillow lets go of Python's lock while it decodes.
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
                raise UserError(f"{bad[0]}. Leave out --strict to skip such files.")
            unreadable += bad
            if progress is not None:
                progress(min((part + 1) * size, total), total)
    finally:
        pool.shutdown(cancel_futures=True)  # on an error or Ctrl-C the rest is not waited for
    return unreadable
