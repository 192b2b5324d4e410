"""Cache arrays that are slow to compute: filled in pieces, kept between runs, safe to share and to kill.

Knows nothing of images or backbones: it is told what an array depends on and how to compute a piece of it.

A cache is a folder named by the hash of everything that its content depends on. ``array.bin`` contains the numbers,
``pieces.bin`` a checksum per finished piece, ``about.json`` a description. A piece counts as finished only if its
checksum matches, so damage by a kill, a full disk or another program is noticed, and the piece is recomputed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.files import write_json

ARRAY, PIECES, ABOUT, LOCK = "array.bin", "pieces.bin", "about.json", "lock"
NAME = 24  # hexadecimal digits of the hash in the name of a cache folder
VERIFIED_IN_FULL = 1 << 28  # bytes; of a larger finished cache a sample of the pieces is verified


def cache_root(given: str | None = None) -> Path:
    """Return the folder of caches: as given, else ``$SELFTRAIN_CACHE``, else the user's cache folder."""
    if given:
        return Path(given).expanduser()
    if own := os.environ.get("SELFTRAIN_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "selftrain"


def can_be_kept(root: Path) -> bool:
    """Return whether caches can be written to this folder."""
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def cached_array(
    root: Path,
    about: dict[str, Any],
    shape: tuple[int, ...],
    dtype: str,
    compute: Callable[[int, int], np.ndarray],
    *,
    piece: int,
    threads: int = 1,
    reporter: Reporter | None = None,
    what: str = "computing",
    unit: str = "rows",
) -> np.ndarray:
    """Return the array that ``about`` describes, read-only and memory-mapped; missing pieces are computed first.

    ``compute(start, stop)`` returns rows start..stop-1 and must be pure. ``threads`` pieces are computed in parallel.
    """
    reporter = reporter or Reporter(quiet=True)
    about = {**about, "shape": list(shape), "dtype": dtype, "piece": piece}
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    folder = root / key[:NAME]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cache {root}: cannot be written ({error.strerror}). Choose another folder with SELFTRAIN_CACHE."
        ) from None
    if not _is_writable(folder):  # another user's, or on a read-only disk: usable if it is complete
        return _open_complete(folder, key, about, shape, np.dtype(dtype), piece)
    with _locked(folder, reporter):
        store = _Store(folder, shape, np.dtype(dtype), piece)
        store.open(key, about, reporter)
        missing = store.missing()
        if missing:
            done = len(store.checksums) - len(missing)
            if done:
                reporter.say(f"{what}: {done} of {len(store.checksums)} pieces are already in {folder}")
            kept = "finished pieces are kept, and the same command resumes from there"
            with reporter.progress(what, shape[0], unit, start=done * piece, kept=kept) as bar:
                _fill(store, missing, compute, threads, bar.reach)
        with suppress(OSError):
            os.utime(folder / ABOUT)  # the time of the last use
    return np.memmap(folder / ARRAY, np.dtype(dtype), mode="r", shape=shape)


def _is_writable(folder: Path) -> bool:
    """Return whether this process may write to the folder and to the files in it."""
    files = (folder / name for name in (ARRAY, PIECES, ABOUT, LOCK))
    return os.access(folder, os.W_OK) and all(os.access(file, os.W_OK) for file in files if file.is_file())


def _open_complete(
    folder: Path, key: str, about: dict[str, Any], shape: tuple[int, ...], dtype: Any, piece: int
) -> np.ndarray:
    """Return the array of a cache that cannot be written; an error if anything is missing."""
    try:
        store = _Store(folder, shape, dtype, piece)
        store.open(key, about, Reporter(quiet=True))
        complete = not store.missing()
    except (OSError, UserError):
        complete = False
    if not complete:
        raise UserError(
            f"cache {folder}: incomplete, and cannot be written. Choose another folder with SELFTRAIN_CACHE."
        )
    return np.memmap(folder / ARRAY, dtype, mode="r", shape=shape)


