"""Columns of numbers and text as a Parquet file, for tools that read tables of many millions of rows.

Knows nothing of models or predictions. Needs pyarrow, imported on first use. Unlike in CSV, formulas are not marked as
text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.errors import UserError
from selftrain.files import replacing

SUFFIX = ".parquet"


def check_parquet(path: Path) -> None:
    """Raise a UserError if Parquet files cannot be written here; now and not after the work."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(
            f"`output` {path}: Parquet files need pyarrow. Run pip install pyarrow, or write a .csv file."
        ) from None


def write_parquet(path: Path, columns: Mapping[str, Sequence[str] | NDArray[Any]]) -> None:
    """Write columns by name: arrays of numbers, as float32, or text."""
    check_parquet(path)
    import pyarrow
    import pyarrow.parquet

    values: dict[str, Any] = {}
    for name, column in columns.items():
        is_numbers = isinstance(column, np.ndarray)
        values[_text(name)] = np.array(column, np.float32) if is_numbers else [_text(str(one)) for one in column]
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(values), temporary)


def _text(name: str) -> str:
    """Return text that is valid UTF-8: names of files may hold any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
