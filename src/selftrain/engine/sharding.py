"""Backbones whose weights are shared out over the ranks (FSDP), for those that one device cannot hold with gradients.

Knows nothing of methods or of the loop. Heads and statistics stay whole on every rank, as with DDP. What is saved is
always whole, so that it can be loaded on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from selftrain.nn.collectives import ranks
from selftrain.nn.layers import Encoder

UNIT = 1 << 20  # weights; blocks of at least as many are gathered one at a time


def shard_backbones(net: nn.Module, device: torch.device) -> None:
    """Share out the weights of every backbone in ``net``, those of teachers and averages too. Optimisers come later."""
    net.to(device)
    net.to(memory_format=torch.contiguous_format)  # shares are cut from such weights
    mesh = init_device_mesh(device.type, (ranks(),))
    for encoder in [module for module in net.modules() if isinstance(module, Encoder)]:
        for module in reversed(list(encoder.backbone.modules())):  # inner blocks before outer ones
            if isinstance(module, (nn.Sequential, nn.ModuleList)):
                for block in module:
                    large = sum(p.numel() for p in block.parameters()) >= UNIT
                    if large and type(block).forward is not nn.Module.forward:
                        fully_shard(block, mesh=mesh, reshard_after_forward=True)
        if any(True for _ in encoder.backbone.parameters()):
            fully_shard(encoder.backbone, mesh=mesh, reshard_after_forward=True)  # teachers have no backward


def sharded_names(net: nn.Module) -> list[str]:
    """Parameters that are shared out already."""
    return [name for name, parameter in net.named_parameters() if isinstance(parameter, DTensor)]


def whole(state: Any) -> Any:
    """The same tree of dicts and lists with whole tensors; every rank must call it."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, Mapping):
        return {key: whole(value) for key, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, (list, tuple)) else state


def shared_out(state: Mapping[Any, Any], like: Mapping[Any, Any]) -> dict[Any, Any]:
    """Whole tensors as shares, where those of the same name in ``like`` are shares."""
    return {key: _share(value, like.get(key)) for key, value in state.items()}


def _share(value: Any, like: Any) -> Any:
    if isinstance(like, DTensor) and isinstance(value, torch.Tensor) and value.shape == like.shape:
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
    return value


def optimizer_shared_out(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimiser's whole state, with shares for the parameters that are shares; how it steps stays its own."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    owner = dict(zip(numbers, parameters, strict=True))
    of = {n: {key: _share(value, owner[n]) for key, value in kept.items()} for n, kept in state["state"].items()}
    groups = [
        {**saved, **{how: now[how] for how in ("fused", "foreach") if how in now}}
        for saved, now in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {"state": of, "param_groups": groups}


def make_whole(model: nn.Module) -> None:
    """Give a model its whole weights back, to save it; it is of no use for training afterwards."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, DTensor):
                module._parameters[name] = nn.Parameter(parameter.full_tensor(), requires_grad=False)
