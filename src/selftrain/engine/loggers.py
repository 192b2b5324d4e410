"""The rows of ``metrics.jsonl`` as curves in TensorBoard or Weights & Biases.

Knows nothing of what the figures mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selftrain.errors import UserError


def check_logger(kind: str) -> None:
    """A UserError that names the extra where a logger is not installed: better now than after the first evaluation."""
    if kind != "none" and find_spec(kind) is None:
        raise UserError(
            f"train.logger={kind}: {kind} is not installed. Install it with pip install 'selftrain[{kind}]'."
        )


class RowLogger:
    """Writes each row as scalars; nothing at all if its kind is ``none``."""

    def __init__(self, kind: str, folder: Path, classes: Sequence[str], step: int = 0, config: Any = None):
        self.logger: Any = None
        self.classes = classes
        if kind == "tensorboard":
            from lightning_fabric.loggers.tensorboard import TensorBoardLogger

            # what a run wrote after its last checkpoint and before it was killed is purged: it comes again
            self.logger = TensorBoardLogger(
                folder, name="tensorboard", version="", purge_step=step + 1 if step else None
            )
        elif kind == "wandb":
            self.logger = WandbLogger(folder, config)

    def log(self, row: dict[str, Any]) -> None:
        if self.logger is not None:
            self.logger.log_metrics(scalars(row, self.classes), step=row["step"])
            self.logger.save()

    def close(self) -> None:
        if self.logger is not None:
            self.logger.finalize("success")


class WandbLogger:
    """A run of Weights & Biases, with the same methods as Fabric's loggers."""

    def __init__(self, folder: Path, config: Any):
        import wandb

        place = str(folder.resolve())
        ident = hashlib.sha256(place.encode("utf-8", "replace")).hexdigest()[:16]  # the same when it is resumed
        try:
            self.run = wandb.init(
                project="selftrain", name=folder.name, dir=place, id=ident, resume="allow", config=config
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"train.logger=wandb: {' '.join(str(error).split())} Log in with 'wandb login', or set "
                f"WANDB_MODE=offline; then go on with --resume."
            ) from None

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def save(self) -> None:
        """It sends what it has by itself."""

    def finalize(self, status: str) -> None:
        self.run.finish()


def scalars(row: dict[str, Any], classes: Sequence[str]) -> dict[str, float]:
    """The numbers of a row; those of ``per_class`` one by one, with the name of the class."""
    numbers = {name: value for name, value in row.items() if name != "step"}
    numbers |= {f"per_class/{name}": value for name, value in zip(classes, row.get("per_class") or (), strict=False)}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
