"""Tensors in a safetensors file: written atomically, and read only if they are what is expected.

Knows nothing of what tensors mean. A file may come from anybody: its header is compared with what is expected before
memory is taken, its checksum before a number is used, and numbers that are not finite are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from selftrain.checksums import file_checksum
from selftrain.errors import UserError
from selftrain.files import cannot_write, replacing
from selftrain.regular_files import open_regular
from selftrain.text import first_line

LARGEST_HEADER = 100_000_000  # bytes, as the format's own library has it
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class Stored(NamedTuple):
    """A tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, within: Path | None = None) -> str:
    """Write tensors to a file and return the file's checksum."""
    with replacing(path, within=within) as temporary:
        try:
            safetensors.torch.save_file(dict(tensors), temporary)
        except safetensors.SafetensorError as error:
            raise cannot_write(path, error) from None
        with temporary.open("rb") as file:
            found = file_checksum(file)
    return found


def read_tensors(path: Path, *, checksum: str | None = None, most: int | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file, on the CPU.

    ``checksum`` is what ``write_tensors`` returned, if it is known. ``most`` are the bytes that may be read.
    """
    stored_tensors(path, most=most)
    try:
        if checksum is not None:
            with open_regular(path) as file:
                if file_checksum(file) != checksum:
                    raise UserError(f"{path}: is damaged (its checksum differs from the one that was stored with it).")
        tensors = _load(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: is damaged ({first_line(error)}).") from None
    return tensors


def _load(path: Path) -> dict[str, Tensor]:
    try:
        str(path).encode()
    except UnicodeEncodeError:  # the format's own library opens no file whose name is not UTF-8
        with open_regular(path) as file:
            return safetensors.torch.load(file.read())
    return safetensors.torch.load_file(path)


def stored_tensors(path: Path, *, most: int | None = None) -> dict[str, Stored]:
    """Return type and shape of every tensor of a file, from its header alone; the tensors must be all there."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= LARGEST_HEADER:
                raise ValueError("it has no header")
            header = json.loads(file.read(length))
            size = file.seek(0, 2) - 8 - length
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a safetensors file ({first_line(error)}).") from None
    try:
        found = {name: _stored(value, size) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a safetensors file ({first_line(error)}).") from None
    if most is not None and size > most:
        raise UserError(f"{path}: too large ({size / 1e6:,.1f} MB, expected at most {most / 1e6:,.1f} MB).")
    return found


def _stored(value: Any, size: int) -> Stored:
    dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in BYTES or not all(type(n) is int and 0 <= n < 1 << 48 for n in (*shape, start, stop)):
        raise ValueError("a tensor has an unknown type or shape")
    count = 1
    for n in shape:
        count *= n
    if not start <= stop <= size or stop - start != count * BYTES[dtype]:
        raise ValueError("a tensor has another size than its shape")
    return Stored(dtype, tuple(shape))


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise a UserError that names the first tensor with a number that is not finite."""
    if bad := first_not_finite(tensors):
        raise UserError(
            f"{path}: {bad} holds numbers that are not finite (NaN or infinite), so every result would be meaningless."
        )


def first_not_finite(tensors: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor with a number that is NaN or infinite; "" if there is none."""
    for name, value in tensors.items():
        # A sum is finite only if all numbers are; it reads memory once, and overflow is told apart below.
        if (
            value.is_floating_point()
            and not torch.isfinite(value.sum(dtype=torch.float64))
            and not value.isfinite().all()
        ):
            return name
    return ""
