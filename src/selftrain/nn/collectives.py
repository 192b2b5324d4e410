"""Collectives over the ranks of a run: sums, means, rows, broadcasts. With one rank they return their input.

Knows nothing of methods, devices or files. How processes start, stop and fail is in ``engine/distributed.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, distributed

Value = TypeVar("Value")


def ranks() -> int:
    """Return the number of ranks, 1 without a process group."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this rank, from 0."""
    return distributed.get_rank() if ranks() > 1 else 0


def all_sum(x: Tensor) -> Tensor:
    """Return the sum of x over all ranks, without gradient."""
    if ranks() == 1:
        return x
    x = x.detach().clone()
    distributed.all_reduce(x)
    return x


def all_mean(x: Tensor) -> Tensor:
    """Return the mean of x over all ranks, without gradient."""
    return all_sum(x) / ranks() if ranks() > 1 else x


def all_rows(x: Tensor) -> Tensor:
    """Return the rows of x of all ranks, in the order of the ranks; their numbers of rows may differ."""
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
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def from_first(value: Value) -> Value:
    """Return the first rank's value on every rank; the others wait for it."""
    if ranks() == 1:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def my_share(n: int) -> slice:
    """Return the slice of n items that belongs to this rank."""
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
    """Return x of all ranks, stacked; gradient flows back to the rank that x came from."""
    out: Tensor = _AllStacked.apply(x)
    return out
