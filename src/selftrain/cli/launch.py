"""Run one command in several processes on this machine, one per device; they end together.

Knows nothing of what they compute. ``torchrun`` does the same for several machines; with this module the user sees each
message once, and gets the exit code of the process that failed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

GRACE = 30.0
"""seconds that the other processes have to write a checkpoint after one has failed"""
LAUNCHER = "SELFTRAIN_LAUNCHER"
"""environment variable with the id of the launching process"""


def launch(devices: int, words: Sequence[str]) -> int:
    """Run ``selftrain WORDS`` once per device and return the exit code."""
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        shared = _environment(devices)
        for number in range(devices):
            environment = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
            ranks.append(subprocess.Popen([sys.executable, "-m", "selftrain", *words], env=environment))
        failed = 0
        while not failed and any(rank.poll() is None for rank in ranks):
            time.sleep(0.1)
            failed = next((rank.returncode for rank in ranks if rank.poll()), 0)
        deadline = time.monotonic() + GRACE
        if failed:
            _wait(ranks, time.monotonic() + 2)
            pass_on(signal.SIGTERM)
        _wait(ranks, deadline)
        return failed if failed >= 0 else 128 - failed
    finally:
        pass_on(signal.SIGKILL)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _environment(devices: int) -> dict[str, str]:
    """Return the environment that all processes share, with a free port for them to meet at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // devices)),  # unless the user has set it
        **os.environ,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "selftrain",
        "WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        LAUNCHER: str(os.getpid()),
    }  # fmt: skip


def _wait(ranks: list[subprocess.Popen[bytes]], deadline: float) -> None:
    """Wait until all processes have ended, at most until the deadline."""
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(0.1)


def end_with_launcher() -> None:
    """Arrange for this process to be terminated when its launcher ends, even if the launcher is killed."""
    launcher = os.environ.pop(LAUNCHER, None)  # processes that this one starts have another parent
    if launcher is None or not launcher.isdecimal() or not sys.platform.startswith("linux"):
        return
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it ended before the call above
        sys.exit(128 + signal.SIGTERM)
