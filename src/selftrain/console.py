"""What a person sees while a run goes on: lines, warnings, progress with the time left. The lines go to a log, too.

Knows nothing of training: it is told numbers and words.
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

from selftrain.text import duration


class Speed(ProgressColumn):
    """Steps (or images) a second."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {self.unit}/s", style="progress.data.speed")


class LastingConsole(Console):
    """Goes quiet where nobody reads any more (``... | head``), instead of ending the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError), open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), self.file.fileno())  # for what is left in buffers, and for others who write there


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
        if self.translate is not None:
            text = self.translate(text)
        text = text.encode("utf-8", "replace").decode()  # file names need not be UTF-8
        self.console.print(text, style=style, markup=False, soft_wrap=True)
        stamp = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        self._early.append(f"{stamp} {text}\n")
        if self.log is not None:
            with suppress(OSError), self.log.open("a", encoding="utf-8") as log:  # a lost line is to end no run
                log.writelines(self._early)
            self._early.clear()

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    @contextmanager
    def progress(
        self, description: str, total: int, unit: str, start: int = 0, *, kept: str = ""
    ) -> Iterator[Steps | Lines]:
        """A progress bar with the time left; ``Steps.note`` changes the words at its end. Where nobody watches, a line
        a minute. ``kept``: what Ctrl-C leaves, to be said then."""
        try:
            with self._bar(description, total, unit, start) as bar:
                yield bar
        except KeyboardInterrupt:
            if kept:
                self.say(f"stopped while {description}; {kept}")
            raise

    @contextmanager
    def _bar(self, description: str, total: int, unit: str, start: int) -> Iterator[Steps | Lines]:
        if not self.console.is_terminal:
            yield Lines(self, description, total, unit, start)
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
            yield Steps(bar, task)


class Lines:
    """Progress in a file or a pipe: a line a minute, with the time left."""

    EVERY = 60.0  # seconds

    def __init__(self, reporter: Reporter, description: str, total: int, unit: str, start: int):
        self._reporter, self._what, self._total, self._unit = reporter, description, total, unit
        self._first = time.monotonic(), start
        self._said = self._first[0]

    def reach(self, done: int, total: int | None = None) -> None:
        now, (then, start) = time.monotonic(), self._first
        self._total = total or self._total
        if now - self._said >= self.EVERY and start < done < self._total:
            self._said = now
            left = (self._total - done) * (now - then) / (done - start)
            self._reporter.say(f"{self._what}: {done:,} of {self._total:,} {self._unit}, {duration(left)} left")

    def note(self, text: str) -> None:
        """Words that lines have no room for."""


class Steps:
    """A running progress bar."""

    def __init__(self, bar: Progress, task: int):
        self._bar, self._task = bar, task

    def reach(self, done: int, total: int | None = None) -> None:
        self._bar.update(self._task, completed=done, total=total)  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        self._bar.update(self._task, note=text)  # type: ignore[arg-type]
