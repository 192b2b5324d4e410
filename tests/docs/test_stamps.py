"""Every table of numbers in README and docs says where it comes from: a command, a revision and a date."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.])")
REVISION = re.compile(r"[Rr]evisions? `?([0-9a-f]{7,40})\b")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
COMMAND = re.compile(r"\b(selftrain [a-z]|python3? -m |python (docs|benchmarks)/|make [a-z]|du -)")


def tables(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the lines of each Markdown table."""
    lines = text.splitlines()
    start = None
    for i, line in enumerate([*lines, ""]):
        if line.startswith("|") and start is None:
            start = i
        elif not line.startswith("|") and start is not None:
            yield start, lines[start:i]
            start = None


def is_of_numbers(table: list[str]) -> bool:
    """Tell whether at least two fifths of the cells to the right of the first column hold a decimal number."""
    cells = [cell for line in table[2:] for cell in line.strip("|").split("|")[1:]]
    return bool(cells) and sum(bool(NUMBER.search(cell)) for cell in cells) >= 0.4 * len(cells)


def section(text: str, line: int) -> str:
    """Return the part of a page between the headings around a line."""
    lines = text.splitlines()
    before = max((i for i in range(line) if re.match(r"#+ ", lines[i])), default=0)
    after = min((i for i in range(line, len(lines)) if re.match(r"#+ ", lines[i])), default=len(lines))
    return "\n".join(lines[before:after])


def fingerprint(table: list[str]) -> str:
    """Return a hash of the numbers of a table, whatever the words and the page around them."""
    return hashlib.sha256(" ".join(NUMBER.findall("\n".join(table[2:]))).encode()).hexdigest()[:12]


def missing(text: str, line: int) -> list[str]:
    """Return what the section of a table does not say."""
    around = section(text, line)
    wanted = {"a revision": REVISION, "a date": DATE, "a command": COMMAND}
    return [what for what, pattern in wanted.items() if not pattern.search(around)]


def register() -> dict[str, dict[str, str]]:
    """Return the stamps of tables that are older than this test."""
    with (ROOT / "docs" / "stamps.csv").open(encoding="utf-8", newline="") as file:
        return {row["table"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_of_numbers_has_a_stamp(page: Path) -> None:
    text, known = page.read_text(encoding="utf-8"), register()
    for line, table in tables(text):
        if is_of_numbers(table) and fingerprint(table) not in known and (lacks := missing(text, line)):
            raise AssertionError(
                f"{page.relative_to(ROOT)}, line {line + 1}: a table of numbers without {' and '.join(lacks)} in its "
                f"section. Write 'revision abc1234, 2026-01-31' and the command beside it."
            )


def test_the_stamps_of_older_tables_are_complete() -> None:
    for row in register().values():
        assert re.fullmatch(r"[0-9a-f]{12}", row["table"])
        assert REVISION.search(f"revision {row['revision']}")
        assert DATE.fullmatch(row["date"])
        assert COMMAND.search(row["command"])


def test_a_table_without_stamp_is_found() -> None:
    bare = "# A page\n\n| | accuracy |\n|---|---|\n| fixmatch | 74.3 |\n"
    ((line, table),) = tables(bare)
    assert is_of_numbers(table)
    assert missing(bare, line) == ["a revision", "a date", "a command"]
    stamped = bare + "\n`selftrain bench cpu/methods`, revision abc1234, 2026-01-31.\n"
    assert missing(stamped, line) == []
    assert missing(stamped.replace("\n`self", "\n## Another section\n\n`self"), line) == missing(bare, line)
    assert not is_of_numbers(
        "| option | default |\n|---|---|\n| `tau` | 0.95 by default |\n| `x` | y |".splitlines()[:2]
    )
