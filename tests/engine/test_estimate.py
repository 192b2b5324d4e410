"""The estimate of time and memory."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from selftrain.engine import estimate
from selftrain.engine.estimate import Estimate, in_words, peak_memory
from selftrain.text import duration

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 second"), (40, "40 seconds"), (80, "80 seconds"), (180, "3 minutes"), (5000, "83 minutes"),
     (9000, "2.5 hours"), (40000, "11 hours"), (86400 * 4, "4 days")],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_estimates_in_words() -> None:
    assert (
        in_words(1000, 0.25, 1.23e9) == "remaining 1,000 steps: about 4 minutes, 1.2 GB of memory (4 steps per second)"
    )
    assert "2 seconds per step" in in_words(10, 2.0, 1e9)


def test_the_estimate_is_given_once_after_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: list[str] = []
    look = Estimate(1000, CPU, said.append)
    for step in range(1, 100):
        clock[0] += 5.0 if step <= estimate.WARM_UP else 0.1  # the first steps are slow and do not count
        look(step)
    assert len(said) == 1
    first = estimate.WARM_UP + estimate.STEPS
    assert said[0].startswith(f"remaining {1000 - first} steps: about 98 seconds")


def test_slow_steps_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    said: list[str] = []
    look = Estimate(100, CPU, said.append)
    for step in range(1, 6):
        clock[0] += 30.0
        look(step)
    assert said == [in_words(95, 30.0, peak_memory(CPU))]


def test_memory_is_that_of_the_process() -> None:
    before = peak_memory(CPU)
    block = torch.ones(25_000_000)  # 100 MB
    assert peak_memory(CPU) >= max(before, 1e8)
    del block


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_memory_is_not_that_of_the_process_that_started_it() -> None:
    block = torch.ones(200_000_000)  # 0.8 GB
    code = "import torch; from selftrain.engine.estimate import peak_memory; print(peak_memory(torch.device('cpu')))"
    found = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    assert 0 < float(found.stdout) < 0.8e9 < peak_memory(CPU)
    del block
