"""Parquet files as a sequence of images: a column with the bytes of image files, or with their paths or URLs.

Knows nothing of labels or classes. Needs pyarrow, imported on first use. An image is read with its row group.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selftrain.data.images import EncodedImages, FileImages, Images, JoinedImages
from selftrain.data.images.content import Digests, digests, file_mark, marks_inside
from selftrain.data.sources.urls import UrlImages, find_urls, is_url, open_url, url_mark
from selftrain.errors import UserError
from selftrain.regular_files import open_regular
from selftrain.text import first_line

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
    parts = [_named_images(file, column) for file in files]
    return parts[0] if len(parts) == 1 else JoinedImages(parts)


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """Open a Parquet file; an error inside is one about the file."""
    import pyarrow.parquet

    try:
        with open_url(file) if is_url(file) else open_regular(file) as opened:
            yield pyarrow.parquet.ParquetFile(opened)
    except UserError:
        raise
    except Exception as error:  # of pyarrow, or of a store
        raise UserError(f"{file}: not a readable Parquet file ({first_line(error)}).") from None


def _column(file: str) -> tuple[str, bool]:
    """Return the column that holds images, and whether it holds bytes (otherwise paths)."""
    import pyarrow.types as types

    with _opened(file) as opened:
        kinds = {field.name: field.type for field in opened.schema_arrow}
    in_bytes = [name for name, kind in kinds.items() if _bytes_of(kind)]
    if len(in_bytes) == 1:
        return in_bytes[0], True
    text = {name for name, kind in kinds.items() if types.is_string(kind) or types.is_large_string(kind)}
    in_text = [name for name in PATHS if name in text]
    if in_bytes or not in_text:
        found = ", ".join(f"{name} is {kind}" for name, kind in kinds.items()) or "it has no columns"
        raise UserError(
            f"{file}: expected one column with the bytes of images, or a column of text called path; {found}."
        )
    return in_text[0], False


def _bytes_of(kind: Any) -> bool:
    """Return whether a column holds bytes: plain ones, or those of an image of Hugging Face."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _bytes_of(kind.field("bytes").type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _named_images(file: str, column: str) -> Images:
    """Return the images whose paths or URLs a column has; paths are relative to the folder of the file."""
    with _opened(file) as opened:
        names = [str(name) for name in opened.read([column])[column].to_pylist()]
    if len(set(names)) < len(names):
        raise UserError(f"{file}: names the same image twice in the column {column!r}.")
    folder = file.rpartition("/")[0] if is_url(file) else str(Path(file).parent)
    if not is_url(file) and not any(is_url(name) for name in names):
        return FileImages(folder, names)
    return UrlImages([name if is_url(name) else f"{folder}/{name}" for name in names], names)


class ParquetImages(EncodedImages):
    """A column of the bytes of images. Names are ``file.parquet/0000017``."""

    def __init__(self, files: Sequence[str], column: str) -> None:
        self.files, self.column = list(files), column
        rows: list[NDArray[np.int64]] = []
        self.names = []
        for k, file in enumerate(self.files):
            with _opened(file) as opened:
                groups = opened.metadata
            for group in range(groups.num_row_groups):
                n = groups.row_group(group).num_rows
                rows.append(np.stack([np.full(n, k), np.full(n, group), np.arange(n)], axis=1))
            name = file.rpartition("/")[2] if is_url(file) else os.path.basename(file)
            self.names += [f"{name}/{i:07d}" for i in range(groups.num_rows)]
        if len(set(self.names)) < len(self.names):
            raise UserError(f"{self.files[0]}: several Parquet files have this name.")
        self.rows = np.concatenate([np.empty((0, 3), np.int64), *rows])
        """(n, 3): file, row group, row in it"""

    def source(self, i: int) -> bytes:
        file, group, row = self.rows[i].tolist()
        value = _groups.at(self.files[file], group, self.column)[row].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        return content or b""

    def where(self, i: int) -> str:
        return f"{self.files[self.rows[i, 0]]}, row {self.names[i].rpartition('/')[2]}"

    def subset(self, indices: ArrayLike) -> ParquetImages:
        positions = self._positions(indices)
        chosen = ParquetImages.__new__(ParquetImages)
        chosen.files, chosen.column, chosen.rows = self.files, self.column, self.rows[positions]
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


class _Groups(threading.local):
    """The row group that a thread has used last."""

    def __init__(self) -> None:
        self.key: tuple[str, int, str] | None = None
        self.values: Any = None

    def at(self, file: str, group: int, column: str) -> Any:
        if self.key != (file, group, column):
            with _opened(file) as opened:
                self.values = opened.read_row_group(group, columns=[column])[column]
            self.key = file, group, column
        return self.values


_groups = _Groups()
