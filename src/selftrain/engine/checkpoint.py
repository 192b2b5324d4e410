"""A run's state on disk: written atomically, read back without executing code.

Knows nothing of what the state means.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from selftrain.errors import UserError
from selftrain.files import replacing

LAST = "last.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    with replacing(folder / LAST) as temporary:
        torch.save(state, temporary)
    return folder / LAST


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest state, or None where none was written yet."""
    path = folder / LAST
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path}: not a checkpoint of selftrain ({str(error).splitlines()[0]}). "
            f"Delete the file to start this run from its beginning."
        ) from None
    return state
