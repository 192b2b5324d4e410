"""What is known of images from earlier runs: the content of each file, and which contents can be decoded.

Knows nothing of features, labels or runs. All of it can be found again by reading the images.

``known/<name>.log`` has the contents of the images of one home (a folder, tar files), each beside the mark that the
image had when it was read. ``known/readable.log`` has contents that were decoded without an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selftrain.data.blocks import append_block, read_blocks
from selftrain.data.images.content import Digests, Lookup, digests, is_known, unknown
from selftrain.data.images.sequence import Images, JoinedImages
from selftrain.errors import UserError

FOLDER, READABLE = "known", "readable.log"
AT_ONCE = 4096  # images read before what was found is written
PER_TASK = 16  # images that a thread reads at a time: in shards, a task takes longer to hand out than an image to read
NAMED, RECORDS = b"h", b"r"  # the kinds of blocks

Progress = Callable[[int, int], object]


class Memory:
    """What is known of images, in a folder; without one, or if it cannot be written, nothing is remembered."""

    def __init__(self, root: Path | None):
        self.folder = None if root is None else root / FOLDER

    def contents(
        self, images: Images, *, read: bool = True, threads: int = 2, progress: Progress | None = None
    ) -> Digests:
        """Return the content of every image; files that changed, or were never seen, are read.

        Unreadable ones are zeros, and without ``read`` those that would have to be read.
        """
        if isinstance(images, JoinedImages):
            found = unknown(len(images))
            for piece, places in images.pieces():
                found[places] = self.contents(piece, read=read, threads=threads, progress=progress)
            return found
        marks = images.marks()
        marked = is_known(marks)
        found = self._recalled(images.home, marks) if marked.any() else unknown(len(images))
        missing = np.flatnonzero(~is_known(found))
        if not read or not len(missing):
            return found
        with ThreadPoolExecutor(threads, thread_name_prefix="read-contents") as pool:
            try:
                for start in range(0, len(missing), AT_ONCE):
                    rows = missing[start : start + AT_ONCE]
                    parts = [rows[k : k + PER_TASK].tolist() for k in range(0, len(rows), PER_TASK)]
                    contents = pool.map(lambda part: [images.content(i) for i in part], parts)
                    found[rows] = digests(list(chain.from_iterable(contents)))
                    self._remember(images.home, marks[rows], found[rows])
                    if progress is not None:
                        progress(len(images) - len(missing) + start + len(rows), len(images))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return found

    def readable(self, contents: Digests) -> NDArray[np.bool_]:
        """Return which contents were decoded without an error before."""
        if self.folder is None:
            return np.zeros(len(contents), bool)
        known = _joined(list(_records(self.folder / READABLE, 2)), 2)
        return np.asarray(Lookup(known).find(contents) >= 0)

    def add_readable(self, contents: Digests) -> None:
        """Remember contents that were decoded without an error."""
        self._append(READABLE, contents[is_known(contents)])

    def learn(self, home: str, marks: Digests, contents: Digests, readable: Digests) -> None:
        """Remember what others found: the contents behind marks, and contents that can be decoded."""
        self._remember(home, marks, contents)
        self.add_readable(readable)

    def homes(self) -> Iterator[tuple[str, Digests]]:
        """Yield each home of images, and the contents that were found there, each once."""
        if self.folder is None or not self.folder.is_dir():
            return
        for log in sorted(self.folder.glob("*.log")):
            home = next((block[1:] for block in read_blocks(log) if block[:1] == NAMED), None)
            with suppress(ValueError, KeyError, TypeError):
                if home is not None:
                    table = _joined(list(_records(log, 4)), 4)
                    yield str(json.loads(home)["home"]), np.unique(table[:, 2:], axis=0)

    def forget(self) -> None:
        """Delete everything that is remembered."""
        if self.folder is not None and self.folder.is_dir():
            for log in self.folder.glob("*.log"):
                log.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    def _log_of(self, home: str) -> str:
        return hashlib.sha256(home.encode("utf-8", "surrogateescape")).hexdigest()[:24] + ".log"

    def _recalled(self, home: str, marks: Digests) -> Digests:
        found = unknown(len(marks))
        if self.folder is None or not home:
            return found
        table = _joined(list(_records(self.folder / self._log_of(home), 4)), 4)
        places = Lookup(table[:, :2]).find(marks)
        found[places >= 0] = table[places[places >= 0], 2:]
        return found

    def _remember(self, home: str, marks: Digests, contents: Digests) -> None:
        keep = is_known(marks) & is_known(contents)
        if not home or self.folder is None or not keep.any():
            return
        name = self._log_of(home)
        if not (self.folder / name).exists():
            self._write(name, NAMED + json.dumps({"home": home.encode("utf-8", "replace").decode()}).encode())
        self._append(name, np.concatenate([marks, contents], axis=1)[keep])

    def _append(self, name: str, records: Digests) -> None:
        if len(records):
            self._write(name, RECORDS + np.ascontiguousarray(records, "<u8").tobytes())

    def _write(self, name: str, block: bytes) -> None:
        if self.folder is not None:
            with suppress(OSError, UserError):  # a full disk, or one that can only be read: found again next time
                self.folder.mkdir(parents=True, exist_ok=True)
                append_block(self.folder / name, block)


def _records(path: Path, columns: int) -> Iterator[Digests]:
    for block in read_blocks(path):
        if block[:1] == RECORDS and (len(block) - 1) % (8 * columns) == 0:
            yield np.frombuffer(block, "<u8", offset=1).reshape(-1, columns).astype(np.uint64)


def _joined(parts: list[Digests], columns: int) -> Digests:
    return np.concatenate([np.empty((0, columns), np.uint64), *parts])
