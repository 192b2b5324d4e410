"""Where a run computes, on how many devices and how precisely.

Knows nothing of what is computed.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from selftrain.errors import UserError
from selftrain.network import Network
from selftrain.settings import TrainSettings


def keep_memory() -> bool:
    """Let glibc keep what was freed instead of giving it back to the system; whether it took the advice.

    Blocks of 32 MiB and more, which activations of a few hundred pictures are, are otherwise mapped anew and filled
    with zeros, page by page, each time a step asks for them. Who has set MALLOC_* variables knows better.
    """
    taken = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] != "glibc" or taken:
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    trim_threshold, mmap_threshold = -1, -3  # the parameters' numbers in malloc.h
    return bool(mallopt(mmap_threshold, 1 << 30) and mallopt(trim_threshold, 2**31 - 1))


def make_fabric(train: TrainSettings) -> Fabric:
    """One device, or as many ranks as ``torchrun`` started."""
    ranks = int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    strategy: Any = "auto"
    if ranks > 1:
        # A turn leaves the other player's parameters out; buffers as long as the unlabeled set must not be sent around
        # at every step: methods and the loop tell each other what they need to.
        strategy = DDPStrategy(find_unused_parameters=True, forward_sync_buffers=False)
    precision: Any = "32-true" if train.precision == "32" else train.precision
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1)) if ranks > 1 else 1
    try:
        fabric = Fabric(
            accelerator=train.accelerator,
            devices=ranks // nodes,
            num_nodes=nodes,
            strategy=strategy,
            precision=precision,
        )
    except RuntimeError as error:
        raise UserError(f"train.accelerator={train.accelerator}: {str(error).splitlines()[0]}") from None
    fabric.launch()
    if fabric.device.type == "cpu":
        keep_memory()
    return fabric


def compile_networks(net: Network, warn: Callable[[str], None]) -> bool:
    """Compile psi of each network in place; where torch can't, say why and leave them as they are."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=net.step.device))
    except Exception as error:  # no compiler, no Python headers, a platform without one: torch raises many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warn(f"train.compile=true: torch.compile does not work here ({reason[:200]}). Training goes on without it.")
        return False
    for one in net.members:
        one.psi.compile(dynamic=False)  # a step always has the same few shapes
    return True
