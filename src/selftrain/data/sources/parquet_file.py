"""Read columns of Parquet files, here or in object stores, with little memory.

Knows nothing of how images are named or decoded. Needs pyarrow, imported on first use.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selftrain.data.images import UnreadableImage
from selftrain.data.sources.store_errors import why_unreadable
from selftrain.data.sources.urls import is_url, open_url, patiently
from selftrain.errors import UserError, is_of_the_machine
from selftrain.regular_files import open_regular
from selftrain.text import first_line

MOST_BYTES = 512 << 20
"""of one column in a row group, uncompressed; as many of earlier row groups are kept"""
MOST_ROWS = 1024
"""that are read at a time"""
_TOO_LARGE = (
    f"More than {MOST_BYTES >> 20} MB are not read: write the file again with smaller row groups "
    f"(pyarrow: row_group_size=500)"
)


@contextmanager
def opened_parquet(file: str) -> Iterator[Any]:
    """Open a Parquet file; an error inside is one about the file."""
    import pyarrow.parquet

    try:
        with open_url(file) if is_url(file) else open_regular(file) as opened:
            yield pyarrow.parquet.ParquetFile(opened)
    except (MemoryError, UserError):
        raise
    except Exception as error:  # of pyarrow, or of a store
        raise UserError(f"{file}: not a readable Parquet file ({first_line(error)}).") from None


def rows_of_groups(
    file: str, column: str, fits: Callable[[Any], bool], what: str, most: float = float("inf")
) -> list[int]:
    """Return the number of rows of each row group; an error if one is too large, or the file lacks the column."""
    with opened_parquet(file) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        k = schema.get_field_index(column)
        if k < 0 or not fits(schema.field(k).type):
            found = "is missing" if k < 0 else f"is {schema.field(k).type}"
            raise UserError(f"{file}: the column {column!r} {found}; the other files have one with {what}.")
        rows = []
        for i in range(metadata.num_row_groups):
            size = _size_in_file(metadata, i, column)
            if size > most:
                raise UserError(
                    f"{file}: row group {i} has {size / 2**20:,.0f} MB in the column {column!r}. {_TOO_LARGE}."
                )
            rows.append(metadata.row_group(i).num_rows)
    return rows


def parts_of_group(opened: Any, group: int, column: str) -> Iterator[Any]:
    """Yield a column of a row group in parts: values that repeat take less space in the file than in memory."""
    rows = max(1, min(MOST_ROWS, MOST_BYTES // max(1, _size_in_file(opened.metadata, group, column))))
    for batch in opened.iter_batches(batch_size=rows, row_groups=[group], columns=[column]):
        yield batch.column(batch.schema.get_field_index(column))


def _size_in_file(metadata: Any, group: int, column: str) -> int:
    """Return the bytes of a column in a row group, with its fields, as the file gives them: uncompressed."""
    of_group = metadata.row_group(group)
    parts = (of_group.column(j) for j in range(metadata.num_columns))
    own = (part for part in parts if part.path_in_schema == column or part.path_in_schema.startswith(f"{column}."))
    return sum(part.total_uncompressed_size for part in own)


class RowGroups:
    """Row groups of one column, read on demand. All threads share those that were read last."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._clear()

    def _clear(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def values(self, file: str, group: int) -> Any:
        """Return the values of a row group; text says why it cannot be read."""
        if self._process != os.getpid():  # forked, perhaps while a thread held the lock
            self._clear()
        key = file, group
        with self._lock:  # one thread reads, the others wait for what it reads
            if key not in self._kept:
                while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > MOST_BYTES // 2:
                    self._kept.popitem(last=False)
                self._kept[key] = _read_group(file, group, self.column)
            self._kept.move_to_end(key)
            return self._kept[key]

    def __getstate__(self) -> str:
        return self.column

    def __setstate__(self, column: str) -> None:
        self.column = column
        self._clear()


def _size(values: Any) -> int:
    return 0 if isinstance(values, str) else int(values.nbytes)


def _read_group(file: str, group: int, column: str) -> Any:
    """Return a column of a row group, or why its part of the file is broken."""
    import pyarrow.parquet

    def read() -> Any:
        with open_url(file) if is_url(file) else open_regular(file) as opened:
            try:
                parts, size = [], 0
                for part in parts_of_group(pyarrow.parquet.ParquetFile(opened), group, column):
                    size += part.nbytes
                    if size > MOST_BYTES:
                        return f"row group {group} is too large. {_TOO_LARGE}"
                    parts.append(part)
                return pyarrow.chunked_array(parts) if parts else ""
            except Exception as error:
                if _is_of_the_content(error, is_url(file)):
                    return f"row group {group} is broken ({first_line(error)})"
                raise

    try:
        return patiently(file, read) if is_url(file) else read()
    except UnreadableImage as error:
        return error.reason
    except OSError as error:
        if reason := why_unreadable(error):
            return reason
        raise UserError(f"{file}: cannot be read ({first_line(error)}).") from None


def _is_of_the_content(error: Exception, remote: bool) -> bool:
    """Return whether an error is about the bytes of a file, unlike those of disks and stores."""
    from pyarrow.lib import ArrowException

    if is_of_the_machine(error):
        return False
    if remote:
        return isinstance(error, ArrowException)  # an OSError may be one of the store
    return not (isinstance(error, OSError) and error.errno is not None)
