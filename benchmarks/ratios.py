"""Ratios of times that are reliable on a busy machine: competitors take turns, and pairs of turns are compared.

Knows nothing of what is timed.

Each round gives every competitor one turn, in a new random order, so that no competitor always follows the same other
one. The first rounds are a warm-up and are discarded. The ratio of two competitors is the median over rounds of their
ratio within a round, because a slow minute of the machine slows both. The spread is the quartiles of those ratios.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch


@dataclass
class Row:
    """A line of the table. ``ratio`` is a cost (at most the bar) or a gain (at least the bar)."""

    name: str
    ratio: float
    bar: float | None = None
    median_ms: float | None = None
    spread: tuple[float, float] | None = None
    kind: str = "cost"
    """cost, gain, or an amount with a unit of its own: ms, s, GB, %"""

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        return bool(self.ratio >= self.bar if self.kind == "gain" else self.ratio <= self.bar)

    def as_json(self) -> dict[str, Any]:
        values = {"name": self.name, "ratio": self.ratio, "bar": self.bar, "holds": self.holds}
        return {**values, **{key: value for key, value in asdict(self).items() if key not in values}}

    def as_text(self) -> str:
        unit = {"cost": "", "gain": "x"}.get(self.kind, f" {self.kind}")
        bar = "" if self.bar is None else f"{'>=' if self.kind == 'gain' else '<='} {self.bar:g}{unit}"
        spread = "" if self.spread is None else f"{self.spread[0]:.2f} to {self.spread[1]:.2f}"
        took = "" if self.median_ms is None else f"{self.median_ms:,.2f}"
        verdict = {None: "", True: "holds", False: "FAILS"}[self.holds]
        return f"{self.name:66} {f'{self.ratio:.2f}{unit}':>10} {spread:>16} {bar:>9} {verdict:6} {took:>11}"

    def as_markdown(self) -> str:
        unit = {"cost": "", "gain": " x"}.get(self.kind, f" {self.kind}")
        bar = "" if self.bar is None else f"at {'least' if self.kind == 'gain' else 'most'} {self.bar:g}{unit}"
        bar += ", **missed**" if self.holds is False else ""
        spread = "" if self.spread is None else f"{self.spread[0]:.2f} to {self.spread[1]:.2f}"
        return f"| {self.name} | {self.ratio:.2f}{unit} | {spread} | {bar} |"


HEADING = f"{'':66} {'ratio':>10} {'quartiles':>16} {'bar':>9} {'':6} {'median ms':>11}"


@dataclass
class Clock:
    """Wall time on all cores, or the CPU time of this process on one thread, which other programs disturb less."""

    cpu: bool = False
    quick: bool = False

    def now(self) -> float:
        return time.process_time() if self.cpu else time.perf_counter()

    def rounds(self, usual: int, quick: int | None = None) -> int:
        return (quick or max(3, usual // 4)) if self.quick else usual


CLOCK = Clock()


class Times:
    """Seconds of each turn of each competitor, (rounds,) by name."""

    def __init__(self, seconds: Mapping[str, np.ndarray]):
        self.seconds = dict(seconds)

    def cost(self, name: str, ours: str, floor: str, bar: float | None = None) -> Row:
        """Return how many times as long ours takes as its floor."""
        return self._row(name, self.seconds[ours] / self.seconds[floor], ours, bar, "cost")

    def gain(self, name: str, ours: str, reference: str, bar: float | None = None) -> Row:
        """Return how many times faster ours is than the reference."""
        return self._row(name, self.seconds[reference] / self.seconds[ours], ours, bar, "gain")

    def amount(self, name: str, ours: str, bar: float | None = None) -> Row:
        """Return the time of ours in milliseconds."""
        return self._row(name, 1e3 * self.seconds[ours], ours, bar, "ms")

    def _row(self, name: str, values: np.ndarray, ours: str, bar: float | None, kind: str) -> Row:
        low, middle, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
        return Row(name, middle, bar, float(np.median(self.seconds[ours]) * 1e3), (low, high), kind)


class Apart:
    """Work in a separate process, like that of other programs: without our advice to the memory allocator."""

    def __init__(self, make: Callable[[], Callable[[], object]]):
        """``make`` is called in that process and returns the work to be timed."""
        processes = multiprocessing.get_context("spawn")
        self.line, theirs = processes.Pipe()
        threads = 1 if CLOCK.cpu else torch.get_num_threads()
        self.process = processes.Process(target=_serve, args=(theirs, make, threads, CLOCK), daemon=True)
        self.process.start()
        theirs.close()  # so that recv fails when the process dies

    def seconds(self, repeat: int) -> float:
        self.line.send(repeat)
        took: float = self.line.recv()
        return took

    def close(self) -> None:
        self.process.terminate()
        self.process.join()


Work: TypeAlias = "Callable[[], object] | Apart"


def _serve(line: Connection, make: Callable[[], Callable[[], object]], threads: int, clock: Clock) -> None:
    torch.set_num_threads(threads)
    work = make()
    gc.collect()
    gc.disable()
    while True:
        line.send(_time(work, line.recv(), clock))
        gc.collect()


def _time(work: Callable[[], object], repeat: int, clock: Clock) -> float:
    started = clock.now()
    for _ in range(repeat):
        work()
    return clock.now() - started


def take_turns(
    work: Mapping[str, Work],
    rounds: int,
    *,
    warm_up: int = 1,
    repeat: int = 1,
    threads: int | None = None,
) -> Times:
    """Time each piece of work once per round; a turn is ``repeat`` calls."""
    names, seconds = list(work), {name: np.empty(rounds) for name in work}
    before = torch.get_num_threads()
    torch.set_num_threads(threads or (1 if CLOCK.cpu else before))
    gc.collect()
    gc.disable()  # a collection would be charged to whoever's turn it is
    try:
        for number in range(-warm_up, rounds):
            for name in random.Random(number).sample(names, len(names)):
                one = work[name]
                took = one.seconds(repeat) if isinstance(one, Apart) else _time(one, repeat, CLOCK)
                if number >= 0:
                    seconds[name][number] = took / repeat
            gc.collect()
    finally:
        for one in work.values():
            if isinstance(one, Apart):
                one.close()
        gc.enable()
        torch.set_num_threads(before)
    return Times(seconds)
