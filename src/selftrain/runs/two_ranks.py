"""The program of each of two processes that train a method together: ``python -m selftrain.runs.two_ranks METHOD``.

Knows nothing of what is checked; it prints the names of the values that differ between the processes.
"""

from __future__ import annotations

import os
import sys

import torch

from selftrain.methods import allow_method_file, make_method
from selftrain.nn.collectives import all_rows, rank, ranks
from selftrain.runs.digits_loop import digits_run


def main(text: str, files: list[str]) -> None:
    torch.set_num_threads(1)
    for file in files:
        allow_method_file(file)
    run = digits_run(make_method(text), steps=4)
    assert ranks() == 2
    run.go_on(4)
    names = []
    for name, value in run.loop.net.state_dict().items():
        both = all_rows(value.detach().double().reshape(1, -1))
        if not torch.equal(both[0], both[1]):
            names.append(name)
    if rank() == 0:
        print("differ:", *names, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [word for word in sys.argv[2:] if word != "--file"])
    os._exit(0)  # neither process waits for the other's clean-up
