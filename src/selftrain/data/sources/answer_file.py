"""A label file that grows answer by answer: each change is on disk, completely, before it is confirmed.

The file is the only truth: if somebody else changes it, it is read again before anything is written. Rows of unknown
images and columns of the user stay as they are. Knows nothing of pages, models or suggestions.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from selftrain.data.cache_folder import cache_root
from selftrain.data.sources.label_file import NONE, SKIP, Row, check_alike, read_answers
from selftrain.errors import UserError
from selftrain.files import replacing, sweep_parts

HEADER = ("path", "label")
Stamp = tuple[int, int, int]


class Answer(NamedTuple):
    """What somebody said about an image: its class, or that it has none, or that they cannot tell."""

    label: str = ""
    other: str = ""
    """``none`` or ``skip`` if there is no label"""

    @property
    def text(self) -> str:
        return self.label or {NONE: "none of these", SKIP: "skipped"}[self.other]


class AnswerFile:
    """Answers by the names of images, in the order in which they were given.

    Parameters
    ----------
    path
        The CSV file; it need not exist yet.
    find
        The name of the image that the path in a row refers to; None if there is no such image.
    """

    def __init__(self, path: Path, find: Callable[[str], str | None]):
        self.path, self._find = path, find
        self.answers: dict[str, Answer] = {}
        self._cells: dict[str, list[str]] = {}
        """the row of each image, or of each path that is no image"""
        self._header: list[str] = list(HEADER)
        self._stamp: Stamp | None = None
        self._swept = False
        """whether what a killed session was writing has been deleted"""
        digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
        self._lock = cache_root() / "locks" / f"{digest[:24]}.lock"

    def refresh(self) -> set[str]:
        """Read the file again if it has changed on disk; return the images whose answers differ from before."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return set()
        before = dict(self.answers)
        header, cells, answers = self._read() if stamp is not None else (list(HEADER), {}, {})
        self._header, self._cells, self.answers, self._stamp = header, cells, answers, stamp
        names = before.keys() | answers.keys()
        return {name for name in names if before.get(name) != answers.get(name)}

    def change(self, changes: Mapping[str, Answer | None]) -> tuple[dict[str, Answer | None], set[str]]:
        """Write answers, or remove those that are None; return the former ones, and images that others changed."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._lock, timeout=30):
            others = self.refresh()
            if not self._swept:
                sweep_parts(self.path.resolve().parent, self.path.resolve().name)
                self._swept = True
            before = {name: self.answers.get(name) for name in changes}
            header, cells, answers = list(self._header), dict(self._cells), dict(self.answers)
            for name, answer in changes.items():
                row = cells.pop(name, None)
                answers.pop(name, None)
                if answer is not None:
                    cells[name] = _filled(header, row, name, answer)
                    answers[name] = answer
            self._write(header, cells)
            self._header, self._cells, self.answers = header, cells, answers
            self._stamp = self._stamp_now()
        return before, others

    def _stamp_now(self) -> Stamp | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror}).") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[list[str], dict[str, list[str]], dict[str, Answer]]:
        if not self.path.stat().st_size:
            return list(HEADER), {}, {}
        rows = read_answers(self.path)
        check_alike([row for row in rows if not row.answer], self.path)
        by_line = {row.line: row for row in rows}
        cells: dict[str, list[str]] = {}
        answers: dict[str, Answer] = {}
        line_of: dict[str, int] = {}
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = next(reader)
            for values in reader:
                row = by_line.get(reader.line_num)
                if row is None:
                    continue
                name = self._find(row.path)
                key = name if name is not None else row.path
                if key in line_of:
                    raise UserError(
                        f"{self.path}, line {row.line}: {key!r} already has a row, line {line_of[key]}; remove one of "
                        "them."
                    )
                line_of[key] = row.line
                cells[key] = values
                if name is not None:
                    answers[name] = _answer_of(row)
        return header, cells, answers

    def _write(self, header: list[str], cells: Mapping[str, list[str]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(cells.values())
        with replacing(self.path) as temporary:
            temporary.write_bytes(text.getvalue().encode("utf-8", "surrogateescape"))


def _answer_of(row: Row) -> Answer:
    return Answer(row.label, row.answer)


def _filled(header: list[str], row: list[str] | None, name: str, answer: Answer) -> list[str]:
    """Return the row of an image with another answer; the header gets a column for answers if it needs one."""
    lower = [cell.strip().lower() for cell in header]
    if answer.other and "answer" not in lower:
        header.append("answer")
        lower.append("answer")
    cells = [*(row or []), *[""] * (len(header) - len(row or []))]
    if row is None:
        cells[lower.index("path")] = name
    cells[lower.index("label")] = answer.label
    if "answer" in lower:
        cells[lower.index("answer")] = answer.other
    return cells
