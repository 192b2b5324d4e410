"""The folder a run is written to, before there is a run: free to use, locked while it trains, or ready to resume.

Knows nothing of the files written into it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from selftrain.errors import UserError
from selftrain.files import refuse_links, sweep_parts
from selftrain.runs.layout import RunLayout


def check_place(folder: Path) -> None:
    """Raise a UserError if the folder cannot be made, before hours of work."""
    try:
        parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        writable = parent.is_dir() and os.access(parent, os.W_OK)
    except OSError as error:
        raise _cannot_make(folder, error) from None
    if not writable:
        raise UserError(f"`out` {folder}: cannot be made, {parent} is not a writable folder.")


def make_folder(folder: Path) -> None:
    """Make the folder and its parents, if they do not exist yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(folder, error) from None


def _cannot_make(folder: Path, error: OSError) -> UserError:
    return UserError(f"`out` {str(folder)[:80]}: cannot be made ({error.strerror}).")


def check_free(run: RunLayout) -> None:
    """Raise a UserError if a run folder cannot be made, or has something in it."""
    folder = run.folder
    try:
        used = bool(run.contents()) if folder.is_dir() else folder.exists()
        taken = used or folder.is_symlink()
    except OSError as error:
        raise _cannot_make(folder, error) from None
    if taken and not folder.is_dir():
        raise UserError(f"`out` {folder}: exists and is not a folder. Choose another folder.")
    if taken:
        raise UserError(
            f"`out` {folder}: the folder exists already. Add `resume=True` to resume the run in it, `overwrite=True` "
            f"to replace it, or choose another folder."
        )
    check_place(folder)


def can_be_replaced(run: RunLayout) -> bool:
    """Return whether there is a run in a folder; raise a UserError if anything else is in it, or it is in use."""
    folder = run.folder
    if not folder.is_dir() or folder.is_symlink() or not run.contents():
        return False
    others = sorted(run.contents() - set(run.names))
    if not run.exists or others:
        found = f"holds {others[0]!r}, which no run writes" if others else f"has no {run.config.name}"
        raise UserError(f"`overwrite=True`: {folder} {found}. Nothing was deleted; choose another folder.")
    lock = FileLock(run.lock)
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"`overwrite=True`: another process is training in {folder}. Wait for it.") from None
        lock.release()
    return True


def remove_run(run: RunLayout) -> None:
    """Delete a run that can be replaced, if there is one."""
    if can_be_replaced(run):
        shutil.rmtree(run.folder)


@contextmanager
def locked(run: RunLayout, resume: bool) -> Iterator[None]:
    """Inside, the run folder exists and no other process trains in it; the lock of a killed process is free at once."""
    if not resume:
        check_free(run)  # a second time: extracting features may have taken long
    make_folder(run.folder)
    _refuse_links(run)
    lock = FileLock(run.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"`out` {run.folder}: another process is training there. Wait for it, or choose another folder."
        ) from None
    except (OSError, NotImplementedError):
        pass  # some network filesystems do not support locking
    try:
        for folder in run.folders:
            sweep_parts(folder)
        yield
    finally:
        with suppress(OSError):
            run.lock.unlink(missing_ok=True)
        lock.release()


def _refuse_links(run: RunLayout) -> None:
    """Raise a UserError if the folder contains a link, through which a run would write to other places."""
    for folder in run.folders:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                refuse_links(Path(entry.path), run.folder)


def resumable(folder: Path | None) -> Path:
    """Return the folder if it holds a run that can be resumed."""
    if folder is None:
        raise UserError("`resume=True` needs `out`, the folder of the run to resume.")
    run = RunLayout(folder)
    if not run.exists:
        raise UserError(
            f"`resume=True`: {folder} is not a run folder (no {run.config.name} in it). If it was stopped before "
            f"training began, repeat the command without `resume=True`: features extracted so far are kept."
        )
    return folder


def free_folder(name: str) -> Path:
    """Return a folder under ``runs`` that does not exist yet, for a run of this name."""
    stem = re.sub(r"[^\w.=]+", "-", name).strip("-")[:100]
    number = 1
    while (folder := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder
