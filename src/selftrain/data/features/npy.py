"""Write arrays, and read those of ``.npy`` and ``.npz`` files of anybody, without loading more than is asked for.

Knows nothing of features. No file can run code, and none can claim more memory than it takes on disk, except compressed
arrays, which are limited.
"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from selftrain.errors import UserError
from selftrain.regular_files import open_regular
from selftrain.text import first_line

LARGEST_COMPRESSED = 1 << 30
"""bytes of a compressed array once it is unpacked; larger ones are refused, because they have to fit memory"""
LARGEST_HEADER = 10_000
MEMBER_HEADER = 30  # bytes of the fixed part of a local header in a zip file


def map_npy(path: Path) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, memory-mapped and read-only."""
    try:
        return _mapped(path, 0, path.stat().st_size, str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None


def write_arrays(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as ``numpy.savez_compressed`` does; if the disk or memory is full, the error says so.

    NumPy's function ends in a ``ValueError`` about an open handle then, and prints a second one.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def read_arrays(path: Path, *, most: int, arrays: int = 64) -> dict[str, NDArray[Any]]:
    """Return all arrays of a ``.npz`` file in memory, if there are few and they take at most ``most`` bytes."""
    file = NpzFile(path)
    if len(file.names) > arrays or file.bytes > most:
        raise UserError(
            f"{path}: too large ({len(file.names)} arrays, {file.bytes / 1e6:,.0f} MB unpacked; {arrays} arrays and "
            f"{most / 1e6:,.0f} MB at most)."
        )
    return {name: np.array(file[name]) for name in file.names}


class NpzFile:
    """The arrays of a ``.npz`` file by name. Those that are not compressed are memory-mapped."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with open_regular(path) as opened, zipfile.ZipFile(opened) as file:
                self._members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise UserError(f"{path}: not a file written by numpy.savez ({first_line(error)}).") from None

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @property
    def bytes(self) -> int:
        """The size of all arrays once they are unpacked, as the file states it."""
        return sum(info.file_size for info in self._members.values())

    def first_of(self, names: Iterable[str]) -> str | None:
        """Return the first of these names that an array has."""
        return next((name for name in names if name in self._members), None)

    def __getitem__(self, name: str) -> NDArray[Any]:
        info, what = self._members[name], f"{self.path}, array {name!r}"
        if info.flag_bits & 1:
            raise UserError(f"{what}: is encrypted.")
        try:
            if info.compress_type == zipfile.ZIP_STORED:
                return _mapped(self.path, self._start(info), info.file_size, what)
            if info.file_size > LARGEST_COMPRESSED:
                raise UserError(
                    f"{what}: is compressed, and too large for that ({info.file_size / 1e9:.1f} GB unpacked). Save it "
                    f"with numpy.savez, not numpy.savez_compressed: it then stays on disk."
                )
            with open_regular(self.path) as opened, zipfile.ZipFile(opened) as file, file.open(info) as stream:
                return _unpacked(stream, info.file_size, what)
        except OSError as error:
            raise UserError(f"{what}: cannot be read ({error.strerror or error}).") from None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
            raise UserError(f"{what}: is damaged ({first_line(error)}).") from None

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Return where the content of a member begins in the file."""
        with open_regular(self.path) as file:
            file.seek(info.header_offset)
            header = file.read(MEMBER_HEADER)
        if len(header) != MEMBER_HEADER or header[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("a member has no header")
        name, extra = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
        return info.header_offset + MEMBER_HEADER + name + extra


def _mapped(path: Path, start: int, size: int, what: str) -> NDArray[Any]:
    """Return the array that takes ``size`` bytes of a file, from ``start``."""
    with open_regular(path) as file:
        there = file.seek(0, io.SEEK_END) - start
        file.seek(start)
        shape, fortran, dtype = _header(file, what)
        offset = file.tell()
    _check_size(shape, dtype, min(size, there) - (offset - start), what)
    return np.memmap(path, dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")


def _unpacked(stream: IO[bytes], size: int, what: str) -> NDArray[Any]:
    """Return the array in a compressed stream of ``size`` bytes."""
    shape, fortran, dtype = _header(stream, what)
    nbytes = _check_size(shape, dtype, size - stream.tell(), what)
    content = stream.read(nbytes)
    if len(content) != nbytes:
        raise EOFError("it ends too early")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype; afterwards, the stream stands at the first number."""
    begin = stream.read(12)
    try:
        version = np.lib.format.read_magic(io.BytesIO(begin))
        length = int.from_bytes(begin[8:10] if version == (1, 0) else begin[8:12], "little")
        if version not in ((1, 0), (2, 0)) or length > LARGEST_HEADER:
            raise ValueError("unknown header")
        rest = stream.read(length + (10 if version == (1, 0) else 12) - len(begin))
        both = io.BytesIO(begin + rest)
        np.lib.format.read_magic(both)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(both)
    except (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise UserError(f"{what}: not an array written by numpy.save ({first_line(error)}).") from None
    if dtype.hasobject:
        raise UserError(f"{what}: contains Python objects, which are not read because they can run code. Save numbers.")
    return shape, bool(fortran), dtype


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], there: int, what: str) -> int:
    """Return the bytes of an array; an error if it is empty, or if the file has fewer."""
    if any(n < 0 for n in shape):
        raise UserError(f"{what}: not an array written by numpy.save (shape {shape}).")
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes:
        raise UserError(f"{what}: is empty (shape {shape}).")
    if nbytes > there:
        raise UserError(
            f"{what}: not an array written by numpy.save (header: {nbytes:,} bytes, content: {max(0, there):,})."
        )
    return nbytes
