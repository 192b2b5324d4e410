"""Run cells on a Ray cluster, or on a local cluster started for the bench.

Knows nothing of what a cell is, except that ``attempt`` runs it. Run folders must be on a path that all machines share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.bench.cells import ATTEMPTS, Cell, Outcome, attempt
from selftrain.console import Reporter
from selftrain.engine.allocator import keep_freed_memory
from selftrain.engine.ray_cluster import ray_cluster
from selftrain.errors import UserError
from selftrain.runs.layout import Results, RunLayout
from selftrain.text import first_line


@dataclass(frozen=True)
class RayCluster:
    address: str | None = None
    """address of a cluster; unset: $RAY_ADDRESS, or a cluster on this machine for as long as the bench takes"""
    gpus_per_run: float | None = None
    """a fraction lets runs share a GPU; unset: one if the cluster has any"""
    processes: int | None = None
    """on a cluster on this machine: cells at a time"""

    def __call__(self, cells: Sequence[Cell], root: Path | None, out: Path, reporter: Reporter) -> Iterator[Outcome]:
        out = out.resolve()  # workers have working folders of their own
        with ray_cluster(self.address, self.processes) as ray:
            resources = ray.cluster_resources()
            gpus = self._gpus(resources.get("GPU", 0))
            reporter.say(f"ray: {resources.get('CPU', 0):g} cores and {resources.get('GPU', 0):g} GPUs")
            # Ray replaces a worker or a machine that is lost; the run resumes from its checkpoint.
            remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS - 1, retry_exceptions=True)(_run)
            running = {remote.remote(cell, root, out): cell for cell in cells}
            try:
                while running:
                    (ready, *_), _ = ray.wait(list(running), num_returns=1)
                    yield self._outcome(ray, ready, running.pop(ready), out)
            finally:
                for task in running:
                    ray.cancel(task)

    def _gpus(self, available: float) -> float:
        """Return the GPUs of one run."""
        if self.gpus_per_run is None:
            return 1.0 if available else 0.0
        if self.gpus_per_run > available:
            raise UserError(f"`gpus_per_run={self.gpus_per_run:g}`: the cluster has {available:g} GPUs.")
        return self.gpus_per_run

    def _outcome(self, ray: Any, task: Any, cell: Cell, out: Path) -> Outcome:
        try:
            results, reason = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            return Outcome(cell, None, str(error.cause))
        except ray.exceptions.RayError as error:
            return Outcome(cell, None, f"{type(error).__name__}: {first_line(error)}")
        if results is not None and not RunLayout(cell.folder(out)).finished:
            reason = f"`out` {out} is not on a path that all machines of the cluster share, so no run could be resumed."
            return Outcome(cell, None, reason)
        return Outcome(cell, results, reason)


def _run(cell: Cell, root: Path | None, out: Path) -> tuple[Results | None, str]:
    """Run a cell on a worker; raise an error that a retry might avoid, so that Ray tries again."""
    keep_freed_memory()
    outcome = attempt(cell, root, out)
    if outcome.retry:
        raise RuntimeError(outcome.reason)
    return outcome.results, outcome.reason
