"""Start-up time: CPU time of ``selftrain --help`` and of imports, each in a new process, in turns.

Knows nothing of torch.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import numpy as np

from benchmarks.ratios import CLOCK, Row

COMMANDS = {
    "help": ["-m", "selftrain", "--help"],
    "import selftrain": ["-c", "import selftrain"],
    "import train": ["-c", "import selftrain; selftrain.train"],
    "import torch": ["-c", "import torch"],
}


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env={**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> list[Row]:
    rounds = CLOCK.rounds(5, 3)
    seconds = {name: np.empty(rounds) for name in COMMANDS}
    for number in range(-1, rounds):
        for name, arguments in COMMANDS.items():
            took = cpu_seconds(arguments)
            if number >= 0:
                seconds[name][number] = took

    def row(name: str, values: np.ndarray, bar: float | None, kind: str) -> Row:
        low, middle, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
        return Row(name, middle, bar, None, (low, high), kind)

    bare = seconds["import torch"]
    return [
        row("selftrain --help, CPU time", seconds["help"], 0.5, "s"),
        row("import selftrain / import torch, CPU time", seconds["import selftrain"] / bare, 1.3, "cost"),
        row("selftrain.train with all it needs / import torch", seconds["import train"] / bare, None, "cost"),
    ]
