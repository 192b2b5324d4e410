"""The folder a run is written to, before there is a run: free to take, ours alone while we train, or one to go on with.

Knows nothing of what is written into it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from selftrain.errors import UserError
from selftrain.runs.run import CONFIG, LOCK


def check_place(folder: Path) -> None:
    """Where nothing can be written is better said before hours of work."""
    try:
        parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        writable = parent.is_dir() and os.access(parent, os.W_OK)
    except OSError as error:
        raise UserError(f"--out {str(folder)[:80]}: cannot be made ({error.strerror}).") from None
    if not writable:
        raise UserError(f"--out {folder}: cannot be made, {parent} is not a folder that can be written to.")


def make_folder(folder: Path) -> None:
    """The folder, and those it lies in, if they are not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be made ({error.strerror}).") from None


def check_free(folder: Path) -> None:
    """Refuse a folder for a run that cannot be made, or that has something in it."""
    try:
        inside = {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
        taken = folder.is_symlink() or (folder.exists() and not folder.is_dir()) or bool(inside)
    except OSError as error:
        raise UserError(f"--out {str(folder)[:80]}: cannot be made ({error.strerror}).") from None
    if taken:
        raise UserError(
            f"--out {folder}: exists already. Add --resume to go on with that run, or choose another folder."
        )
    check_place(folder)


@contextmanager
def alone(folder: Path, resume: bool) -> Iterator[None]:
    """Inside, the run folder is there and no other process trains in it; the lock of a killed one is free at once."""
    if not resume:
        check_free(folder)  # again: what came before may have taken long
    make_folder(folder)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"--out {folder}: another process is training there. Wait for it, or choose another.") from None
    except (OSError, NotImplementedError):
        pass  # some network disks know no locks
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()


def resumable(folder: Path | None) -> Path:
    """The folder, if there is a run in it to go on with."""
    if folder is None:
        raise UserError("--resume needs --out RUN, the folder of the run to go on with.")
    if not (folder / CONFIG).exists():
        raise UserError(
            f"--resume: {folder} is not a run folder (no {CONFIG} in it). If it was stopped before training began, "
            f"give the same command without --resume: features that are there already are kept."
        )
    return folder


def free_folder(name: str) -> Path:
    """A folder under ``runs`` that is not there yet, for a run of this name."""
    stem = re.sub(r"[^\w.=]+", "-", name).strip("-")[:100]
    number = 1
    while (folder := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder
