"""The program of each of two ranks: a few steps of every method, then a comparison. ``conftest.py`` starts it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)

from selftrain.engine import sharding  # noqa: E402
from selftrain.engine.distributed import Vote  # noqa: E402
from selftrain.methods import make_method  # noqa: E402
from selftrain.methods.flexmatch import LearningStatus  # noqa: E402
from selftrain.nn.collectives import all_rows, rank, ranks  # noqa: E402
from selftrain.nn.norms import SharedBatchNorm  # noqa: E402
from tests.contract.runs_of_two_ranks import whole_runs  # noqa: E402
from tests.contract.spellings import IN_TURNS, SPELLINGS  # noqa: E402
from tests.tiny import AVERAGED, SAME_ON_ANY_RANKS, digits_loop, go_on, trajectory  # noqa: E402


def differing(net: torch.nn.Module) -> list[str]:
    """Return the names of the tensors that differ between the ranks."""
    names = []
    for name, value in net.state_dict().items():
        both = all_rows(value.detach().double().reshape(1, -1))
        if not torch.equal(both[0], both[1]):
            names.append(name)
    return names


def every_method() -> dict[str, object]:
    found: dict[str, object] = {}
    for text in (*SPELLINGS, *IN_TURNS):
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
    return found


def norm_error() -> float:
    """Return the largest difference between batch norm over two halves and over the whole batch.

    Outputs, gradients and running statistics are compared.
    """
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64) * 3 + 50
    target, errors = torch.randn_like(x), []
    whole, shared = (torch.nn.BatchNorm2d(3).double() for _ in range(2))
    a, mine = x.clone().requires_grad_(), slice(2, 6) if rank() else slice(0, 2)  # the shares need not be equal
    b = x[mine].clone().requires_grad_()
    (whole(a) * target).square().sum().backward()
    with SharedBatchNorm():
        y = shared(b)
    (y * target[mine]).square().sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    errors += [y - whole(x)[mine], b.grad - a.grad[mine]]
    with SharedBatchNorm():
        shared(x[mine])
    running = [dict(norm.named_buffers()) for norm in (whole, shared)]
    errors += [running[0][name] - running[1][name] for name in ("running_mean", "running_var")]
    return max(float(error.detach().abs().max()) for error in errors)


def steps_until_all_stop() -> list[int]:
    """Return the step at which each rank stops when one of them asks for it at step 3."""
    vote, step = Vote(torch.device("cpu")), 0
    while not vote.any(rank() == 1 and step >= 3):
        step += 1
    return [int(stopped) for stopped in all_rows(torch.tensor([step]))]


def sharded(folder: Path) -> dict[str, object]:
    """Train with FSDP, from the start and from the middle of a run of one rank; checkpoints hold whole tensors."""
    sharding.UNIT = 64
    given: dict[str, Any] = {"train.strategy": "fsdp", **AVERAGED}
    losses, loop, _ = trajectory(SAME_ON_ANY_RANKS[3], **given)
    shares = len(sharding.sharded_names(loop.net))
    state = loop.state_dict()
    if rank() == 0:
        torch.save(state, folder / "sharded.pt")
    loop, stream, *_ = digits_loop(make_method(SAME_ON_ANY_RANKS[3]), steps=12, **{"optim.lr": 0.01, **given})
    loop.load_state_dict(torch.load(folder / "one_rank.pt", weights_only=True))
    go_on(loop, stream, 12 - loop.step)
    sharding.make_whole(loop.predictor)
    weights = loop.predictor.state_dict()
    return {"losses": losses, "shares": shares, "resumed": {name: value.tolist() for name, value in weights.items()}}


def main(folder: Path) -> None:
    found = every_method()
    found["losses"] = {text: trajectory(text)[0] for text in SAME_ON_ANY_RANKS}
    found["norm"] = norm_error()
    found["stops"] = steps_until_all_stop()
    found["sharded"] = sharded(folder)
    if rank() == 0:
        (folder / "found.json").write_text(json.dumps(found))
    whole_runs(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # neither rank waits for the other's clean-up
