"""Shard backbone weights over the ranks (FSDP), for backbones too large for one device with their gradients.

Knows nothing of methods or of the loop. Heads and statistics stay whole on every rank, as with DDP. Saved states are
always whole, so that any number of ranks can load them.
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

UNIT = 1 << 20  # weights; blocks with at least as many are gathered one at a time


def shard_backbones(net: nn.Module, device: torch.device) -> None:
    """Shard the weights of every backbone in ``net``, teachers and averages included; create optimisers afterwards."""
    net.to(device)
    net.to(memory_format=torch.contiguous_format)  # the layout that sharding needs
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
    """Return the names of the parameters that are sharded."""
    return [name for name, parameter in net.named_parameters() if isinstance(parameter, DTensor)]


def whole(state: Any) -> Any:
    """Return the same tree of dicts and lists with whole tensors; every rank must call it."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, Mapping):
        return {key: whole(value) for key, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, (list, tuple)) else state


def sharded_like(state: Mapping[Any, Any], like: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the state with tensors sharded where those of the same name in ``like`` are."""
    return {key: _shard_like(value, like.get(key)) for key, value in state.items()}


def _shard_like(value: Any, like: Any) -> Any:
    if isinstance(like, DTensor) and isinstance(value, torch.Tensor) and value.shape == like.shape:
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
    return value


def optimizer_sharded_like(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimiser's whole state sharded like its parameters; its ``fused`` and ``foreach`` stay its own."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    owner = dict(zip(numbers, parameters, strict=True))
    of = {n: {key: _shard_like(value, owner[n]) for key, value in kept.items()} for n, kept in state["state"].items()}
    groups = [
        {**saved, **{how: now[how] for how in ("fused", "foreach") if how in now}}
        for saved, now in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {"state": of, "param_groups": groups}


def make_whole(model: nn.Module) -> None:
    """Gather the whole weights of a model in place, to save it; it cannot be trained afterwards."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, DTensor):
                module._parameters[name] = nn.Parameter(parameter.full_tensor(), requires_grad=False)
