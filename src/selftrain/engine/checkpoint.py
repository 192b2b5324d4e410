"""Checkpoints: the state of a run in a file, written atomically and read without executing code.

Knows nothing of what the state means.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from selftrain.errors import UserError
from selftrain.files import replacing
from selftrain.text import first_line

LAST = "last.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write the state to ``folder`` and return the file's path."""
    with replacing(folder / LAST) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError:  # torch's error for a full disk
            free = shutil.disk_usage(folder).free / 1e6
            raise UserError(
                f"{folder / LAST}: cannot be written ({free:,.1f} MB are free on that disk). Free some space, then "
                f"pass `resume=True` to resume the run."
            ) from None
    return folder / LAST


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest state, or None if none has been written yet."""
    path = folder / LAST
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises almost any type for a damaged file
        raise not_a_checkpoint(folder, error) from None
    return state


def not_a_checkpoint(folder: Path, error: Exception) -> UserError:
    """Return the error for a checkpoint that is damaged or belongs to another run."""
    return UserError(
        f"{folder / LAST}: not a checkpoint of this run ({first_line(error)}). Delete the file to start the run again "
        f"from its first step."
    )
