"""Peak memory of a few steps, each kind of run in its own process; a floor runs its passes and nothing else.

Knows nothing of time.

    python -m benchmarks.memory fixmatch         # one run; prints its peak in bytes
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.ratios import CLOCK, Row

RUNS = ("floor", "fixmatch", "dst", "dst, strong", "reference fixmatch", "reference dst", "frozen")


def peak(name: str) -> float:
    """Return the peak of one run in bytes, measured in a new process."""
    threads = ["-c", f"import torch; torch.set_num_threads(1); from benchmarks.memory import run; run({name!r})"]
    found = subprocess.run([sys.executable, *threads], check=True, stdout=subprocess.PIPE, text=True)
    return float(found.stdout.split()[-1])


def run(name: str) -> None:
    """Take a few steps and print the peak beyond imports, in bytes."""
    import torch

    from benchmarks import references
    from benchmarks.engine import STRONG, parts
    from benchmarks.problems import batch_of, floor_of, frozen_problem, image_problem, passes_of
    from selftrain.engine.allocator import keep_freed_memory
    from selftrain.engine.estimate import peak_memory

    keep_freed_memory()
    before = peak_memory(torch.device("cpu"))
    if name == "frozen":
        work = frozen_problem("dst(fixmatch)").step
    else:
        spelling = STRONG if "strong" in name else "dst(fixmatch)" if "dst" in name else "fixmatch"
        problem = image_problem(spelling, pool=200)
        if name == "floor":
            work = floor_of(passes_of(problem))
        elif name == "reference fixmatch":
            work = references.concatenated_fixmatch(problem.net.psi, problem.net.h, *batch_of(problem))
        else:
            l, u = batch_of(problem)
            work = references.concatenated_dst(*parts(problem), l=l, u=u) if "reference" in name else problem.step
    for _ in range(3):
        work()
    print(peak_memory(torch.device("cpu")) - before)


def rows() -> list[Row]:
    names = ("floor", "fixmatch", "dst, strong") if CLOCK.quick else RUNS
    found = {name: peak(name) / 1e9 for name in names}
    return [
        Row(f"peak memory beyond imports, {name}, 16 + 112 at 32 px", value, kind="GB") for name, value in found.items()
    ]


if __name__ == "__main__":
    run(sys.argv[1])
