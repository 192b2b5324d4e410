"""Batch norm over a batch that several ranks share: each has a part of it, all use the statistics of the whole.

Knows nothing of layers: it takes the place of ``torch.nn.functional.batch_norm``, whichever module calls that, on any
device. ``torch.nn.SyncBatchNorm`` would run on GPUs alone and replace layers that do more than to normalise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from selftrain.nn.collectives import all_stacked


class SharedNorm(TorchFunctionMode):
    """Inside, batch norm in training mode takes its statistics of the batches of all ranks together."""

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
    """Batch norm in training mode; means and variances of the ranks become those of the whole in one message."""
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
