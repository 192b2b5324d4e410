"""Normalisation layers: the running statistics of batch norm, and statistics over a batch that several ranks share.

Knows nothing of the networks that the layers are part of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from selftrain.nn.collectives import all_stacked


def is_norm(module: nn.Module) -> bool:
    """Tell whether a module is a normalisation layer; timm has RMS norms of its own."""
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return isinstance(module, kinds) or "rmsnorm" in type(module).__name__.lower()


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return the batch-norm layers that track running statistics."""
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def running_statistics(module: nn.Module) -> Iterator[Tensor]:
    """Yield the running means and variances of the batch-norm layers."""
    for m in batch_norms(module):
        yield from (buffer for buffer in (m.running_mean, m.running_var) if buffer is not None)


@contextmanager
def keeping_running_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, batch norm in training mode normalises by its batch but does not update its running statistics."""
    norms = batch_norms(module)
    saved: list[Any] = [m.momentum for m in norms]
    counts = [m.num_batches_tracked for m in norms]
    try:
        for m in norms:
            m.momentum = 0.0
            m.num_batches_tracked = None
        yield
    finally:
        for m, momentum, count in zip(norms, saved, counts, strict=True):
            m.momentum, m.num_batches_tracked = momentum, count


class SharedBatchNorm(TorchFunctionMode):
    """Inside, batch norm in training mode takes its statistics over the batches of all ranks.

    It replaces ``torch.nn.functional.batch_norm``, whichever layer calls it and on any device.
    ``torch.nn.SyncBatchNorm`` runs on GPUs only and would replace layers that do more than normalise.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs["training"]:
            return shared_batch_norm(*args, **kwargs)
        return func(*args, **kwargs)


def shared_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Apply batch norm in training mode, with means and variances of all ranks combined in one message."""
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(values, dim=[0, *range(2, x.dim())], correction=0)
    count = mean.new_full((1,), x.numel() // x.shape[1])
    stacked = all_stacked(torch.cat([mean, var, count]))
    means, variances, counts = stacked[:, : len(mean)], stacked[:, len(mean) : -1], stacked[:, -1:]
    n = counts.sum()
    mean = (counts * means).sum(dim=0) / n
    var = (counts * (variances + (means - mean).square())).sum(dim=0) / n
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * n / (n - 1).clamp(min=1)).to(running_var.dtype), momentum)
    scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
    across = (1, -1, *[1] * (x.dim() - 2))
    out = (values - mean.view(across)) * scale.view(across)
    return (out if bias is None else out + bias.view(across)).to(x.dtype)
