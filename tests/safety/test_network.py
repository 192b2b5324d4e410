"""No command asks the network for one's own data (system calls, seen from outside), and none at all with --offline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import layout_2

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]


def connections(words: list[str], log: Path) -> list[str]:
    """Run a command and return its system calls that address another machine."""
    traced = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg", "-o", str(log)]
    done = subprocess.run([*traced, sys.executable, "-m", "selftrain", *words], capture_output=True, timeout=300)
    if b"ptrace" in done.stderr and done.returncode:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr.decode()
    return [line for line in log.read_text().splitlines() if re.search(r"AF_INET6?\b", line)]


@pytest.mark.timeout(900)
def test_own_data_never_touches_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    data, run = layout_2(tmp_path / "data"), tmp_path / "run"
    quick = ["--labels-per-class", "2", "--steps", "3", "--backbone", "wrn-tiny", "--set", "train.batch=4"]
    assert connections(["train", str(data), "--out", str(run), *quick], tmp_path / "train.txt") == []
    assert connections(["report", str(run)], tmp_path / "report.txt") == []
    assert connections(["predict", str(run), str(data / "test")], tmp_path / "predict.txt") == []
    assert connections(["--offline", "evaluate", str(run), str(data)], tmp_path / "evaluate.txt") == []
    assert "SELFTRAIN_OFFLINE" not in os.environ
