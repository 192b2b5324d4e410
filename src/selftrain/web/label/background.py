"""Starts the process that trains, passes labels to it, and puts what it finds into the session.

Knows nothing of training or of pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from selftrain.web.label.session import Round, Session

WORKER = "selftrain.web.label.worker"


class Background:
    """The process that trains beside the page. Starting it again after it has ended is safe."""

    def __init__(self, session: Session, settings: Mapping[str, Any], seed: int = 0, steps: int | None = None):
        self.session, self.settings, self.seed, self.steps = session, dict(settings), seed, steps
        self._process: subprocess.Popen[str] | None = None
        self._sent = -1
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process and send it the photos."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        photos = self.session.photos
        start = {
            "root": photos.root,
            "names": list(photos.names),
            "settings": self.settings,
            "seed": self.seed,
            "steps": self.steps,
        }
        threading.Thread(target=self._read, daemon=True).start()
        self._write(start)
        self.send_labels()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send_labels(self) -> None:
        """Send the labels, if they have changed since they were last sent."""
        session = self.session
        with session.lock:
            version = session.version
            message = {"labels": {str(k): v for k, v in session.labels().items()}, "left_out": session.left_out()}
        if version != self._sent:
            self._sent = version
            self._write(message)

    def _write(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with self._lock:
            try:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
            except (BrokenPipeError, ValueError):
                self._failed()

    def _failed(self) -> None:
        with self.session.lock:
            found = self.session.found
            found.progress = None
            found.error = found.error or "the process that trains has ended; photos are shown in the order of names"

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                take(self.session, json.loads(line))
        if process.wait() != 0:
            self._failed()


def take(session: Session, message: Mapping[str, Any]) -> None:
    """Put one message of the process into the session."""
    with session.lock:
        found, event = session.found, message["event"]
        if event == "status":
            found.status, found.progress = message["status"], message.get("progress")
        elif event == "ready":
            found.unreadable = set(message["unreadable"])
        elif event == "suggestions":
            found.suggestions = message["suggestions"]
        elif event == "error":
            found.error, found.progress = message["error"], None
        elif event == "round":
            found.classes, found.guesses = message["classes"], message["guesses"]
            found.confidence = message["confidence"]
            found.rounds.append(
                Round(message["labels"], message["seconds"], message["estimate"], tuple(message["weakest"]))
            )
