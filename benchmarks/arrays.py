"""Fits on feature arrays: the default number of threads, alone and beside other work, and the memory of a large array.

    python -m benchmarks --only arrays
    python -m benchmarks.arrays fit [ROWS DIM]    # one fit of default length; prints its seconds and its memory

Knows nothing of accuracy. Each way of using threads has a process of its own that is fitted again and again, because
how threads wait for each other is decided when torch is loaded. *Spinning* is how they wait without selftrain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ratios import CLOCK, Row, take_turns

CLASSES, LABELS = 10, 40
SMALL, LARGE = (5_000, 384), (200_000, 768)
STEPS = 50
SPINNING = {"GOMP_SPINCOUNT": "300000"}  # libgomp's own default
QUIET_BAR, SHARE_BAR, PAIR_BAR, MEMORY_BAR = 1.15, 1.5, 2.3, 2.5


def synthetic(rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features of clustered samples, and labels: a few, and -1 for the others."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % CLASSES
    centres = rng.standard_normal((CLASSES, dim), np.float32)
    x = rng.standard_normal((rows, dim), np.float32)
    for start in range(0, rows, 10_000):  # in parts, so that the peak of memory is that of the array
        part = slice(start, start + 10_000)
        x[part] = 2.5 * x[part] + centres[y[part]]
    return x, np.where(np.arange(rows) < LABELS, y, -1)


def fit(data: tuple[np.ndarray, np.ndarray], settings: dict[str, Any]) -> None:
    """Train with the defaults, except for some settings."""
    import selftrain

    with tempfile.TemporaryDirectory() as folder:
        selftrain.train(data, out=Path(folder) / "run", quiet=True, settings=settings)


def serve(threads: int) -> None:
    """Fit a small array for every line of the standard input."""
    data = synthetic(*SMALL)
    for _ in sys.stdin:
        fit(data, {"train.steps": STEPS, "train.threads": threads})
        print("done", flush=True)


class Fits:
    """A process that fits when it is asked to."""

    def __init__(self, threads: int, environment: dict[str, str] | None = None):
        # selftrain first: benchmarks.ratios imports torch
        code = f"import selftrain; from benchmarks.arrays import serve; serve({threads})"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", code], env=kept | (environment or {}), **pipes)

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("fit\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "done\n":
            raise RuntimeError("a process of the benchmark failed; its error is above")

    def __call__(self) -> None:
        self.begin()
        self.end()


class Busy:
    """A process that keeps a core busy while it is asked to, and ends with this one."""

    CODE = """
import select, sys
while sys.stdin.readline():
    while not select.select([sys.stdin], [], [], 0)[0]:
        sum(range(100_000))
    sys.stdin.readline()
"""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", self.CODE], stdin=subprocess.PIPE, text=True)

    def beside(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return work that is done while the process is busy."""

        def both() -> None:
            self._tell()
            try:
                work()
            finally:
                self._tell()

        return both

    def _tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def rows() -> list[Row]:
    if CLOCK.cpu:
        return []  # waiting, which is measured here, takes no CPU time
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kinds = {
        "default": Fits(0),
        "second": Fits(0),
        "one": Fits(1),
        "all": Fits(cores),
        "spinning": Fits(cores, SPINNING),
    }
    busy = Busy()

    def pair() -> None:
        kinds["default"].begin()
        kinds["second"]()
        kinds["default"].end()

    try:
        work: dict[str, Callable[[], object]] = {name: one for name, one in kinds.items() if name != "second"}
        work |= {f"{name}, busy": busy.beside(kinds[name]) for name in ("default", "all", "spinning")}
        times = take_turns(work | {"pair": pair}, CLOCK.rounds(5, 2))
    finally:
        for process in (busy.process, *(one.process for one in kinds.values())):
            process.kill()
            process.wait()
    fair = max(1.0, 2 / cores)  # the share of two processes that keep one core busy each
    return [
        times.cost("fit on an array, default threads / one thread", "default", "one", QUIET_BAR),
        times.cost("fit on an array, default threads / all threads", "default", "all", QUIET_BAR),
        times.cost("fit on an array, default threads / all threads, spinning", "default", "spinning", QUIET_BAR),
        times.cost("the same beside a busy process / alone", "default, busy", "default", SHARE_BAR * fair),
        times.cost("the same with all threads", "all, busy", "default"),
        times.cost("the same with all threads, spinning", "spinning, busy", "default"),
        times.cost("two fits at once / one", "pair", "default", PAIR_BAR * fair),
        *([] if CLOCK.quick else [_memory()]),
    ]


def _memory() -> Row:
    code = f"import selftrain; from benchmarks.arrays import measure; measure(*{LARGE})"
    found = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    words = f"memory of a fit on {LARGE[0]:,} x {LARGE[1]} beyond the array"
    return Row(words, json.loads(found.stdout.splitlines()[-1])["GB"], MEMORY_BAR, kind="GB")


def measure(count: int, dim: int) -> None:
    """Fit once, with all defaults; print seconds of wall and CPU time and the peak of memory beyond the array."""
    import torch

    import selftrain
    from selftrain.engine.estimate import peak_memory

    data = synthetic(count, dim)
    assert selftrain.train is not None  # imported
    before, wall, cpu = peak_memory(torch.device("cpu")), time.perf_counter(), time.process_time()
    fit(data, {})
    found = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    found["GB"] = (peak_memory(torch.device("cpu")) - before) / 1e9
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[2:]] or list(SMALL)
    code = f"import selftrain; from benchmarks.arrays import measure; measure(*{given})"
    subprocess.run([sys.executable, "-c", code], check=True)
