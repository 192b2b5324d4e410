"""Where the numbers of a memory-mapped array are in their file.

Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

import numpy as np


class Place(NamedTuple):
    """A file, and the byte at which an array begins in it."""

    name: str
    offset: int


def place_in_file(array: Any) -> Place | None:
    """Return where an array lies in one piece in a file; None if it does not."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and not isinstance(whole.base, mmap.mmap):
        whole = whole.base  # a part or another shape of a mapped array is in the same file
    if not isinstance(whole, np.memmap) or not array.flags.c_contiguous or whole.filename is None or whole.mode == "c":
        return None  # "c": changes are in memory only
    if not os.path.isfile(whole.filename):
        return None
    return Place(str(whole.filename), int(whole.offset + array.ctypes.data - whole.ctypes.data))
