"""Predictions as a Parquet file, for tools that read tables of many millions of rows.

Knows nothing of models. Needs pyarrow, imported on first use. Unlike in CSV, formulas are not marked as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selftrain.errors import UserError
from selftrain.files import replacing

if TYPE_CHECKING:
    from selftrain.runs.predict import Predictions

SUFFIX = ".parquet"


def check_parquet(path: Path) -> None:
    """Raise a UserError if Parquet files cannot be written here; now and not after the work."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(
            f"`output` {path}: Parquet files need pyarrow. Run pip install pyarrow, or write a .csv file."
        ) from None


def write_parquet(predictions: Predictions, path: Path) -> None:
    """Write the columns of the CSV file: path, label, confidence, novelty, duplicate_of and ``prob_<class>``."""
    check_parquet(path)
    import pyarrow
    import pyarrow.parquet

    probabilities = np.asarray(predictions.probabilities, np.float32)
    columns: dict[str, Any] = {
        "path": [_text(name) for name in predictions.paths],
        "label": [_text(str(label)) for label in predictions.answers],
        "confidence": probabilities.max(axis=1),
    }
    if predictions.novelty is not None:
        columns["novelty"] = np.asarray(predictions.novelty, np.float32)
    if predictions.duplicate_of is not None:
        columns["duplicate_of"] = [_text(name) for name in predictions.duplicate_of]
    for k, name in enumerate(predictions.classes):
        columns[f"prob_{_text(name)}"] = np.ascontiguousarray(probabilities[:, k])
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(columns), temporary)


def _text(name: str) -> str:
    """Return text that is valid UTF-8: names of files may hold any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
