"""Paths of files and folders as settings keep them.

Knows nothing of what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from selftrain.errors import UserError


def absolute_path(path: Any, argument: str) -> str | None:
    """Return the path of a file or folder as text that means the same from any working directory.

    None stays None, and the path of something that does not exist stays as it is.
    """
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(
            f"`{argument}`: expected a path, got {type(path).__name__}; arrays are passed as pairs (x, y), with -1 in "
            f"y for unlabeled rows."
        )
    found = Path(path)
    if found.exists() and not (found.is_file() or found.is_dir()):
        return str(found.absolute())  # a pipe: the target of its link in /proc is not a path
    return str(found.resolve()) if found.exists() else str(path)
