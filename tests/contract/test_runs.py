"""Whole runs on two ranks: one run folder, the results of one rank, and stops and errors that all ranks share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from selftrain.config.resolve import make_settings
from selftrain.engine.distributed import started
from selftrain.engine.runtime import ProcessesMissingError, make_fabric
from selftrain.errors import UserError
from tests.contract.conftest import ENV, ROOT, WORDS, run
from tests.processes import wait_for
from tests.tiny import saved_model

KILLED_AT = 4
"""the step from which on a rank is killed"""
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.long,
]  # three processes that import torch are slow on a busy machine


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(folder: Path, one: Path) -> None:
    """Check that a finished run and one on a single rank are the same up to rounding."""
    assert [row["step"] for row in rows(folder)] == [row["step"] for row in rows(one)] == [3, 6]
    for mine, theirs in zip(rows(folder), rows(one), strict=True):
        for name in ("loss", "loss_worst", "pseudo_label_quantity"):
            assert mine[name] == pytest.approx(theirs[name], abs=2e-3), name
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.02)
    weights, expected = (saved_model(path / "model").state_dict() for path in (folder, one))
    torch.testing.assert_close(weights, expected, rtol=0, atol=5e-3)


def saved_step(folder: Path) -> int:
    """The step of a run's last checkpoint; -1 before the first."""
    path = folder / "checkpoints" / "last.json"
    return int(json.loads(path.read_text())["state"]["dict"][0][1]) if path.exists() else -1


@pytest.fixture(scope="module")
def folder(two_ranks: Path) -> Path:
    return two_ranks


@pytest.fixture(scope="module")
def one(folder: Path) -> Path:
    return folder / "one"


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, str]]:
    return [json.loads((folder / f"runs{rank}.json").read_text()) for rank in (0, 1)]


def test_two_ranks_write_one_run(found: list[dict[str, str]], folder: Path, one: Path) -> None:
    assert [told["whole"] for told in found] == ["done", "done"]
    assert_same(folder / "whole", one)
    log = (folder / "whole" / "log.txt").read_text()
    assert log.count("step 6/6") == 1


def test_errors_are_printed_once(found: list[dict[str, str]], folder: Path) -> None:
    for name, words in (("again", "exists already"), ("odd", "train.batch=17: 2 devices cannot share it equally")):
        told = sorted(rank[name] for rank in found)
        assert told[0] == "SystemExit: 2"
        assert words in told[1]
    assert not (folder / "odd").exists()
    assert "c.jpg: cannot be read" in (folder / "fault1.txt").read_text()


def test_a_signal_to_one_rank_stops_both_and_one_rank_resumes(
    found: list[dict[str, str]], folder: Path, one: Path
) -> None:
    assert [told["stopped"] for told in found] == ["exit 130", "exit 130"]
    assert not (folder / "stopped" / "results.json").exists()
    assert 2 <= saved_step(folder / "stopped") < 6
    run("--out", str(folder / "stopped"), "--resume")
    assert_same(folder / "stopped", one)


def test_two_ranks_resume_the_run_of_one(found: list[dict[str, str]], folder: Path, one: Path) -> None:
    assert found[0]["from_one"] == "done"
    assert_same(folder / "from_one", one)


def test_fsdp_gives_the_same_model(found: list[dict[str, str]], folder: Path, one: Path) -> None:
    assert found[0]["fsdp"] == "done"
    assert_same(folder / "fsdp", one)


def test_two_ranks_reach_the_same_verdict(found: list[dict[str, str]], folder: Path) -> None:
    assert [told["guarded"] for told in found] == ["done", "done"]
    first, second = (json.loads((folder / f"verdict{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    results = json.loads((folder / "guarded" / "results.json").read_text())
    assert {name: results["guard"][name] for name in first} == first
    assert results["accuracy"] > 0.8
    assert results["screening"]["share"] > 0.1


def test_a_killed_rank_ends_the_run_and_resume_completes_it(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    words = [*WORDS, "--out", str(out), "--set", "train.devices=2", "--steps", "30"]
    process = subprocess.Popen(
        [sys.executable, "-m", "selftrain", *words], env=ENV, cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(f"a checkpoint of step {KILLED_AT}", lambda: saved_step(out) >= KILLED_AT, of=process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        victim = next(pid for pid in children if b"RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(int(victim), signal.SIGKILL)
        stderr = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode in (2, 137)
    assert "Traceback" not in stderr
    assert stderr.count("error:") <= 1
    assert KILLED_AT <= saved_step(out) < 30
    run("--out", str(out), "--resume", "--steps", "30")
    assert json.loads((out / "results.json").read_text())["steps"] == 30


def test_processes_started_by_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started() == (1, 1, 0, "")
    monkeypatch.setenv("SLURM_NTASKS", "8")  # of sbatch: no step has been started
    assert started().ranks == 1
    for name, value in (("STEP_NUM_TASKS", 8), ("STEP_NUM_NODES", 2), ("PROCID", 5)):
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert started() == (8, 2, 5, "srun")
    with pytest.raises(UserError, match=r"`train.devices=4`: srun started 8 processes"):
        make_fabric(make_settings("scratch", {"train.devices": 4}).train)
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "3")
    with pytest.raises(UserError, match="8 processes on 3 nodes"):
        make_fabric(make_settings("scratch", {}).train)


def test_python_says_how_to_start_processes() -> None:
    with pytest.raises(ProcessesMissingError, match=r"torchrun --nproc-per-node 2"):
        make_fabric(make_settings("scratch", {"train.devices": 2}).train)
