"""A few kills of the storm, and a short soak; ``python -m benchmarks.kill_storm`` and ``benchmarks.soak`` do more."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")]


def test_killed_runs_and_pages_end_the_same() -> None:
    words = [sys.executable, "-m", "benchmarks.kill_storm", "--kills", "5", "--methods", "fixmatch"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kills, 0 bad" in done.stdout


def test_long_work_takes_no_more_memory() -> None:
    words = [sys.executable, "-m", "benchmarks.soak", "--steps", "400", "--requests", "40", "--answers", "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 3
