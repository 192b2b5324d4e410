"""Check images and extract features on a Ray cluster, whose machines share the folders of images and of the cache.

Knows nothing of networks. The process that was started knows what is stored and hands out what is missing. Workers
compute it and add it to the feature store, without looking at the rest of it, however large that is. After the loss of
a worker, only those pieces of its task are handed out again that it had not stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selftrain.console import Reporter
from selftrain.data.features.collection import Collection
from selftrain.data.features.extract import PIECE
from selftrain.data.features.store import KEPT, Job, images_of, missing_jobs
from selftrain.data.images import Images
from selftrain.data.images.content import Digests, digests, is_known
from selftrain.data.images.memory import Memory
from selftrain.data.images.pixel_budget import MOST_PIXELS, most_pixels, pixel_limit
from selftrain.data.images.sequence import JoinedImages
from selftrain.engine.ray_cluster import ray_cluster
from selftrain.engine.ray_tasks import cores_of, spread
from selftrain.errors import UserError

VISIBLE = 90.0
"""seconds after which what a worker has stored must be there"""
CHUNK = 512
"""images of one task"""


@dataclass(frozen=True)
class Piecework:
    """Pieces of a collection that one task adds."""

    collection: Collection
    images: Images
    contents: Digests
    names: tuple[str, ...]
    flip: bool
    views: Sequence[bytes]
    jobs: list[Job]
    """rows of ``images`` and positions in ``names``"""


class Extracts(Protocol):
    """What computes features."""

    def for_workers(self) -> Extracts:
        """Return it as other machines use it."""

    def check_versions(self) -> None:
        """Raise a UserError if this machine would make other features."""

    def add(self, work: Piecework) -> None:
        """Compute features, and add them to their collection."""


@dataclass(frozen=True)
class RayFill:
    """Computes missing features of images on the cluster of $RAY_ADDRESS, or on this machine."""

    extractor: Extracts
    images: Images
    names: tuple[str, ...]
    flip: bool
    reporter: Reporter
    contents: Digests

    def __call__(self, collection: Collection, views: Sequence[bytes], jobs: list[Job]) -> None:
        """Add the vectors of all jobs."""

        def left(task: list[Job]) -> list[Job] | None:
            rows = _rows(task)
            missing = collection.find(self.contents[rows], views)[1] < 0
            again = missing_jobs(self.contents[rows], missing, PIECE)
            return [(rows[mine], some) for mine, some in again] or None

        def work(task: list[Job]) -> tuple[Any, ...]:
            rows, own, start = _rows(task), [], 0
            for mine, some in task:
                own.append((np.arange(start, start + len(mine)), some))
                start += len(mine)
            images, contents = self.images.subset(rows), self.contents[rows]
            return known, Piecework(collection, images, contents, self.names, self.flip, views, own), most_pixels()

        with ray_cluster() as ray:
            self.reporter.say(f"ray: {cores_of(ray)} cores extract features")
            known = [ray.put(self.extractor.for_workers())]  # in a list: a worker fetches it once, not with each task
            missing = images_of(jobs)
            with self.reporter.progress("extracting features on ray", missing, "images", kept=KEPT) as bar:
                done = 0
                for task, _ in spread(ray, _extract, _tasks(jobs), work, left):
                    if not done and _is_still_left(partial(left, task)):
                        raise UserError(
                            f"cache {collection.root}: features that the cluster has extracted are not there. Is the "
                            f"folder on a path that all machines share?"
                        )
                    done += images_of(task)
                    bar.reach(done)


def _is_still_left(left: Callable[[], object]) -> bool:
    """Wait for what another machine has written: network file systems keep the list of a folder for a minute."""
    end = time.monotonic() + VISIBLE
    while (found := bool(left())) and time.monotonic() < end:
        time.sleep(1)
    return found


def _rows(task: list[Job]) -> NDArray[np.int64]:
    return np.concatenate([rows for rows, _ in task])


def _tasks(jobs: list[Job]) -> Iterator[list[Job]]:
    """Yield jobs together, so many that a task has about as many images as it should."""
    each = max(1, CHUNK // PIECE)
    for start in range(0, len(jobs), each):
        yield jobs[start : start + each]


def check_on_ray(images: Images, memory: Memory, reporter: Reporter) -> None:
    """Read and decode on the cluster what was never read, and remember it: then it need not be done here."""
    if memory.folder is None or most_pixels() != MOST_PIXELS:  # what is remembered holds for the usual limit
        return
    for part in [piece for piece, _ in images.pieces()] if isinstance(images, JoinedImages) else [images]:
        marks, contents = part.marks(), memory.contents(part, read=False)
        rows = np.flatnonzero(is_known(marks) & ~memory.readable(contents))
        if len(rows) >= CHUNK:  # fewer are read here as soon as there
            _check(part, rows, marks, memory, reporter)


def _check(images: Images, rows: NDArray[np.int64], marks: Digests, memory: Memory, reporter: Reporter) -> None:
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    with ray_cluster() as ray, reporter.progress("reading images on ray", len(rows), "images") as bar:
        done = 0
        for mine, (found, good) in spread(ray, _look, chunks, lambda mine: (images.subset(mine),)):
            contents = digests(found)
            memory.learn(images.home, marks[mine], contents, contents[good])
            done += len(mine)
            bar.reach(done)


# --- on a worker -------------------------------------------------------------------------------------------------

_extractors: dict[Any, Extracts] = {}
"""the one that this process uses"""


def _extract(known: list[Any], work: Piecework, most: int) -> None:
    """Add features to the store."""
    (reference,) = known
    if reference not in _extractors:
        import ray

        _extractors.clear()
        found: Extracts = ray.get(reference)
        found.check_versions()
        _extractors[reference] = found
    with pixel_limit(most):
        _extractors[reference].add(work)


def _look(images: Images) -> tuple[list[bytes], NDArray[np.bool_]]:
    """Return the contents of images, and which can be decoded."""
    looks = [images.look(i) for i in range(len(images))]
    return [content for content, _ in looks], np.array([good for _, good in looks], bool)
