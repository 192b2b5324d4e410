"""Estimate how long a run will take and how much memory it needs, from its first steps.

Knows nothing of what a step does: it only measures time.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from selftrain.text import duration

WARM_UP, STEPS, SECONDS = 3, 15, 10.0  # steps that are not counted; steps, or seconds, that are counted


class Estimate:
    """Called after each step; says once, after about 20 steps (fewer if they are slow), how long the rest will take."""

    def __init__(self, steps: int, device: torch.device, say: Callable[[str], None]):
        self.steps, self.device, self.say = steps, device, say
        self.taken = 0
        self.started = 0.0
        self.done = False

    def __call__(self, step: int) -> None:
        if self.done:
            return
        self.taken += 1
        if self.taken == WARM_UP:
            self.started = self._now()
        counted = self.taken - WARM_UP
        if counted >= STEPS or (counted >= 2 and time.monotonic() - self.started > SECONDS):
            self.done = True
            if step < self.steps:
                self.say(in_words(self.steps - step, (self._now() - self.started) / counted, peak_memory(self.device)))

    def _now(self) -> float:
        if self.device.type == "cuda":  # steps are queued, so the clock must wait for them; twice per run
            torch.cuda.synchronize(self.device)
        return time.monotonic()


def peak_memory(device: torch.device) -> float:
    """Return the peak in bytes of the device if it counts them, else of this process; 0 if unknown."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device))
    if sys.platform == "win32":
        return 0.0
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where getrusage includes the process that started this one
        kilobytes = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        return 1024.0 * int(kilobytes[1]) if kilobytes else 0.0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def in_words(steps: int, seconds: float, memory: float) -> str:
    """Return the log line for a number of remaining steps, seconds per step and bytes of memory."""
    speed = f"{1 / seconds:,.3g} steps per second" if seconds < 1 else f"{seconds:,.3g} seconds per step"
    room = f", {memory / 1e9:.1f} GB of memory" if memory else ""
    return f"remaining {steps:,} steps: about {duration(steps * seconds)}{room} ({speed})"
