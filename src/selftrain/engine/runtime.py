"""Devices, processes and precision of a run.

Knows nothing of what is computed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException

from selftrain.config.settings import TrainSettings
from selftrain.engine.distributed import Started, started
from selftrain.errors import UserError, is_of_the_machine
from selftrain.nn.network import Network
from selftrain.text import first_line, listed


class ProcessesMissingError(UserError):
    """A run on several devices needs one process per device."""

    def __init__(self, devices: int):
        super().__init__(
            f"`train.devices={devices}`: only one process was started. Start one process per device, with "
            f"'torchrun --nproc-per-node {devices} SCRIPT' or srun; the command 'selftrain train' starts them itself."
        )
        self.devices = devices


def make_fabric(train: TrainSettings, unused: bool = True) -> Fabric:
    """Return a Fabric for one device, or for one device per process that was started; its ranks are connected.

    ``unused``: some parameters may take no part in a backward pass, because players take turns.
    """
    here = started()
    _check_processes(train.devices, here)
    strategy: Any = "auto"
    plugins: Any = None
    if here.ranks > 1:
        # Buffers as long as the unlabeled set must not be sent at every step: methods and the loop exchange what they
        # need themselves.
        strategy = DDPStrategy(find_unused_parameters=unused, forward_sync_buffers=False)
        plugins = TorchElasticEnvironment() if here.by == "torchrun" else _slurm_environment(here)
    precision: Any = "32-true" if train.precision == "32" else train.precision
    with _quiet_lightning():
        try:
            fabric = Fabric(
                accelerator=train.accelerator,
                devices=here.ranks // here.nodes,
                num_nodes=here.nodes,
                strategy=strategy,
                precision=precision,
                plugins=plugins,
            )
        except (RuntimeError, ValueError, TypeError, MisconfigurationException) as error:
            raise UserError(f"`train.accelerator={train.accelerator}`: {first_line(error)}{_variables()}") from None
        fabric.launch()
    return fabric


def _variables() -> str:
    """Return a sentence that names environment variables which Lightning reads; "" if none is set."""
    names = sorted(name for name in os.environ if name.startswith(("LT_", "SLURM_")))
    return f" Check these environment variables, which may be the reason: {listed(names)}." if names else ""


def _check_processes(devices: int | None, here: Started) -> None:
    if devices not in (None, here.ranks):
        if here.ranks == 1:
            raise ProcessesMissingError(devices)
        raise UserError(f"`train.devices={devices}`: {here.by} started {here.ranks} processes. Leave the setting out.")
    if here.ranks % here.nodes:
        raise UserError(
            f"{here.by} started {here.ranks} processes on {here.nodes} nodes. Start the same number on each node."
        )


def _slurm_environment(here: Started) -> SLURMEnvironment:
    """Return Lightning's environment for srun, which insists on a variable that ``srun -n`` does not set."""
    name = "SLURM_NTASKS_PER_NODE"
    is_set = name in os.environ
    os.environ.setdefault(name, str(here.ranks // here.nodes))
    try:
        return SLURMEnvironment(auto_requeue=False)
    finally:
        if not is_set:
            del os.environ[name]


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Inside, Lightning logs warnings only: the facts it would log are in the log of the run."""
    logger = logging.getLogger("lightning_fabric")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def compile_networks(net: Network, warn: Callable[[str], None]) -> bool:
    """Compile psi of each network in place; if torch cannot, warn why and leave the networks as they are."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=net.step.device))
    except Exception as error:  # no compiler or no Python headers, for example: torch raises many types
        if is_of_the_machine(error):
            raise
        reason = first_line(error)[:200]
        warn(f"`train.compile=True`: torch.compile does not work here ({reason}). Training continues without it.")
        return False
    for one in net.members:
        one.psi.compile(dynamic=False)  # steps have the same few shapes throughout
    return True
