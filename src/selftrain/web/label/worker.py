"""The process beside the page: features, suggestions, and rounds of training on the newest labels.

It reads lines of JSON from its standard input and writes lines of JSON to its standard output, and ends when the server
does. Training takes place here so that the page answers at once. Knows nothing of files other than photos.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from selftrain.console import ProgressBar, ProgressLines, Reporter
from selftrain.data.images import FileImages
from selftrain.engine.allocator import return_freed_memory
from selftrain.errors import UserError
from selftrain.suggest.choose import LEFT_OUT, UNLABELED, choose
from selftrain.suggest.pool import Pool
from selftrain.suggest.problem import extract
from selftrain.suggest.quick import Answers, quick_answers

Array = NDArray[Any]
Send = Callable[[dict[str, Any]], None]
SUGGESTED, FIRST = 200, 24
"""suggestions that are sent at a time, and those of the first grid of a person who starts from nothing"""
PAUSE = 0.5
"""seconds without an answer before a round begins"""


class EventReporter(Reporter):
    """A reporter whose lines and progress become messages."""

    def __init__(self, send: Send):
        super().__init__(quiet=True)
        self.send = send

    @contextmanager
    def progress(
        self, description: str, total: int, unit: str, start: int = 0, *, kept: str = ""
    ) -> Iterator[ProgressBar | ProgressLines]:
        yield ProgressEvents(self, description, total, unit, start)


class ProgressEvents(ProgressLines):
    """Progress as messages, a few per second."""

    INTERVAL = 0.3

    def reach(self, done: int, total: int | None = None) -> None:
        now = time.monotonic()
        self._total = total or self._total
        if now - self._said >= self.INTERVAL and isinstance(self._reporter, EventReporter):
            self._said = now
            share = min(1.0, done / max(1, self._total))
            text = f"{self._what}: {done:,} of {self._total:,} {self._unit}"
            self._reporter.send({"event": "status", "status": text, "progress": share})


class Inbox:
    """The newest labels that the server has sent."""

    def __init__(self, lines: TextIO):
        self._newest: dict[str, Any] | None = None
        self._any_taken = False
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: TextIO) -> None:
        for line in lines:
            with self._changed:
                self._newest = json.loads(line)
                self._changed.notify_all()
        os._exit(0)  # the server is gone

    def take(self) -> dict[str, Any]:
        """Wait for labels that were not taken yet and, unless they are the first, for a moment without new ones."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._newest is not None)
                seen = self._newest
                if self._any_taken:
                    self._changed.wait(PAUSE)
                if self._newest is seen and seen is not None:
                    self._newest, self._any_taken = None, True
                    return seen


class Worker:
    """Features of all photos, and what follows from the labels."""

    def __init__(self, start: Mapping[str, Any], send: Send):
        self.send, self.settings, self.seed = send, dict(start["settings"]), int(start["seed"])
        self.steps = start.get("steps")
        reporter = EventReporter(send)
        photos = FileImages(start["root"], start["names"])
        send({"event": "status", "status": "reading photos", "progress": 0.0})
        images, features = extract(photos, self.settings, reporter)
        position = {name: i for i, name in enumerate(photos.names)}
        self.rows = np.array([position[name] for name in images.names])
        self.place = np.full(len(photos), -1)
        self.place[self.rows] = np.arange(len(self.rows))
        unreadable = np.flatnonzero(self.place < 0).tolist()
        self.pool = Pool.of(features)
        send({"event": "ready", "unreadable": unreadable})

    def labels(self, message: Mapping[str, Any]) -> tuple[Array, list[str]]:
        """Return the labels of the photos that can be read, and the classes that have one."""
        given = {int(row): name for row, name in message["labels"].items() if self.place[int(row)] >= 0}
        classes = sorted(set(given.values()))
        number = {name: k for k, name in enumerate(classes)}
        labels = np.full(len(self.rows), UNLABELED)
        for row in message["left_out"]:
            if self.place[row] >= 0:
                labels[self.place[row]] = LEFT_OUT
        for row, name in given.items():
            labels[self.place[row]] = number[name]
        return labels, classes

    def run(self, inbox: Inbox) -> None:
        """Suggest images and train, again and again, until the server ends."""
        while True:
            message = inbox.take()
            labels, classes = self.labels(message)
            if len(classes) < 2:
                self._suggest(labels, classes, None)
                self.send({"event": "status", "status": "label images of two classes to start training"})
                return_freed_memory()  # of the preparation
                continue
            try:
                self._round(labels, classes)
            except UserError as error:
                self.send({"event": "status", "status": f"training failed: {error}"})
            return_freed_memory()

    def _suggest(self, labels: Array, classes: list[str], answers: Answers | None) -> None:
        first = FIRST if len(classes) < 2 else 0  # a pile in 200 parts says little about its largest kinds
        chosen = choose(self.pool, labels, first, seed=self.seed)
        others = labels.copy()
        others[[choice.row for choice in chosen]] = LEFT_OUT
        chosen += choose(self.pool, others, SUGGESTED - len(chosen), classes=classes, answers=answers, seed=self.seed)
        entries = [
            {
                "row": int(self.rows[choice.row]),
                "kind": choice.kind,
                "why": choice.why,
                "same": self.rows[choice.same].tolist() if choice.same else [],
            }
            for choice in chosen
        ]
        self.send({"event": "suggestions", "suggestions": entries})

    def _round(self, labels: Array, classes: list[str]) -> None:
        from selftrain.web.label.rounds import estimate_accuracy, train_round, weakest_classes  # takes seconds to load

        begun = time.monotonic()
        count = int((labels >= 0).sum())
        self.send({"event": "status", "status": f"training on {count} labels", "progress": 0.0})
        quick = quick_answers(self.pool, labels, len(classes))
        self._suggest(labels, classes, quick)
        return_freed_memory()
        answers = train_round(self.pool, labels, classes, quick, self.seed, self.steps, EventReporter(self.send))
        estimate, per_class = estimate_accuracy(self.pool, labels, answers.p)
        self._suggest(labels, classes, answers)
        everywhere = np.zeros((2, len(self.place)))
        everywhere[0, self.rows] = answers.p.argmax(axis=1)
        everywhere[1, self.rows] = answers.p.max(axis=1)
        self.send(
            {
                "event": "round",
                "labels": count,
                "seconds": round(time.monotonic() - begun, 2),
                "classes": classes,
                "guesses": everywhere[0].astype(int).tolist(),
                "confidence": np.round(everywhere[1], 3).tolist(),
                "estimate": estimate,
                "weakest": weakest_classes(classes, labels, per_class),
            }
        )
        self.send({"event": "status", "status": f"up to date with {count} labels"})


def main() -> None:
    """Read the first message, which says what to work on; then serve."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print must not mix with messages
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            out.write(json.dumps(message) + "\n")
            out.flush()

    lines = os.fdopen(os.dup(0), encoding="utf-8")
    start = json.loads(lines.readline())
    inbox = Inbox(lines)
    try:
        Worker(start, send).run(inbox)
    except (UserError, MemoryError) as error:
        send({"event": "error", "error": str(error) or "not enough memory"})
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
