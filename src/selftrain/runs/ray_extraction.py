"""Extract features on a Ray cluster: every task fills a part of the feature store, which all machines share.

Knows nothing of networks. A stored vector belongs to the content of an image, so a task that is repeated because its
worker was lost, or because the driver was started again, computes only what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from selftrain.console import Reporter
from selftrain.data.images import Images
from selftrain.engine.ray_cluster import ray_cluster
from selftrain.errors import UserError
from selftrain.text import first_line

CHUNK = 512
"""images of one task"""
AHEAD = 2
"""tasks per core that are handed out before earlier ones have ended"""
ATTEMPTS = 4
"""times that the images of a lost worker are tried"""


class Extracts(Protocol):
    """What fills the store."""

    def for_workers(self) -> Extracts:
        """Return it as other machines use it."""

    def features(self, images: Images, names: Sequence[str], flip: bool = ...) -> Any:
        """Fill the store with the named views of these images."""


def extract_on_ray(extractor: Extracts, images: Images, names: Sequence[str], flip: bool, reporter: Reporter) -> None:
    """Fill the store with the named views of every image, on the cluster of $RAY_ADDRESS or on this machine."""
    with ray_cluster() as ray:
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        reporter.say(f"ray: {cores} cores extract features")
        task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_extract)
        known = ray.put(extractor.for_workers())
        todo = [np.arange(start, min(start + CHUNK, len(images))) for start in range(0, len(images), CHUNK)]
        running: dict[Any, int] = {}
        done = 0
        kept = "finished pieces are kept, and the same command resumes from there"
        with reporter.progress("extracting features on ray", len(images), "images", kept=kept) as bar:
            while todo or running:
                while todo and len(running) < AHEAD * cores:
                    rows = todo.pop(0)
                    running[task.remote(known, images.subset(rows), tuple(names), flip)] = len(rows)
                (ready, *_), _ = ray.wait(list(running), num_returns=1)
                done += running.pop(ready)
                _check(ray, ready)
                bar.reach(done)


def _check(ray: Any, ready: Any) -> None:
    try:
        ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (
            cause if isinstance(cause, UserError) else UserError(f"ray: a task failed ({first_line(cause)}).")
        ) from None
    except ray.exceptions.RayError as error:
        raise UserError(f"ray: workers were lost {ATTEMPTS} times on the same images ({first_line(error)}).") from None


def _extract(extractor: Extracts, images: Images, names: tuple[str, ...], flip: bool) -> None:
    """Fill the store on a worker, with one thread."""
    import torch

    torch.set_num_threads(1)
    extractor.features(images, names, flip)
