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
    if not isinstance(array, np.memmap) or not array.flags.c_contiguous or array.filename is None:
        return None
    whole: Any = array
    while isinstance(whole.base, np.memmap):  # a part or another shape of a mapped array keeps the offset of the whole
        whole = whole.base
    if not isinstance(whole.base, mmap.mmap) or not os.path.isfile(array.filename):
        return None
    return Place(str(array.filename), int(whole.offset + array.ctypes.data - whole.ctypes.data))
