"""The processes of one run: how many were started, agreeing to stop, failing with one message.

Knows nothing of methods or files.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import distributed

from selftrain.errors import UserError
from selftrain.nn.collectives import rank, ranks


class Started(NamedTuple):
    """The processes that were started for this run, as one of them sees it."""

    ranks: int = 1
    nodes: int = 1
    rank: int = 0
    by: str = ""


def started() -> Started:
    """What ``torchrun`` or ``srun`` says."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        nodes = int(env.get("GROUP_WORLD_SIZE", 1))
        return Started(int(env["WORLD_SIZE"]), nodes, int(env["RANK"]), "torchrun")
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:  # set by srun, and not by sbatch
        nodes = int(env.get("SLURM_STEP_NUM_NODES", 1))
        return Started(int(env["SLURM_STEP_NUM_TASKS"]), nodes, int(env["SLURM_PROCID"]), "srun")
    return Started()


class Vote:
    """Whether any rank wishes something. All ranks learn of it at the same step; they ask each other about once a
    second, because to ask is to wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.every, self.left, self.asked = device, 1, 1, time.monotonic()

    def any(self, wish: bool) -> bool:
        """Call it once a step on every rank. A single rank has its wish at once."""
        if ranks() == 1:
            return wish
        self.left -= 1
        if self.left:
            return False
        answer = torch.tensor([float(wish), time.monotonic() - self.asked], device=self.device)
        distributed.all_reduce(answer, op=distributed.ReduceOp.MAX)
        wished, seconds = answer.tolist()
        self.every = max(1, min(2 * self.every, int(self.every / max(seconds, 1e-3))))
        self.left, self.asked = self.every, time.monotonic()
        return bool(wished)


@contextmanager
def failing_together() -> Iterator[None]:
    """Inside, what goes wrong on several ranks is told by the first that noticed; the others end without a word."""
    call = next(_calls)
    try:
        yield
    except Exception as error:
        if ranks() == 1:  # or the ranks have not met yet: then all have read the same words, and found the same fault
            if started().rank > 0:
                raise SystemExit(2) from None
            raise
        if not _first_to_fail(call):
            raise SystemExit(2) from None
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST):
            raise UserError(
                f"rank {rank()} has lost touch with another process of this run, which must have ended. The run can go "
                f"on from its last checkpoint with --resume."
            ) from None
        raise


LOST = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")


_calls = itertools.count()  # the same on every rank


def _first_to_fail(call: int) -> bool:
    try:
        return distributed.distributed_c10d._get_default_store().add(f"selftrain/failed/{call}", 1) == 1
    except RuntimeError:  # the store is gone, and nobody can tell: better twice than not at all
        return True
