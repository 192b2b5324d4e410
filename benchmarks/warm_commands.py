"""Commands in forks of this process, which has imported everything: they start at once, and can be killed in numbers.

Knows nothing of what the commands do. Needs a system that can fork.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

SLOWEST = 300.0
"""seconds after which a command that should end or answer counts as hanging"""


class Command:
    """A command line of selftrain in a fork; its output goes to a file, and its standard output can be read here."""

    def __init__(self, words: Sequence[str], cache: Path, log: Path):
        self.log = log
        self._output, theirs = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._output)
            _child(list(words), cache, log, theirs)
        os.close(theirs)
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the command runs."""
        if self._code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._ended(status)
        return self._code

    def wait(self, seconds: float = SLOWEST) -> int | None:
        """Wait until the command ends, at most so long, and return its exit code."""
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        return self._code

    def kill(self) -> bool:
        """End the command as ``kill -9`` does; return whether it was still running."""
        if self.poll() is not None:
            return False
        os.kill(self.pid, signal.SIGKILL)
        self._ended(os.waitpid(self.pid, 0)[1])
        return True

    def line(self) -> str:
        """Return the next line of the standard output."""
        found = b""
        until = time.monotonic() + SLOWEST
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([self._output], [], [], max(0.0, until - time.monotonic()))
            byte = os.read(self._output, 1) if ready else b""
            if not byte:
                raise RuntimeError(f"the command said no more: {self.log.read_text()[-500:]}")
            found += byte
        return found.decode().strip()

    def memory(self) -> float:
        """Return the resident memory of the command in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1e3
        return 0.0

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _ended(self, status: int) -> None:
        self._code = os.waitstatus_to_exitcode(status)
        os.close(self._output)


def _child(words: list[str], cache: Path, log: Path, output: int) -> None:
    code = 99
    try:
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # the old ones may be files
        os.environ["SELFTRAIN_CACHE"] = str(cache)
        code = _call(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _call(words: list[str]) -> int:
    from selftrain.cli import main

    sys.argv = ["selftrain", *words]
    try:
        main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0


def warm_up(words: Sequence[str], cache: Path) -> None:
    """Run a command once in this process, so that its forks have nothing to import."""
    import torch

    torch.set_num_threads(1)
    os.environ["SELFTRAIN_CACHE"] = str(cache)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        code = _call(list(words))
    assert code == 0, f"{words} ended with {code}"


def small_images(folder: Path, parts: dict[str, int], side: int = 8) -> None:
    """Write so many images of each of three classes into each part."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in parts.items():
        for k, name in enumerate(("ant", "bee", "cat")):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.normal(128, 40, (side, side, 3))
                pixels[..., k] += 90
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / part / name / f"{i:03}.png")


def small_weights(file: Path) -> None:
    """Write the weights of a small backbone, the same each time."""
    import safetensors.torch
    import torch

    from selftrain.nn.backbones import build_backbone

    torch.manual_seed(0)
    safetensors.torch.save_file(build_backbone("wrn-tiny", weights="none", size=8).state_dict(), file)
