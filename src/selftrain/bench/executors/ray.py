"""The ray engine: cells on a Ray cluster, or on a local one started for the bench.

Knows nothing of what a cell is, but that ``attempt`` runs it. Run folders must lie on a path that all machines share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.bench.grid import ATTEMPTS, Cell, Outcome, attempt
from selftrain.console import Reporter
from selftrain.engine.allocator import keep_freed_memory
from selftrain.errors import UserError
from selftrain.runs.run import RESULTS


@dataclass(frozen=True)
class OnRay:
    address: str | None = None
    """of a cluster; unset: $RAY_ADDRESS, or a cluster on this machine for as long as the bench takes"""
    gpus_per_run: float | None = None
    """a fraction lets runs share a GPU; unset: one where the cluster has any"""
    processes: int | None = None
    """of a cluster on this machine: cells at a time"""

    def __call__(self, cells: Sequence[Cell], root: Path | None, out: Path, reporter: Reporter) -> Iterator[Outcome]:
        out = out.resolve()  # workers have working folders of their own
        with self._cluster() as ray:
            resources = ray.cluster_resources()
            gpus = self.gpus_per_run
            if gpus is None:
                gpus = 1.0 if resources.get("GPU") else 0.0
            if gpus > resources.get("GPU", 0):
                raise UserError(f"--gpus-per-run {gpus:g}: the cluster has {resources.get('GPU', 0):g} GPUs.")
            reporter.say(f"ray: {resources.get('CPU', 0):g} cores and {resources.get('GPU', 0):g} GPUs")
            # A worker or a machine that is lost is Ray's to replace; the run goes on from its checkpoint.
            remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS - 1, retry_exceptions=True)(_run)
            running = {remote.remote(cell, root, out): cell for cell in cells}
            try:
                while running:
                    (ready, *_), _ = ray.wait(list(running), num_returns=1)
                    yield self._outcome(ray, ready, running.pop(ready), out)
            finally:
                for task in running:
                    ray.cancel(task)

    def _outcome(self, ray: Any, task: Any, cell: Cell, out: Path) -> Outcome:
        try:
            results, reason = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            return Outcome(cell, None, str(error.cause))
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return Outcome(cell, None, f"{type(error).__name__}: {lines[0]}")
        if results is not None and not (cell.folder(out) / RESULTS).exists():
            reason = f"--out {out} is not on a path that all machines of the cluster share; nothing could be resumed."
            return Outcome(cell, None, reason)
        return Outcome(cell, results, reason)

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        try:
            import ray
        except ImportError:
            raise UserError('--engine ray: Ray is not installed; pip install "selftrain[ray]".') from None
        if ray.is_initialized():  # by whoever called us; theirs to end
            yield ray
            return
        address = self.address or os.environ.get("RAY_ADDRESS")
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        given |= {"address": address} if address else {"include_dashboard": False, "num_cpus": self.processes}
        try:
            ray.init(**given)
        except Exception as error:  # no such address, other versions there, a machine too busy to start a cluster
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"--engine ray, {address or 'a cluster on this machine'}: {lines[0]}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _run(cell: Cell, root: Path | None, out: Path) -> tuple[dict[str, Any] | None, str]:
    """On a worker. What another attempt may be spared is raised, and Ray tries again."""
    keep_freed_memory()
    outcome = attempt(cell, root, out)
    if outcome.again:
        raise RuntimeError(outcome.reason)
    return outcome.results, outcome.reason
