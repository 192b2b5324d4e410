"""Class names: compared, looked up, and turned into positions.

Knows nothing of where the names come from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.errors import UserError, nearest


def composed(name: str) -> str:
    """Return a name with its accents in Unicode's composed form (NFC): macOS stores the same name decomposed."""
    return unicodedata.normalize("NFC", name)


def without_case(name: str) -> str:
    """Return a class name in lower case and without spaces, to compare names that are easily confused."""
    return "".join(name.casefold().split())


def not_a_class(name: str, classes: Sequence[str]) -> str:
    """Return the end of an error message about a name that is not one of the classes."""
    return f"not a class of the training data ({_first(classes)}).{nearest(name, classes)}"


def positions(names: Sequence[str], classes: Sequence[str], argument: str) -> NDArray[np.int64]:
    """Return the position in ``classes`` of each name; accents may be composed or not."""
    position = {composed(name): k for k, name in enumerate(classes)}
    return encode_labels([composed(name) for name in names], position, classes, argument)


def encode_labels(
    values: Sequence[Any], position: Mapping[Any, int], classes: Sequence[str], argument: str
) -> NDArray[np.int64]:
    """Return labels as positions, with None as -1; ``argument`` is their name in errors."""
    labels = np.full(len(values), -1, np.int64)
    for i, value in enumerate(values):
        if value is None:
            continue
        if value not in position:
            hint = nearest(str(value), classes)
            raise UserError(f"{argument}: {value!r} is not one of the classes ({_first(classes)}).{hint}")
        labels[i] = position[value]
    return labels


def _first(classes: Sequence[str]) -> str:
    return ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