def _locked(folder: Path, reporter: Reporter) -> FileLock:
    """Return the lock of a cache: one process fills it, others wait. A killed process releases its lock at once."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0.2)
        lock.release()
    except Timeout:
        reporter.say(f"waiting for another process that fills {folder}")
    return lock


class _Store:
    """The files of one cache: ``open`` creates them or continues with existing ones."""

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: np.dtype[Any], piece: int):
        self.folder, self.shape, self.dtype, self.piece = folder, shape, dtype, piece
        self.row = int(np.prod(shape[1:])) * dtype.itemsize
        pieces = -(-shape[0] // piece)
        self.checksums = np.zeros(pieces, np.uint32)
        self.finished = False

    def open(self, key: str, about: dict[str, Any], reporter: Reporter) -> None:
        """Continue with the files that exist; create them if there are none, or none that fit."""
        folder = self.folder
        if any((folder / name).exists() for name in (ARRAY, PIECES, ABOUT)) and not self._fits(key):
            reporter.warn(f"cache {folder}: truncated or from another program; recomputing it")
            for name in (ABOUT, PIECES, ARRAY):
                (folder / name).unlink(missing_ok=True)
        if (folder / ABOUT).exists():
            self.checksums = np.fromfile(folder / PIECES, np.uint32)
            self.finished = bool(self.checksums.all())
        else:
            self._make(key, about)

    def _fits(self, key: str) -> bool:
        try:
            found = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
            return (
                found.get("key") == key
                and (self.folder / ARRAY).stat().st_size == self.shape[0] * self.row
                and (self.folder / PIECES).stat().st_size == self.checksums.nbytes
            )
        except (OSError, ValueError, AttributeError):
            return False

    def _make(self, key: str, about: dict[str, Any]) -> None:
        size = self.shape[0] * self.row
        try:
            with (self.folder / ARRAY).open("wb") as file:
                if hasattr(os, "posix_fallocate") and size:
                    os.posix_fallocate(file.fileno(), 0, size)  # fail on a full disk now and not hours later
                file.truncate(size)
            self.checksums.tofile(self.folder / PIECES)
            write_json(self.folder / ABOUT, {"key": key, **about})
        except OSError as error:
            self._no_space(error, size)
        except UserError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _no_space(self, error: OSError, size: int) -> None:
        free = shutil.disk_usage(self.folder.parent).free
        shutil.rmtree(self.folder, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"cache {self.folder.parent}: needs {size / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free. Free "
                f"space ('selftrain cache --clear'), or choose another folder with SELFTRAIN_CACHE or `data.cache`."
            ) from None
        raise UserError(f"cache {self.folder.parent}: cannot be written ({error.strerror}).") from None

    def missing(self) -> list[int]:
        """Return the pieces to compute: those without a checksum, and those whose numbers do not match it."""
        todo = set(np.flatnonzero(self.checksums == 0).tolist())
        done = np.flatnonzero(self.checksums)
        if self.finished and self.shape[0] * self.row > VERIFIED_IN_FULL:
            done = np.unique(np.concatenate([done[:8], done[-8:], done[:: max(1, len(done) // 64)]]))
        with (self.folder / ARRAY).open("rb") as file:
            for number in done.tolist():
                file.seek(number * self.piece * self.row)
                if _checksum(file.read(self._rows(number) * self.row)) != self.checksums[number]:
                    todo.add(number)
        return sorted(todo)

    def _rows(self, number: int) -> int:
        return min(self.piece, self.shape[0] - number * self.piece)

    def span(self, number: int) -> tuple[int, int]:
        return number * self.piece, number * self.piece + self._rows(number)

    def write(self, number: int, values: np.ndarray) -> None:
        block = np.ascontiguousarray(values, self.dtype).tobytes()
        if len(block) != self._rows(number) * self.row:
            raise ValueError(f"piece {number} has {len(block)} bytes instead of {self._rows(number) * self.row}")
        self.checksums[number] = _checksum(block)
        try:
            with (self.folder / ARRAY).open("r+b") as file:
                file.seek(number * self.piece * self.row)
                file.write(block)
            with (self.folder / PIECES).open("r+b") as file:
                file.seek(4 * number)
                file.write(self.checksums[number].tobytes())
        except OSError as error:
            raise UserError(f"cache {self.folder}: cannot be written ({error.strerror}).") from None


def _checksum(block: bytes) -> int:
    return zlib.crc32(block) or 1  # 0 means not computed yet


def _fill(
    store: _Store,
    missing: list[int],
    compute: Callable[[int, int], np.ndarray],
    threads: int,
    progress: Callable[[int], None],
) -> None:
    """Compute ``threads`` pieces at a time and write them in order, so that few are held in memory."""
    done = store.shape[0] - sum(b - a for a, b in map(store.span, missing))
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[tuple[int, Future[np.ndarray]]] = deque()
        waiting = deque(missing)
        try:
            while waiting or ahead:
                while waiting and len(ahead) < threads + 1:
                    number = waiting.popleft()
                    ahead.append((number, pool.submit(compute, *store.span(number))))
                number, future = ahead.popleft()
                store.write(number, future.result())
                start, stop = store.span(number)
                done += stop - start
                progress(done)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True)
class CacheInfo:
    """A cache, as ``list_caches`` describes it."""

    folder: Path
    about: dict[str, Any]
    bytes: int
    done: float
    """share of finished pieces"""
    days: float
    """since it was last used"""


def list_caches(root: Path) -> list[CacheInfo]:
    """Return the caches under ``root``, the most recently used first; a damaged one counts as empty."""
    found = []
    try:
        folders = [folder for folder in sorted(root.iterdir()) if re.fullmatch(f"[0-9a-f]{{{NAME}}}", folder.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cache {root}: cannot be read ({error.strerror}).") from None
    for folder in folders:
        if not any((folder / part).is_file() for part in (ABOUT, PIECES, ARRAY)):
            continue
        with suppress(OSError):  # deleted in the meantime
            about, done = _described(folder)
            size = sum(file.stat().st_size for file in folder.iterdir())
            days = (time.time() - (folder / ABOUT if about else folder).stat().st_mtime) / 86400
            found.append(CacheInfo(folder, about, size, done, days))
    return sorted(found, key=lambda info: info.days)


def _described(folder: Path) -> tuple[dict[str, Any], float]:
    """Return the description of a cache and the share of finished pieces; nothing if it is damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        checksums = np.fromfile(folder / PIECES, np.uint32)
        has_views = len(about["shape"]) > 1
    except (OSError, ValueError, TypeError, LookupError):
        return {}, 0.0
    if not has_views:
        return {}, 0.0
    return about, float((checksums != 0).mean()) if len(checksums) else 1.0


def clear_caches(root: Path, name: str | None = None) -> tuple[list[CacheInfo], list[CacheInfo]]:
    """Delete all caches, or those whose folder name starts with ``name``.

    Returns the deleted ones, and those that were kept because a process fills them or because they cannot be written.
    """
    gone, left = [], []
    for info in list_caches(root):
        if name is None or info.folder.name.startswith(name):
            try:
                with FileLock(info.folder / LOCK, timeout=0):
                    for part in (ABOUT, PIECES, ARRAY):
                        (info.folder / part).unlink(missing_ok=True)
                (info.folder / LOCK).unlink(missing_ok=True)
            except (Timeout, OSError):
                left.append(info)
                continue
            with suppress(OSError):  # a folder with files of another program stays
                info.folder.rmdir()
            gone.append(info)
    return gone, left
