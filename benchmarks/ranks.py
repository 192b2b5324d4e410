"""Two ranks of one thread each against one process with two threads, at the same global batch: wall time of a step.

Knows nothing of how ranks exchange tensors. Runs alternate; each is a separate process group.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from benchmarks.ratios import CLOCK, Row

STEPS = 4


def seconds(ranks: int) -> float:
    """Return the seconds per step of a new process group, as measured by its first rank."""
    group = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *group, "-m", "benchmarks.ranks", str(2 // ranks)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(found.stdout.split()[-1])


def run(threads: int) -> None:
    """Take a few steps as one rank; the first rank prints the seconds per step."""
    import torch

    from benchmarks.problems import image_problem
    from selftrain.engine.allocator import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    problem = image_problem("fixmatch", batch=16, unlabeled_batch=112, pool=400)
    problem.step()
    started = time.perf_counter()
    for _ in range(STEPS):
        problem.step()
    took = (time.perf_counter() - started) / STEPS
    if problem.loop.fabric.global_rank == 0:
        print(took, flush=True)


def rows() -> list[Row]:
    rounds = CLOCK.rounds(3, 1)
    found = np.array([[seconds(1), seconds(2)] for _ in range(rounds)])
    low, middle, high = (float(q) for q in np.quantile(found[:, 1] / found[:, 0], [0.25, 0.5, 0.75]))
    return [Row("two ranks / one process, fixmatch", middle, None, float(np.median(found[:, 1]) * 1e3), (low, high))]


if __name__ == "__main__":
    run(int(sys.argv[1]))
