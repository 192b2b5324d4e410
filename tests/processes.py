"""Processes as seen by tests that kill them: children, whether they still run, and waiting with a deadline."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE = 300.0
"""seconds after which a wait fails its test"""


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that does not outlive its test."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(
    what: str,
    condition: Callable[[], bool],
    *,
    of: subprocess.Popen[str] | None = None,
    seconds: float = DEADLINE,
) -> None:
    """Wait until a condition holds; ``what`` says what was waited for if it never does.

    The wait also fails if the process ``of`` ends before that.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if of is not None and of.poll() is not None:
            raise AssertionError(f"the process ended with code {of.returncode} before {what}: {of.communicate()[1]}")
        assert time.monotonic() < deadline, f"after {seconds:.0f} seconds still waiting for {what}"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children, and so on."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended in the meantime
            parents[int(folder.name)] = int(after_name[1])
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def command_of(pid: int) -> str:
    """Return the command line of a process, empty if it has ended."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def die(*_: object) -> None:
    """End this process at once, as a crash does."""
    os._exit(7)
