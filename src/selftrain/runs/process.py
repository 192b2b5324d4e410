"""The process a run trains in: signals end it between two steps, and it is left as it was found.

Knows nothing of what is trained.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import torch

from selftrain.nn.contexts import using_threads


class Stoppable(Protocol):
    stopping: bool
    """set it to end after the current step"""


@contextmanager
def restored_afterwards(threads: int = 0) -> Iterator[None]:
    """Inside, use this many CPU threads (0: as many as before); restore threads and torch's random state at the end."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices), using_threads(threads):
        yield


@contextmanager
def stopped_by_signals(loop: Stoppable, ranks: int = 1) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM end the loop after the current step, with a checkpoint; a second one ends it at once.

    Several ranks may get a signal twice, from the terminal and from their launcher, and need a moment to agree. For
    them a second signal counts only three seconds later. Outside the main thread, signals cannot be handled.
    """
    asked = 0.0
    patience = 3.0 if ranks > 1 else 0.0
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if loop.stopping and time.monotonic() - asked >= patience:
            raise KeyboardInterrupt
        if not loop.stopping:
            loop.stopping, asked = True, time.monotonic()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
