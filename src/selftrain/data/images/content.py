"""The content of images as numbers: equal for copies of an image, whatever their names and times.

Knows nothing of where what is known of images is kept. Contents and marks are rows of two 64-bit numbers.
"""

from __future__ import annotations

import hashlib
import os
import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

Digests = NDArray[np.uint64]
"""(n, 2); zeros stand for unknown"""

SETTLED = 2.0
"""seconds: a file changed later than this ago may change again without a new time"""


def digest(*parts: bytes | memoryview) -> bytes:
    """Return 16 bytes of a hash."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()[:16]


def digests(values: list[bytes]) -> Digests:
    """Return 16 bytes each as numbers; empty bytes are unknown."""
    joined = b"".join(value or bytes(16) for value in values)
    return np.frombuffer(joined, np.dtype("<u8")).reshape(-1, 2).astype(np.uint64)


def unknown(n: int) -> Digests:
    return np.zeros((n, 2), np.uint64)


def is_known(rows: Digests) -> NDArray[np.bool_]:
    return np.asarray(rows.any(axis=1))


def file_mark(path: str) -> bytes:
    """Return 16 bytes that change when a file is edited or replaced; empty if only reading the file can tell.

    The time of the last change of the inode is among them: tools that restore the time of modification cannot set it.
    """
    try:
        found = os.stat(path)
    except OSError:
        return b""
    if time.time() - max(found.st_mtime, found.st_ctime) < SETTLED:
        return b""
    facts = f"{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\0{found.st_ino}\0{found.st_dev}"
    return digest(facts.encode(), b"\0", os.fsencode(path))


def marks_inside(wholes: Digests, *numbers: ArrayLike) -> Digests:
    """Return marks of parts of files or tables: the mark of each whole, mixed with numbers that tell parts apart."""
    mixed: Digests = wholes.copy()
    for k, values in enumerate(numbers):
        own = np.asarray(values).astype(np.uint64) + np.uint64(k + 1)
        for column, factor in enumerate((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)):
            mixed[:, column] = (mixed[:, column] ^ own) * np.uint64(factor)
    mixed[~is_known(wholes)] = 0
    return mixed


class Lookup:
    """Where rows of two numbers are in a table of them; of equal ones, the last."""

    def __init__(self, rows: Digests):
        self.order = np.argsort(rows[:, 0], kind="stable")[::-1]  # of equal rows, the last comes first
        self.order = self.order[np.argsort(rows[self.order, 0], kind="stable")]
        self.rows = rows[self.order]

    def find(self, wanted: Digests) -> NDArray[np.int64]:
        """Return the position of each wanted row in the table; -1 if it is not there."""
        found = np.full(len(wanted), -1, np.int64)
        if not len(self.rows):
            return found
        first, second = self.rows[:, 0], self.rows[:, 1]
        open_ = np.flatnonzero(is_known(wanted))
        place = np.searchsorted(first, wanted[open_, 0])
        while len(open_):  # one round, unless rows share their first number
            inside = place < len(first)
            open_, place = open_[inside], place[inside]
            same = first[place] == wanted[open_, 0]
            open_, place = open_[same], place[same]
            hit = second[place] == wanted[open_, 1]
            found[open_[hit]] = self.order[place[hit]]
            open_, place = open_[~hit], place[~hit] + 1
        return found
