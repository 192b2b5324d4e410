"""What each of two ranks does: a few steps of every method, then all numbers are compared. Run by ``test_ranks.py``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

from selftrain.distributed import all_rows, rank, ranks  # noqa: E402
from selftrain.methods import make_method  # noqa: E402
from selftrain.methods.flexmatch import LearningStatus  # noqa: E402
from tests.contract.spellings import SPELLINGS  # noqa: E402
from tests.tiny import digits_loop, go_on  # noqa: E402


def differing(net: torch.nn.Module) -> list[str]:
    """Names of the tensors that are not the same on both ranks."""
    names = []
    for name, value in net.state_dict().items():
        both = all_rows(value.detach().double().reshape(1, -1))
        if not torch.equal(both[0], both[1]):
            names.append(name)
    return names


def main(out: Path) -> None:
    found: dict[str, object] = {}
    for text in SPELLINGS:
        loop, stream, *_ = digits_loop(make_method(text), steps=4)
        assert ranks() == 2
        assert len(stream[0][0]) == 8, "each rank has its half of the batch"
        before = {name: p.clone() for name, p in loop.net.named_parameters() if p.requires_grad}
        go_on(loop, stream, loop.steps)
        moved = any(not torch.equal(p, before[name]) for name, p in loop.net.named_parameters() if name in before)
        found[text] = {"differ": differing(loop.net), "moved": moved}
        if text == "flexmatch(tau=0.2)":
            status = loop.net.part("flexmatch", LearningStatus)
            found["counts"] = torch.equal(status.counts, torch.bincount(status.selected + 1, minlength=11))
            found["selected"] = int((status.selected >= 0).sum())
    if rank() == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # neither rank waits for the other's clean-up
