"""What the ranks of one run tell each other: sums, means, rows, wishes. Nothing happens where there is one rank.

Knows nothing of methods, devices or files.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, distributed

from selftrain.errors import UserError

Kind = TypeVar("Kind")


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


def ranks() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if ranks() > 1 else 0


def all_sum(x: Tensor) -> Tensor:
    """The sum of x over all ranks, without gradient."""
    if ranks() == 1:
        return x
    x = x.detach().clone()
    distributed.all_reduce(x)
    return x


def all_mean(x: Tensor) -> Tensor:
    """The mean of x over all ranks, without gradient."""
    return all_sum(x) / ranks() if ranks() > 1 else x


def all_rows(x: Tensor) -> Tensor:
    """The rows of x of every rank, one after the other; ranks may have more rows or fewer."""
    if ranks() == 1:
        return x
    x = x.detach()
    sizes = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(ranks())]
    distributed.all_gather(sizes, torch.tensor([len(x)], device=x.device))
    counts = [int(size) for size in sizes]
    padded = torch.cat([x, x.new_zeros(max(counts) - len(x), *x.shape[1:])])
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@torch.no_grad()
def average_in_place(tensors: Iterable[Tensor]) -> None:
    """Set tensors of one dtype to their mean over the ranks, in one message."""
    if ranks() == 1 or not (tensors := list(tensors)):
        return
    flat = all_mean(torch.cat([tensor.flatten() for tensor in tensors]))
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def from_first(value: Kind) -> Kind:
    """What the first rank has, on every rank; the others wait for it."""
    if ranks() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def my_share(n: int) -> slice:
    """Which of n things are this rank's."""
    return slice(rank() * n // ranks(), (rank() + 1) * n // ranks())


class _AllStacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        parts = [torch.empty_like(x) for _ in range(ranks())]
        distributed.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return all_sum(grad.contiguous())[rank()]


def all_stacked(x: Tensor) -> Tensor:
    """x of every rank, stacked; gradient flows back to the rank it came from."""
    out: Tensor = _AllStacked.apply(x)
    return out


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
