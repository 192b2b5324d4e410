"""Repeat one line of a bench's CSV file in a temporary folder, and compare the results.

Knows nothing of tables.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.bench.cells import Cell, run_cell
from selftrain.bench.spec import Row
from selftrain.bench.table import HASHES, MEASURES
from selftrain.errors import UserError

Line = Mapping[str, str]
Differences = dict[str, tuple[str, str]]
"""values that differ, by name: then and now"""
WITHOUT_EFFECT = ("cores",)
"""entries of the environment that do not change results"""


@dataclass(frozen=True)
class Verdict:
    """How a repeated run compares with the line of the CSV file."""

    cell: Cell
    environment: Differences
    """versions and machine"""
    hashes: Differences
    """if a hash differs, the repeated run was a different one"""
    measures: Differences
    """measures that are not equal to the last bit"""
    tolerance: float

    @property
    def exact(self) -> bool:
        """Whether every bit has to be the same: same versions, same machine."""
        return not self.environment

    @property
    def equal(self) -> bool:
        return not self.hashes and not self.measures

    @property
    def good(self) -> bool:
        if self.hashes or self.exact:
            return self.equal
        return all(_distance(*pair) <= self.tolerance for pair in self.measures.values())

    def __str__(self) -> str:
        lines = [f"{self.cell}:"]
        for name, (then, now) in {**self.environment, **self.hashes, **self.measures}.items():
            lines.append(f"  {name} was {then or 'unknown'}, is {now or 'unknown'}")
        return "\n".join([*lines, f"  {self._summary()}"])

    def _summary(self) -> str:
        if self.equal:
            return "equal, bit for bit"
        if self.hashes:
            return "a different run: the data, the settings or their defaults have changed since"
        if self.exact:
            return "MISMATCH: versions and machine are the same, so every bit should be the same"
        largest = max(_distance(*pair) for pair in self.measures.values())
        within = "within" if self.good else "MISMATCH: beyond"
        return f"{within} the tolerance: {largest:.4f} apart, {self.tolerance:g} allowed"


def _distance(then: str, now: str) -> float:
    """Return how far apart two shares are; for measures without a bound, relative to the larger one."""
    try:
        a, b = float(then), float(now)
    except ValueError:
        return 1.0
    return 0.0 if a == b else abs(a - b) / max(1.0, abs(a), abs(b))


def read_lines(file: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file that ``selftrain bench`` wrote."""
    try:
        with file.open(encoding="utf-8", newline="") as text:
            lines = list(csv.DictReader(text))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"`verify` {file}: cannot be read ({error}).") from None
    needed = {"row", "variant", "dataset", "seed", "settings", *MEASURES, *HASHES}
    if not lines or not needed <= set(lines[0]):
        raise UserError(f"`verify` {file}: not the CSV file of a bench, or a file without lines.")
    return lines


def choose(lines: list[dict[str, str]], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """Return a random line among those with the wanted row, dataset, variant and seed."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    matching = [line for line in lines if all(line[name] == value for name, value in asked.items())]
    if not matching:
        known = {name: ", ".join(sorted({line[name] for line in lines})) for name in asked}
        words = "; ".join(f"`{name}` {value} (known: {known[name]})" for name, value in asked.items())
        raise UserError(f"`verify`: no line has {words}.")
    return random.choice(matching)


def cell_of(line: Line) -> Cell:
    """Return the cell that wrote a line."""
    try:
        settings: dict[str, Any] = json.loads(line["settings"])
        row = Row(settings.pop("method"), label=line["row"])
        return Cell(row, line["dataset"], int(line["seed"]), settings, line["variant"])
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"`verify`: the line of {line.get('row')} is damaged ({error}).") from None


def verify(line: Line, root: Path | None, tolerance: float) -> Verdict:
    """Run the line's cell in a temporary folder and compare."""
    cell = cell_of(line)
    with tempfile.TemporaryDirectory(prefix="selftrain-verify-") as folder:
        results = run_cell(cell, root, Path(folder))
    environment = results["environment"]
    other = _differences(line, [name for name in environment if name not in WITHOUT_EFFECT], environment)
    if environment["device"] != "cpu" and "device" not in other:
        note = f"{environment['device']}, which may add numbers in another order each time"
        other["device"] = (line.get("device") or "", note)
    return Verdict(cell, other, _differences(line, HASHES, results), _differences(line, MEASURES, results), tolerance)


def _differences(line: Line, names: Iterable[str], values: Mapping[str, Any]) -> Differences:
    now = {name: "" if values.get(name) is None else str(values[name]) for name in names}
    return {name: (line.get(name) or "", now[name]) for name in now if now[name] != (line.get(name) or "")}
