"""A line of a bench's CSV file, run once more in a fresh folder and compared.

Knows nothing of tables.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.bench.grid import Cell, run_cell
from selftrain.bench.spec import Row
from selftrain.bench.table import FIGURES, HASHES
from selftrain.errors import UserError

Line = Mapping[str, str]
# Of the environment, what has no say in the figures.
INDIFFERENT = ("cores",)


@dataclass(frozen=True)
class Verdict:
    cell: Cell
    elsewhere: dict[str, tuple[str, str]]
    """what of versions and machine differs, then and now"""
    hashes: dict[str, tuple[str, str]]
    """hashes that differ: it was not the same run that was repeated"""
    figures: dict[str, tuple[str, str]]
    """figures that are not equal to the last bit"""
    tolerance: float

    @property
    def exact(self) -> bool:
        """Whether every bit has to be the same."""
        return not self.elsewhere

    @property
    def equal(self) -> bool:
        return not self.hashes and not self.figures

    @property
    def good(self) -> bool:
        if self.hashes or self.exact:
            return self.equal
        return all(_apart(*pair) <= self.tolerance for pair in self.figures.values())

    def __str__(self) -> str:
        lines = [f"{self.cell}:"]
        lines += [f"  {name} was {then or 'unknown'}, is {now or 'unknown'}" for name, (then, now) in self._all()]
        if self.equal:
            lines.append("  equal, bit for bit")
        elif self.hashes:
            lines.append("  not the same run: data, settings or their defaults have changed since")
        elif self.exact:
            lines.append("  MISMATCH: versions and machine are the same, so that every bit should be")
        else:
            largest = max(_apart(*pair) for pair in self.figures.values())
            within = "within" if self.good else "MISMATCH: beyond"
            lines.append(f"  {within} the tolerance: {largest:.4f} apart, {self.tolerance:g} allowed")
        return "\n".join(lines)

    def _all(self) -> list[tuple[str, tuple[str, str]]]:
        return [*self.elsewhere.items(), *self.hashes.items(), *self.figures.items()]


def _apart(then: str, now: str) -> float:
    """How far apart two shares are; measures without a bound count by their ratio."""
    try:
        a, b = float(then), float(now)
    except ValueError:
        return 1.0
    return 0.0 if a == b else abs(a - b) / max(1.0, abs(a), abs(b))


def read_lines(file: Path) -> list[dict[str, str]]:
    """The lines of a CSV file that ``selftrain bench`` wrote."""
    try:
        with file.open(encoding="utf-8", newline="") as text:
            lines = list(csv.DictReader(text))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"--verify {file}: cannot be read ({error}).") from None
    needed = {"row", "variant", "dataset", "seed", "settings", *FIGURES, *HASHES}
    if not lines or not needed <= set(lines[0]):
        raise UserError(f"--verify {file}: not the CSV file of a bench, or one without a line.")
    return lines


def choose(lines: list[dict[str, str]], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """A line at random among those with the wanted row, dataset, variant and seed."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    fitting = [line for line in lines if all(line[name] == value for name, value in asked.items())]
    if not fitting:
        known = {name: ", ".join(sorted({line[name] for line in lines})) for name in asked}
        said = "; ".join(f"--{name} {value} (there are: {known[name]})" for name, value in asked.items())
        raise UserError(f"--verify: no line has {said}.")
    return random.choice(fitting)


def cell_of(line: Line) -> Cell:
    try:
        settings: dict[str, Any] = json.loads(line["settings"])
        row = Row(settings.pop("method"), label=line["row"])
        return Cell(row, line["dataset"], int(line["seed"]), settings, line["variant"])
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"--verify: the line of {line.get('row')} is damaged ({error}).") from None


def verify(line: Line, root: Path | None, tolerance: float) -> Verdict:
    """Run the line's cell in a folder that is gone afterwards, and compare."""
    cell = cell_of(line)
    with tempfile.TemporaryDirectory(prefix="selftrain-verify-") as folder:
        again = run_cell(cell, root, Path(folder))

    def differing(names: Any, values: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        now = {name: "" if values.get(name) is None else str(values[name]) for name in names}
        return {name: (line.get(name) or "", now[name]) for name in now if now[name] != (line.get(name) or "")}

    environment = again["environment"]
    elsewhere = differing([name for name in environment if name not in INDIFFERENT], environment)
    if environment["device"] != "cpu" and "device" not in elsewhere:
        elsewhere["device"] = (
            line.get("device") or "",
            f"{environment['device']}, which need not add in the same order twice",
        )
    return Verdict(cell, elsewhere, differing(HASHES, again), differing(FIGURES, again), tolerance)
