"""Parquet files as a sequence of images: a column with the bytes of image files, or with their paths or URLs.

Knows nothing of labels or classes. Needs pyarrow, imported on first use. An image is read with its row group.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selftrain.data.images import EncodedImages, Images, UnreadableImage
from selftrain.data.images.content import Digests, digests, file_mark, marks_inside
from selftrain.data.sources import parquet_file
from selftrain.data.sources.parquet_file import RowGroups, opened_parquet, rows_of_groups
from selftrain.data.sources.parquet_names import named_images
from selftrain.data.sources.urls import find_urls, is_url, url_mark
from selftrain.errors import UserError

SUFFIX = ".parquet"
PATHS = ("path", "file", "filename", "url", "image")
"""names of columns of text that hold paths, in the order in which they are looked for"""


def is_parquet(text: str) -> bool:
    """Return whether text is a pattern of Parquet files: ``x.parquet``, ``x-*.parquet``."""
    return text.endswith(SUFFIX) and not os.path.isdir(text)


def parquet_images(pattern: str) -> Images:
    """Return the images that Parquet files hold or name, in the order of their rows."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(f"{pattern}: needs the package 'pyarrow'; run pip install pyarrow.") from None
    files = list(find_urls(pattern, [SUFFIX])) if is_url(pattern) else sorted(glob.glob(pattern))
    if not files:
        raise UserError(f"{pattern}: there is no such file.")
    files = [file if is_url(file) else os.path.abspath(file) for file in files]
    column, in_bytes = _column(files[0])
    if in_bytes:
        return ParquetImages(files, column)
    for file in files:
        rows_of_groups(file, column, _is_text, "text")
    return named_images(files, column)


def _column(file: str) -> tuple[str, bool]:
    """Return the column that holds images, and whether it holds bytes (otherwise paths)."""
    with opened_parquet(file) as opened:
        kinds = {field.name: field.type for field in opened.schema_arrow}
    in_bytes = [name for name, kind in kinds.items() if _has_bytes(kind)]
    if len(in_bytes) == 1:
        return in_bytes[0], True
    in_text = [name for name in PATHS if name in kinds and _is_text(kinds[name])]
    if in_bytes or not in_text:
        found = ", ".join(f"{name} is {kind}" for name, kind in kinds.items()) or "it has no columns"
        raise UserError(
            f"{file}: expected one column with the bytes of images, or a column of text called path; {found}."
        )
    return in_text[0], False


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _has_bytes(kind: Any) -> bool:
    """Return whether a column holds bytes: plain ones, or those of an image of Hugging Face."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _has_bytes(kind.field("bytes").type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


class ParquetImages(EncodedImages):
    """A column of the bytes of images. Names are ``file.parquet/0000017``."""

    def __init__(self, files: Sequence[str], column: str) -> None:
        self.files, self.groups = list(files), RowGroups(column)
        rows: list[NDArray[np.int64]] = []
        self.names = []
        named: dict[str, str] = {}
        for k, file in enumerate(self.files):
            counts = rows_of_groups(file, column, _has_bytes, "the bytes of images", parquet_file.MOST_BYTES)
            rows += [np.stack([np.full(n, k), np.full(n, j), np.arange(n)], axis=1) for j, n in enumerate(counts)]
            name = file.rpartition("/")[2] if is_url(file) else os.path.basename(file)
            if name in named:
                raise UserError(f"{file}: has the same name as {named[name]}. Names of images would not be unique.")
            named[name] = file
            self.names += [f"{name}/{i:07d}" for i in range(sum(counts))]
        self.rows = np.concatenate([np.empty((0, 3), np.int64), *rows])
        """(n, 3): file, row group, row in it"""

    def source(self, i: int) -> bytes:
        file, group, row = self.rows[i].tolist()
        values = self.groups.values(self.files[file], group)
        if isinstance(values, str):
            raise UnreadableImage(self.where(i), values)
        if row >= len(values):
            raise UnreadableImage(self.where(i), f"row group {group} has only {len(values)} rows")
        value = values[row]
        while value.is_valid and hasattr(value, "keys"):  # of Hugging Face: {"bytes": ..., "path": ...}
            value = value["bytes"]
        return value.as_py() or b""

    def where(self, i: int) -> str:
        return f"{self.files[self.rows[i, 0]]}, row {self.names[i].rpartition('/')[2]}"

    def subset(self, indices: ArrayLike) -> ParquetImages:
        positions = self._positions(indices)
        chosen = ParquetImages.__new__(ParquetImages)
        chosen.files, chosen.groups, chosen.rows = self.files, self.groups, self.rows[positions]
        chosen.names = [self.names[i] for i in positions.tolist()]
        return chosen

    @property
    def home(self) -> str:
        return self.files[0].rpartition("/")[0]

    def marks(self) -> Digests:
        wholes = digests([url_mark(file) if is_url(file) else file_mark(file) for file in self.files])
        return marks_inside(wholes[self.rows[:, 0]], self.rows[:, 1], self.rows[:, 2])

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield self.marks().tobytes() + "\0".join(self.names).encode()
