"""Processes that a command starts for several devices do not outlive the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.processes import wait_for

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux signals the death of a parent process"
)

CHILD = """
import time
from selftrain.cli.launch import end_with_launcher
end_with_launcher()
print("ready", flush=True)
time.sleep(60)
"""
LAUNCHER = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}],
                         env=dict(os.environ, SELFTRAIN_LAUNCHER=str(os.getpid())), stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_a_rank_ends_when_its_launcher_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        launcher.kill()
    wait_for("the rank to end after its launcher", lambda: not _runs(rank), seconds=20)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_a_process_without_launcher_is_not_ended() -> None:
    code = "from selftrain.cli.launch import end_with_launcher; end_with_launcher(); print('on')"
    environment = {key: value for key, value in os.environ.items() if key != "SELFTRAIN_LAUNCHER"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "on\n"
    environment["SELFTRAIN_LAUNCHER"] = "1"  # which is not its parent: that one is gone
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
