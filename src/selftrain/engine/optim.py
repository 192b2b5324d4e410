"""The optimiser and the learning rate at each step.

Knows nothing of the loop: the rate is a pure function of the step, so there is no scheduler state to save.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
from torch import nn

from selftrain.config.settings import OptimSettings
from selftrain.methods.base import Method
from selftrain.nn.network import Network
from selftrain.nn.norms import is_norm
from selftrain.nn.tuning import low_rank_weights


def make_optimizers(net: Network, settings: OptimSettings, method: Method) -> list[torch.optim.Optimizer]:
    """Return SGD over the network's trainable parameters, and the method's own optimisers for those it claims."""
    own = method.optimizers(net)
    taken = {p for optimizer in own for group in optimizer.param_groups for p in group["params"]}
    return [make_sgd(net, settings, taken), *own]


def make_sgd(net: Network, settings: OptimSettings, taken: Collection[nn.Parameter] = ()) -> torch.optim.Optimizer:
    """Return SGD over the trainable parameters not in ``taken``, grouped by learning rate and weight decay."""
    backbone = {parameter for one in net.members for parameter in one.psi.backbone.parameters()}
    backbone -= low_rank_weights(net)
    without_decay = set()
    if not settings.norm_decay:
        for module in net.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias" or is_norm(module):
                    without_decay.add(parameter)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in net.parameters():
        if parameter.requires_grad and parameter not in taken:
            factor = settings.backbone_lr if parameter in backbone else 1.0
            decay = 0.0 if parameter in without_decay else settings.weight_decay
            groups.setdefault((factor, decay), []).append(parameter)
    sharded = any(hasattr(parameter, "to_local") for parameter in net.parameters())
    return torch.optim.SGD(
        [
            {"params": parameters, "lr": settings.lr * factor, "base_lr": settings.lr * factor, "weight_decay": decay}
            for (factor, decay), parameters in groups.items()
        ],
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        fused=not sharded,  # one fused call cannot mix whole and sharded weights
        foreach=False if sharded else None,
    )


def lr_factor(settings: OptimSettings, step: int, steps: int) -> float:
    """Return the learning rate at a step as a share of the initial one."""
    if settings.schedule == "cosine":
        return math.cos(7 * math.pi * step / (16 * steps))
    if settings.schedule == "exponential":
        return float((1 + settings.gamma * step) ** -settings.decay)
    return 1.0


def set_lr(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
