"""Send the rows of ``metrics.jsonl`` to TensorBoard or Weights & Biases.

Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from selftrain.errors import UserError


class Backend(Protocol):
    """The methods of Fabric's loggers that are used here."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    def save(self) -> None: ...

    def finalize(self, status: str) -> None: ...


def check_logger(kind: str) -> None:
    """Raise a UserError that names the extra if a logger is not installed, before any work is done."""
    if kind != "none" and find_spec(kind) is None:
        raise UserError(
            f"`train.logger={kind}`: {kind} is not installed. Install it with pip install 'selftrain[{kind}]'."
        )


def open_logger(kind: str, folder: Path, classes: Sequence[str], step: int = 0, config: Any = None) -> RowLogger:
    """Open the logger that ``train.logger`` names and return it.

    ``step`` is the step at which a run is resumed. ``config`` is stored with a run of Weights & Biases.
    """
    if kind == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        # Rows that a killed run logged after its last checkpoint are purged, because they are logged again.
        purge_step = step + 1 if step else None
        return RowLogger(TensorBoardLogger(folder, name="tensorboard", version="", purge_step=purge_step), classes)
    if kind == "wandb":
        return RowLogger(WandbBackend(_start_wandb_run(folder, config)), classes)
    return RowLogger(None, classes)


class RowLogger:
    """Logs each row as scalars; without a backend it logs nothing."""

    def __init__(self, backend: Backend | None, classes: Sequence[str]):
        self.backend = backend
        self.classes = classes

    def log(self, row: dict[str, Any]) -> None:
        if self.backend is not None:
            self.backend.log_metrics(scalars(row, self.classes), step=row["step"])
            self.backend.save()

    def close(self) -> None:
        if self.backend is not None:
            self.backend.finalize("success")


class WandbBackend:
    """A run of Weights & Biases, with the methods of Fabric's loggers."""

    def __init__(self, run: Any):
        self.run = run

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.run.log(metrics, step=step)

    def save(self) -> None:
        """Do nothing: the client uploads by itself."""

    def finalize(self, status: str) -> None:
        self.run.finish()


def _start_wandb_run(folder: Path, config: Any) -> Any:
    import wandb

    place = str(folder.resolve())
    ident = hashlib.sha256(place.encode("utf-8", "replace")).hexdigest()[:16]  # the same when the run is resumed
    try:
        return wandb.init(project="selftrain", name=folder.name, dir=place, id=ident, resume="allow", config=config)
    except wandb.errors.Error as error:
        raise UserError(
            f"`train.logger=wandb`: {' '.join(str(error).split())} Log in with 'wandb login', or set "
            f"WANDB_MODE=offline; then pass `resume=True` to resume the run."
        ) from None


def scalars(row: dict[str, Any], classes: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a row; those of ``per_class`` get a name each, with the name of the class."""
    numbers = {name: value for name, value in row.items() if name != "step"}
    numbers |= {f"per_class/{name}": value for name, value in zip(classes, row.get("per_class") or (), strict=False)}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
