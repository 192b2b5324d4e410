"""The final model: 'selftrain train' on the label file, in a process of its own, from scratch.

Knows nothing of how training works: it is the same command that a user would type.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selftrain.errors import UserError


class FinalTraining:
    """Runs the command and keeps its newest lines."""

    def __init__(self, photos: Path, labels: Path, options: Sequence[str] = ()):
        self.words = ["train", str(photos), "--labels", str(labels), *options]
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=12)
        self._out: Path | None = None
        self._reader: threading.Thread | None = None

    @property
    def command(self) -> str:
        """The command, as a user types it."""
        return shlex.join(["selftrain", *self.words])

    def start(self, out: Path) -> None:
        """Start training into a new run folder; an error if it is running already."""
        if self._process is not None and self._process.poll() is None:
            raise UserError("training is running already.")
        self._out = out
        self._lines.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "selftrain", *self.words, "--out", str(out)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._lines.append(line.rstrip())

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the process has ended and all its lines are read; return its exit code."""
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(seconds)
        self._reader.join(seconds)
        return code

    def stop(self) -> None:
        """End the process; the run folder can be resumed."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def summary(self) -> dict[str, Any]:
        """Return the command and how far it is."""
        code = None if self._process is None else self._process.poll()
        state = "not started"
        if self._process is not None:
            state = "running" if code is None else "finished" if code == 0 else "failed"
        out = None if self._out is None else str(self._out)
        return {"command": self.command, "state": state, "out": out, "lines": list(self._lines)}
