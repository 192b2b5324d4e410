"""The processes of one run: how many were started, how they agree to stop, and how they fail with one message.

Knows nothing of methods or files. Exchanging tensors is in ``nn/collectives.py``.
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

LOST_CONTACT = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
"""words in torch's errors that say another process is gone"""

_calls = itertools.count()  # the same on every rank


class Started(NamedTuple):
    """The processes that were started for this run, as one of them sees it."""

    ranks: int = 1
    nodes: int = 1
    rank: int = 0
    by: str = ""


def started() -> Started:
    """Return the processes that ``torchrun`` or ``srun`` started, from their environment variables."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        nodes = _variable("GROUP_WORLD_SIZE", least=1, default="1")
        return Started(_variable("WORLD_SIZE", least=1), nodes, _variable("RANK"), "torchrun")
    if (ranks := _variable("SLURM_STEP_NUM_TASKS", default="1")) > 1:  # set by srun, and not by sbatch
        nodes = _variable("SLURM_STEP_NUM_NODES", least=1, default="1")
        return Started(ranks, nodes, _variable("SLURM_PROCID"), "srun")
    return Started()


def _variable(name: str, least: int = 0, default: str = "") -> int:
    """Return the number in an environment variable of a launcher."""
    given = os.environ.get(name, default)
    if not given.isdecimal() or int(given) < least:
        value = f"{name}={given!r}" if name in os.environ else f"{name} is not set"
        raise UserError(
            f"{value}: expected a number, which torchrun or srun sets. If you use neither, unset TORCHELASTIC_RUN_ID "
            f"and SLURM_STEP_NUM_TASKS."
        )
    return int(given)


class Vote:
    """Whether any rank requests something, such as to stop. All ranks get the answer at the same step.

    They exchange their requests about once per second, because an exchange waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.every, self.left = 1, 1  # steps between two exchanges, and until the next one
        self.last = time.monotonic()

    def any(self, request: bool) -> bool:
        """Call it once per step on every rank. A single rank gets its own request back."""
        if ranks() == 1:
            return request
        self.left -= 1
        if self.left:
            return False
        answer = torch.tensor([float(request), time.monotonic() - self.last], device=self.device)
        distributed.all_reduce(answer, op=distributed.ReduceOp.MAX)
        requested, seconds = answer.tolist()
        self.every = max(1, min(2 * self.every, int(self.every / max(seconds, 1e-3))))
        self.left, self.last = self.every, time.monotonic()
        return bool(requested)


@contextmanager
def failing_together() -> Iterator[None]:
    """Inside, the first rank that fails raises its error; the other ranks end silently."""
    call = next(_calls)
    try:
        yield
    except Exception as error:
        if ranks() == 1:  # or the ranks are not connected yet: then all have the same arguments and the same error
            if started().rank > 0:
                raise SystemExit(2) from None
            raise
        if not _first_to_fail(call):
            raise SystemExit(2) from None
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_CONTACT):
            raise UserError(
                f"rank {rank()} lost contact with another process of this run, which must have ended. Pass "
                f"`resume=True` to resume the run from its last checkpoint."
            ) from None
        raise


def _first_to_fail(call: int) -> bool:
    try:
        return distributed.distributed_c10d._get_default_store().add(f"selftrain/failed/{call}", 1) == 1
    except RuntimeError:  # the store is gone; an error told twice is better than one never told
        return True
