"""Several processes of one command on this machine, one for each device; they end together.

Knows nothing of what they compute. ``torchrun`` does this too, for several machines; from this one a user gets each
message once and the exit code of the process that failed.
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

GRACE = 30.0  # seconds in which the others may write a checkpoint and end
LAUNCHER = "SELFTRAIN_LAUNCHER"


def launch(devices: int, words: Sequence[str]) -> int:
    """Run ``selftrain WORDS`` once for each device, and give back the exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    everyone = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "selftrain",
        "WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        LAUNCHER: str(os.getpid()),
    }  # fmt: skip
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // devices))}  # unless the user says otherwise
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in range(devices):
            own = {"RANK": str(number), "LOCAL_RANK": str(number)}
            command = [sys.executable, "-m", "selftrain", *words]
            ranks.append(subprocess.Popen(command, env={**threads, **os.environ, **everyone, **own}))
        failed = 0
        while not failed and any(rank.poll() is None for rank in ranks):
            time.sleep(0.1)
            failed = next((rank.returncode for rank in ranks if rank.poll()), 0)
        patience = time.monotonic() + GRACE
        if failed:
            _wait(ranks, time.monotonic() + 2)
            pass_on(signal.SIGTERM)
        _wait(ranks, patience)
        return failed if failed >= 0 else 128 - failed
    finally:
        pass_on(signal.SIGKILL)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(ranks: list[subprocess.Popen[bytes]], until: float) -> None:
    while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
        time.sleep(0.1)


def end_with_launcher() -> None:
    """Have this process told to end when its launcher is gone, even if that was killed."""
    launcher = os.environ.pop(LAUNCHER, None)  # workers of ours are not the launcher's
    if launcher is None or not sys.platform.startswith("linux"):
        return
    signal_of_parents_death = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(signal_of_parents_death, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it died before we could ask
        sys.exit(128 + signal.SIGTERM)
