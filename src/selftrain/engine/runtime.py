"""Where a run computes, on how many devices and how precisely.

Knows nothing of what is computed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException

from selftrain.config.settings import TrainSettings
from selftrain.engine.distributed import started
from selftrain.errors import UserError
from selftrain.nn.network import Network


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
    return bool(mallopt(mmap_threshold, 1 << 30) and mallopt(trim_threshold, -1))  # -1: never


class ProcessesMissingError(UserError):
    """A run on several devices wants a process for each."""

    def __init__(self, devices: int):
        super().__init__(
            f"train.devices={devices}: one process was started. Start one for each device, with "
            f"'torchrun --nproc-per-node {devices} SCRIPT' or srun; the command 'selftrain train' does it by itself."
        )
        self.devices = devices


def make_fabric(train: TrainSettings, unused: bool = True) -> Fabric:
    """One device, or one for each of the processes that were started; they have found each other afterwards.

    ``unused``: some parameters may take no part in a backward pass, because players take turns.
    """
    here = started()
    if train.devices not in (None, here.ranks):
        if here.ranks == 1:
            raise ProcessesMissingError(train.devices)
        raise UserError(f"train.devices={train.devices}: {here.by} started {here.ranks} processes. Leave it out.")
    if here.ranks % here.nodes:
        raise UserError(f"{here.by} started {here.ranks} processes on {here.nodes} nodes: take as many on each.")
    strategy: Any = "auto"
    plugins: Any = None
    if here.ranks > 1:
        # Buffers as long as the unlabeled set must not be sent around at every step: methods and the loop tell each
        # other what they need to.
        strategy = DDPStrategy(find_unused_parameters=unused, forward_sync_buffers=False)
        if here.by == "srun":  # Lightning wants to be told what 'srun -n' leaves to be worked out
            os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(here.ranks // here.nodes))
        plugins = TorchElasticEnvironment() if here.by == "torchrun" else SLURMEnvironment(auto_requeue=False)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # what it would say is said better, or not at all
    precision: Any = "32-true" if train.precision == "32" else train.precision
    try:
        fabric = Fabric(
            accelerator=train.accelerator,
            devices=here.ranks // here.nodes,
            num_nodes=here.nodes,
            strategy=strategy,
            precision=precision,
            plugins=plugins,
        )
    except (RuntimeError, MisconfigurationException) as error:
        raise UserError(f"train.accelerator={train.accelerator}: {str(error).strip().splitlines()[0]}") from None
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
