"""A run that is killed or stopped and then resumed ends like one that never was, bit for bit.

The runs that are killed are processes of their own; the runs they are compared with are trained in this one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import selftrain
from selftrain.engine.checkpoint import load_checkpoint
from tests.folders import layout_2

pytestmark = pytest.mark.long

TIMES = ("seconds", "steps_per_second")


SETTINGS = {
    "train.batch": 6, "train.unlabeled_batch": 8, "train.eval_every": 8, "train.checkpoint_every": 5,
    "train.threads": 1,
}  # fmt: skip
DEADLINE = 300.0
"""seconds after which a process that should have ended fails the test"""


def train(data: Path, out: Path, method: str, workers: int, resume: bool = False) -> None:
    selftrain.train(
        data, out=out, method=method, backbone="wrn-tiny", labels_per_class=2, steps=40, seed=5, quiet=True,
        settings={**SETTINGS, "data.workers": workers}, resume=resume,
    )  # fmt: skip


def command(data: Path, out: Path, method: str, workers: int) -> list[str]:
    """Return the command line that trains as ``train`` does."""
    settings = [f"{name}={value}" for name, value in {**SETTINGS, "data.workers": workers}.items()]
    return [
        sys.executable, "-m", "selftrain", "train", str(data), "--out", str(out), "--method", method,
        "--backbone", "wrn-tiny", "--labels-per-class", "2", "--steps", "40", "--seed", "5", "--quiet",
        *(word for setting in settings for word in ("--set", setting)),
    ]  # fmt: skip


def wait_for_rows(process: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    """Wait until a run has written that many rows of metrics."""
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + DEADLINE
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= count):
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline, f"no {count} rows of metrics after {DEADLINE:.0f} seconds"
        time.sleep(0.002)


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], dict[str, Any]]:
    """Return weights, metrics and results, without times."""

    def timeless(row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if key not in TIMES}

    metrics = [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    results = timeless(json.loads((folder / "results.json").read_text()))
    return safetensors.torch.load_file(folder / "model" / "model.safetensors"), metrics, results


def assert_same(one: Path, other: Path) -> None:
    weights, metrics, results = outcome(one)
    weights_2, metrics_2, results_2 = outcome(other)
    assert weights.keys() == weights_2.keys()
    for name, value in weights.items():
        assert torch.equal(value, weights_2[name]), name
    assert metrics == metrics_2
    assert results == results_2
    said, said_2 = (dict(np.load(run / "outputs.npz", allow_pickle=False)) for run in (one, other))
    assert said.keys() == said_2.keys()
    for name, values in said.items():
        assert np.array_equal(values, said_2[name]), name
    state, state_2 = (load_checkpoint(run / "checkpoints") for run in (one, other))
    assert state is not None
    assert state_2 is not None
    for name, value in state["net"].items():
        assert torch.equal(value, state_2["net"][name]), name


@pytest.mark.parametrize(
    ("method", "workers"),
    [("fixmatch", 0), ("fixmatch(tau=0.5)", 2), ("dst(fixmatch)", 2), ("dst(fixmatch, preset=paper)", 0)],
)
def test_a_killed_run_resumes_to_the_same_end(tmp_path: Path, method: str, workers: int) -> None:
    data = layout_2(tmp_path / "data")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(data, whole, method, workers)
    chance = random.Random(f"{method}, {workers} workers")
    process = subprocess.Popen(command(data, killed, method, workers), start_new_session=True)
    try:
        wait_for_rows(process, killed, chance.randint(0, 3))  # from before the first checkpoint to near the end
        time.sleep(chance.uniform(0, 0.15))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)
    assert not (killed / "results.json").exists(), "killed too late to show anything"

    train(data, killed, method, workers, resume=True)
    assert_same(whole, killed)


def test_loader_workers_do_not_change_results(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    for workers in (0, 2):
        train(data, tmp_path / str(workers), "dst(fixmatch)", workers)
    assert_same(tmp_path / "0", tmp_path / "2")


def test_a_stopped_run_says_how_to_resume_it(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(data, whole, "fixmatch", 0)
    process = subprocess.Popen(command(data, stopped, "fixmatch", 2), start_new_session=True)
    try:
        wait_for_rows(process, stopped, 1)
        os.killpg(process.pid, signal.SIGTERM)  # schedulers signal the whole group, loader workers included
        assert process.wait(DEADLINE) == 130
    finally:
        process.kill()
    assert "resume" in (stopped / "log.txt").read_text().splitlines()[-1]
    subprocess.run([*command(data, stopped, "fixmatch", 0), "--resume"], check=True, timeout=DEADLINE)
    assert_same(whole, stopped)
