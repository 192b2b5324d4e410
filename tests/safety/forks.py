"""A command in a fork of this process, with one fault: a system call that fails, a kill, or a power failure.

Knows nothing of what the commands do. The faults themselves are made by ``faults.c``, which must be preloaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

OPEN, WRITE, SYNC, ENTRY, MAP, ALLOC, CHANGE, NOTHING = 0, 1, 2, 3, 4, 5, 6, -1
ONCE, FROM_THEN_ON, DIE, COPY = 0, 1, 2, 3
DIED, HUNG, RAISED = 77, 78, 79
"""exit codes of a process that the fault ended, that took too long, and that raised something else than an error"""
SLOWEST = 300
"""seconds that a command may take"""


class Fault(NamedTuple):
    """A kind of calls, and what happens at one of them."""

    kind: int
    how: int
    error: int = 0


def in_a_fork(words: list[str], case: Path, fault: Fault | None, at: int = 0) -> tuple[int, str]:
    """Run a command line in a fork of this process, which has imported everything; return its exit code and output."""
    said, counts = case.parent / "said.txt", case.parent / "counts.json"
    backups = case.parent / "backups"
    shutil.rmtree(backups, ignore_errors=True)
    backups.mkdir()
    child = os.fork()
    if not child:
        _child(words, case, fault, at, said, counts, backups)
    until = time.monotonic() + SLOWEST
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return HUNG, said.read_text()
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    return code, said.read_text()


def _child(words: list[str], case: Path, fault: Fault | None, at: int, said: Path, counts: Path, backups: Path) -> None:
    code = RAISED
    try:
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ["SELFTRAIN_CACHE"] = str(case / "cache")
        from selftrain.cli import main

        sys.argv = ["selftrain", *words]
        shim, journal = None, -1
        if fault is not None:
            shim = ctypes.CDLL(None)
            journal = os.open(case.parent / "journal.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            names = [os.fsencode(path) for path in (case, backups if fault.how == COPY else "")]
            shim.faults_arm(*names, journal, fault.kind, ctypes.c_long(at), fault.how, fault.error)
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        finally:
            if shim is not None:
                shim.faults_disarm()
                counts.write_text(json.dumps([shim.faults_count(kind) for kind in range(7)]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def lose_power(lines: list[str], backups: Path, lost: str) -> bool:
    """Change files to what a power failure may leave of them: only what was synced is sure to be there.

    ``lines`` are the journal until then. Returns whether anything was lost.
    """
    dirty: dict[str, int] = {}  # the first byte of each file that was not synced
    entries: list[tuple[str, int, str, str]] = []  # changes of folders that were not synced
    for line in lines:
        what, number, a, b = line.split("\t")
        if what == "W":
            dirty[a] = min(int(number), dirty.get(a, 1 << 60))
        elif what == "S":
            dirty.pop(a, None)
            entries = [entry for entry in entries if os.path.dirname(entry[3] or entry[2]) != a]
        elif what != "N":
            entries.append((what, int(number), a, b))
            if what == "R" and a in dirty:
                dirty[b] = dirty.pop(a)
            elif what in ("R", "U"):
                dirty.pop(b or a, None)
    for name, first in dirty.items():
        path = Path(name)
        if path.is_file():
            size = path.stat().st_size
            os.truncate(path, min(first, size))
            if lost == "data":
                os.truncate(path, size)  # the pages are zeros
    if lost == "data":
        return bool(dirty)
    for what, kept, a, b in reversed(entries):
        with contextlib.suppress(OSError):
            if what == "C":
                os.unlink(a)
            elif what == "M":
                os.rmdir(a)
            elif what == "R":
                os.rename(b, a)
            if kept:
                shutil.copy(backups / str(kept), b or a)
    return bool(dirty or entries)
