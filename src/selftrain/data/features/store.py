"""Vectors that are slow to compute, by image content: found in a collection, or computed once and added to it.

Knows nothing of images or backbones: it is told what vectors depend on and how to compute some.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from selftrain.console import Reporter
from selftrain.data.features.collection import WRITE_AGAIN, Collection, Writer, view_id
from selftrain.data.features.stored import StoredFeatures
from selftrain.data.images.content import Digests
from selftrain.errors import UserError

KEPT = "finished pieces are kept, and the same command resumes from there"
FEATURES = "features"
"""the folder of collections inside the cache folder"""

Compute = Callable[[NDArray[np.int64], Sequence[int]], NDArray[Any]]
"""rows and positions of views -> vectors (rows, views, width); must be pure"""
Job = tuple[NDArray[np.int64], list[int]]
"""rows and positions of views to compute"""
Fill = Callable[[Collection, Sequence[bytes], list[Job]], None]
"""adds the vectors of jobs to a collection, in other processes; the views are those of the collection"""


def stored_vectors(
    collection: Collection,
    contents: Digests,
    specs: Sequence[dict[str, Any]],
    compute: Compute,
    *,
    piece: int,
    threads: int = 1,
    reporter: Reporter | None = None,
    what: str = "computing",
    unit: str = "images",
    before: Callable[[int], None] = lambda missing: None,
    fill: Fill | None = None,
) -> StoredFeatures:
    """Return the vectors (n, views, width) of the views that ``specs`` describe; missing ones are computed and added.

    ``contents`` has a row per image. ``compute`` gets positions in ``contents`` and in ``specs``. Images with equal
    contents are computed once. ``threads`` pieces of ``piece`` images are computed in parallel. ``before`` is called
    with the number of missing vectors, if there are any. ``fill`` computes them elsewhere.
    """
    reporter = reporter or Reporter(quiet=True)
    writable = collection.open()
    views = [view_id(spec) for spec in specs]
    files, places = collection.find(contents, views)
    if (places < 0).any() and not writable:
        raise UserError(f"cache {collection.folder}: incomplete, and cannot be written. {WRITE_AGAIN}")
    if (places < 0).any():
        with _alone(collection, contents, reporter):
            files, places = collection.find(contents, views)  # another process may have added some
            if (places < 0).any():
                collection.name_views(dict(zip(views, specs, strict=True)))
                jobs = missing_jobs(contents, places < 0, piece)
                collection.check_space(sum(len(rows) * len(some) for rows, some in jobs))
                if have := int((places >= 0).all(axis=1).sum()):
                    reporter.say(f"{what}: {have:,} of {len(contents):,} {unit} are already in {collection.folder}")
                if fill is not None:
                    fill(collection, views, jobs)
                else:
                    before(int((places < 0).sum()))
                    with reporter.progress(what, images_of(jobs), unit, kept=KEPT) as bar:
                        add_vectors(collection, contents, views, jobs, compute, threads, bar.reach)
        files, places = collection.find(contents, views)
    if (places < 0).any():
        raise UserError(f"cache {collection.folder}: was changed while in use. Run the same command again.")
    return collection.stored(files, places)


def find_all(collection: Collection, contents: Digests, specs: Sequence[dict[str, Any]]) -> StoredFeatures | None:
    """Return the vectors of the views that ``specs`` describe if all are stored."""
    files, places = collection.find(contents, [view_id(spec) for spec in specs])
    if (places < 0).any():
        return None
    collection.open()  # notes the time of the last use
    return collection.stored(files, places)


@contextmanager
def _alone(collection: Collection, contents: Digests, reporter: Reporter) -> Iterator[None]:
    """Let one process at a time work on a list of images; others wait and then find what it has added.

    A killed process releases its lock at once. Without locks, as on some network filesystems, work is done twice.
    """
    name = hashlib.sha256(np.ascontiguousarray(contents).tobytes()).hexdigest()[:12]
    lock = FileLock(collection.folder / f"list-{name}.lock")
    try:
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            reporter.say(f"waiting for another process that fills {collection.folder}")
            lock.acquire()
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()


def add_vectors(
    collection: Collection,
    contents: Digests,
    views: Sequence[bytes],
    jobs: list[Job],
    compute: Compute,
    threads: int,
    progress: Callable[[int], object] = lambda done: None,
) -> None:
    """Compute vectors and add them, a piece per job; what the collection has already is not looked at."""
    with Writer(collection) as writer:
        done = 0
        for (rows, some), values in in_parallel(jobs, compute, threads):
            writer.add(contents[rows], [views[j] for j in some], values)
            done += len(rows)
            progress(done)


def images_of(jobs: list[Job]) -> int:
    """Return the number of images of jobs."""
    return sum(len(rows) for rows, _ in jobs)


def missing_jobs(contents: Digests, missing: NDArray[np.bool_], piece: int) -> list[Job]:
    """Return rows and views to compute, a piece each; of rows with the same content, the first stands for all."""
    _, first = np.unique(contents, axis=0, return_index=True)
    rows = np.sort(first)
    rows = rows[missing[rows].any(axis=1)]
    jobs: list[Job] = []
    for pattern in np.unique(missing[rows], axis=0) if len(rows) else ():
        mine = rows[(missing[rows] == pattern).all(axis=1)]
        some = np.flatnonzero(pattern).tolist()
        jobs += [(mine[start : start + piece], some) for start in range(0, len(mine), piece)]
    return jobs


def in_parallel(jobs: Sequence[Job], compute: Compute, threads: int) -> Iterator[tuple[Job, NDArray[Any]]]:
    """Yield each job with its vectors, in order; ``threads`` are computed at a time, so that few are held in memory."""
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[tuple[Job, Future[NDArray[Any]]]] = deque()
        waiting = deque(jobs)
        try:
            while waiting or ahead:
                while waiting and len(ahead) < threads + 1:
                    job = waiting.popleft()
                    ahead.append((job, pool.submit(compute, *job)))
                job, future = ahead.popleft()
                yield job, future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
