"""Where a run computes, on how many devices and how precisely.

Knows nothing of what is computed.
"""

from __future__ import annotations

import os
from typing import Any

from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy

from selftrain.errors import UserError
from selftrain.settings import TrainSettings


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
    return fabric
