"""Run cells in processes on this machine: as many as there are cores, or GPUs, each with one cell at a time.

Knows nothing of what a cell is, except that ``attempt`` runs it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from selftrain.bench.cells import ATTEMPTS, Cell, Outcome, attempt
from selftrain.console import Reporter
from selftrain.engine.allocator import keep_freed_memory

STOP_TIMEOUT = 60
"""seconds that a run has to write its checkpoint when the bench is stopped"""


@dataclass(frozen=True)
class LocalProcesses:
    processes: int | None = None
    """cells at a time; unset: one per GPU, or one per core without GPUs"""

    def __call__(self, cells: Sequence[Cell], root: Path | None, out: Path, reporter: Reporter) -> Iterator[Outcome]:
        gpus = _gpus() if any(cell.settings.get("train.accelerator") != "cpu" for cell in cells) else []
        count = min(self.processes or len(gpus) or os.cpu_count() or 1, len(cells))
        places = [gpus[i % len(gpus)] if gpus else None for i in range(count)]
        waiting = deque((cell, 1) for cell in cells)
        workers: list[_Worker] = []
        try:
            while waiting or any(worker.job for worker in workers):
                while waiting and (worker := _free(workers, places)):
                    worker.begin(waiting.popleft(), root, out)
                busy = [worker for worker in workers if worker.job]
                connection.wait([end for worker in busy for end in (worker.pipe, worker.process.sentinel)])
                for worker in [worker for worker in busy if worker.has_news()]:
                    (cell, tries), outcome = worker.read()
                    if not worker.process.is_alive():
                        workers.remove(worker)
                    if outcome.retry and tries < ATTEMPTS:
                        reporter.warn(f"{cell}: {outcome.reason}; attempt {tries + 1} of {ATTEMPTS} resumes the run")
                        waiting.append((cell, tries + 1))
                    else:
                        yield outcome
        finally:
            _stop(workers)


class _Worker:
    """A process that runs one cell after another; if it dies, the bench still knows which cell it had."""

    def __init__(self, place: str | None):
        # spawn: a forked child of a process that has used torch's threads can hang
        context = multiprocessing.get_context("spawn")
        self.place = place
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, os.getpid(), place), daemon=False)
        self.process.start()
        theirs.close()  # so that the pipe ends when the process does
        self.job: tuple[Cell, int] | None = None

    def begin(self, job: tuple[Cell, int], root: Path | None, out: Path) -> None:
        self.job = job
        with suppress(OSError):  # the process may be dead already, which shows when its outcome is read
            self.pipe.send((job[0], root, out))

    def has_news(self) -> bool:
        return self.pipe.poll() or not self.process.is_alive()

    def read(self) -> tuple[tuple[Cell, int], Outcome]:
        assert self.job is not None
        job, self.job = self.job, None
        try:
            results, reason, retry = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return job, Outcome(job[0], None, f"its process died (exit code {self.process.exitcode})", retry=True)
        return job, Outcome(job[0], results, reason, retry)


def _free(workers: list[_Worker], places: list[str | None]) -> _Worker | None:
    """Return a worker without a job, starting a new one if there is room for it."""
    for worker in workers:
        if not worker.job:
            return worker
    if len(workers) == len(places):
        return None
    taken = [worker.place for worker in workers]
    workers.append(_Worker(min(places, key=taken.count)))
    return workers[-1]


def _serve(pipe: Any, parent: int, place: str | None) -> None:
    """Run the cells that come through the pipe until it closes."""
    _end_with(parent)
    keep_freed_memory()
    os.setpgid(0, 0)  # the bench passes Ctrl-C on, once: at a second signal a run would not save its state
    if place is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while (job := pipe.recv()) is not None:
            outcome = attempt(*job)
            pipe.send((outcome.results, outcome.reason, outcome.retry))


def _end_with(parent: int) -> None:
    """End this process when its bench has been killed; the run resumes from its checkpoint."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _stop(workers: list[_Worker]) -> None:
    """End idle workers at once, and the others when their run has written a checkpoint."""
    for worker in workers:
        if worker.job:
            worker.process.terminate()
        with suppress(OSError):
            worker.pipe.send(None)
    for worker in workers:
        worker.process.join(STOP_TIMEOUT)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(i) for i in range(torch.cuda.device_count())]
