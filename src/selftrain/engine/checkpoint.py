"""A run's state on disk: written atomically, read back without executing code.

Knows nothing of what the state means.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from selftrain.errors import UserError
from selftrain.files import replacing

LAST = "last.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    with replacing(folder / LAST) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError:  # what torch makes of a full disk
            free = shutil.disk_usage(folder).free / 1e6
            raise UserError(
                f"{folder / LAST}: cannot be written ({free:,.1f} MB are free on that disk). Make room, then go "
                f"on with --resume."
            ) from None
    return folder / LAST


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest state, or None where none was written yet."""
    path = folder / LAST
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch raise nearly anything
        raise not_a_checkpoint(folder, error) from None
    return state


def not_a_checkpoint(folder: Path, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(
        f"{folder / LAST}: not a checkpoint of this run ({reason}). Delete the file to start the run anew."
    )
