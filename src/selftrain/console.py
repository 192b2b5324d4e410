"""Lines, warnings and progress with the time left, on the terminal and in a log.

Knows nothing of training; it is given numbers and words.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from selftrain.regular_files import append_bytes
from selftrain.text import duration, printable


class Speed(ProgressColumn):
    """The column with steps, images or other units per second."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {self.unit}/s", style="progress.data.speed")


class LastingConsole(Console):
    """A console that goes quiet when its pipe is closed (``... | head``), instead of ending the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError), open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), self.file.fileno())  # for text still in buffers, and for other writers


class Reporter:
    """Print lines on standard error and, once there is a run folder, write them to its log.

    Parameters
    ----------
    quiet
        Write to the log only.
    translate
        Applied to every line: the command line turns names of Python arguments into options.
    """

    def __init__(self, quiet: bool = False, translate: Callable[[str], str] | None = None):
        self.console = LastingConsole(stderr=True, quiet=quiet, highlight=False)
        self.translate = translate
        self.log: Path | None = None
        self._early: list[str] = []

    def say(self, text: str, style: str = "") -> None:
        """Print a line; lines from before there was a log are added to it with the next one."""
        if self.translate is not None:
            text = self.translate(text)
        text = printable(text)  # names of files and classes may hold anything
        self.console.print(text, style=style, markup=False, soft_wrap=True)
        stamp = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        self._early.append(f"{stamp} {text}\n")
        if self.log is not None:
            with suppress(OSError):  # a lost line must not end a run
                append_bytes(self.log, "".join(self._early).encode())
            self._early.clear()

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    @contextmanager
    def progress(
        self, description: str, total: int, unit: str, start: int = 0, *, kept: str = ""
    ) -> Iterator[ProgressBar | ProgressLines]:
        """Show progress with the time left: a bar on a terminal, one line per minute elsewhere.

        ``kept`` is printed after Ctrl-C, to say what is not lost.
        """
        try:
            with self._bar(description, total, unit, start) as bar:
                yield bar
        except KeyboardInterrupt:
            if kept:
                self.say(f"stopped while {description}; {kept}")
            raise

    @contextmanager
    def _bar(self, description: str, total: int, unit: str, start: int) -> Iterator[ProgressBar | ProgressLines]:
        if not self.console.is_terminal:
            yield ProgressLines(self, description, total, unit, start)
            return
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Speed(unit),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            refresh_per_second=4,
        ) as bar:
            task = bar.add_task(description, total=total, completed=start, note="")
            yield ProgressBar(bar, task)


class ProgressLines:
    """Progress in a file or a pipe: one line per minute, with the time left."""

    INTERVAL = 60.0
    """seconds between lines"""

    def __init__(self, reporter: Reporter, description: str, total: int, unit: str, start: int):
        self._reporter, self._what, self._total, self._unit = reporter, description, total, unit
        self._first = time.monotonic(), start
        self._said = self._first[0]

    def reach(self, done: int, total: int | None = None) -> None:
        """Report how much is done, and a new total if it has changed."""
        now, (then, start) = time.monotonic(), self._first
        self._total = total or self._total
        if now - self._said >= self.INTERVAL and start < done < self._total:
            self._said = now
            left = (self._total - done) * (now - then) / (done - start)
            self._reporter.say(f"{self._what}: {done:,} of {self._total:,} {self._unit}, {duration(left)} left")

    def note(self, text: str) -> None:
        """Ignore the note: it changes too often for lines."""


class ProgressBar:
    """Progress as a bar on a terminal."""

    def __init__(self, bar: Progress, task: int):
        self._bar, self._task = bar, task

    def reach(self, done: int, total: int | None = None) -> None:
        """Report how much is done, and a new total if it has changed."""
        self._bar.update(self._task, completed=done, total=total)  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        """Change the words at the end of the bar."""
        self._bar.update(self._task, note=text)  # type: ignore[arg-type]
