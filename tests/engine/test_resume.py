"""A run killed at a random moment and resumed ends like one that was never stopped, bit for bit. Real processes."""

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

from tests.folders import layout_2

TIMES = ("seconds", "steps_per_second")


def command(data: Path | str, out: Path, method: str, workers: int, *extra: str) -> list[str]:
    return [
        sys.executable, "-m", "selftrain", "train", str(data), "--out", str(out), "--method", method,
        "--backbone", "wrn-tiny", "--labels-per-class", "2", "--steps", "40", "--seed", "5", "--quiet",
        "--set", "train.batch=6", "--set", "train.unlabeled_batch=8", "--set", "train.eval_every=8",
        "--set", "train.checkpoint_every=5", "--set", f"data.workers={workers}", "--set", "train.threads=1", *extra,
    ]  # fmt: skip


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], dict[str, Any]]:
    """Weights, metrics and results, times aside."""

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
    state, state_2 = (torch.load(run / "checkpoints" / "last.pt", weights_only=True) for run in (one, other))
    for name, value in state["net"].items():
        assert torch.equal(value, state_2["net"][name]), name


@pytest.mark.parametrize(
    ("method", "workers"),
    [("fixmatch", 0), ("fixmatch(tau=0.5)", 2), ("dst(fixmatch)", 2), ("dst(fixmatch, preset=paper)", 0)],
)
def test_killed_and_resumed_is_the_same_run(tmp_path: Path, method: str, workers: int) -> None:
    data = layout_2(tmp_path / "data")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(data, whole, method, workers), check=True)

    process = subprocess.Popen(command(data, broken, method, workers), start_new_session=True)
    metrics = broken / "metrics.jsonl"
    deadline = time.monotonic() + 120
    wanted = random.randint(0, 3)  # evaluations to wait for: from before the first checkpoint to near the end
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= wanted:
            time.sleep(random.uniform(0, 0.15))
            break
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (broken / "results.json").exists(), "killed too late to show anything"

    subprocess.run(command(data, broken, method, workers, "--resume"), check=True)
    assert_same(whole, broken)


def test_loader_workers_do_not_matter(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    for workers in (0, 2):
        subprocess.run(command(data, tmp_path / str(workers), "dst(fixmatch)", workers), check=True)
    assert_same(tmp_path / "0", tmp_path / "2")


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    subprocess.run(command(data, whole, "fixmatch", 0), check=True)
    process = subprocess.Popen(command(data, stopped, "fixmatch", 2), start_new_session=True)
    while not (stopped / "metrics.jsonl").exists() or not (stopped / "metrics.jsonl").read_text():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGTERM)  # schedulers signal the whole group, loader workers included
    assert process.wait(60) == 130
    assert "go on with --resume" in (stopped / "log.txt").read_text()
    subprocess.run(command(data, stopped, "fixmatch", 0, "--resume"), check=True)
    assert_same(whole, stopped)
