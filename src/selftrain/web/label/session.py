"""The state of a labeling session: photos, classes, answers, suggestions and the model's guesses.

The label file is the only truth about answers; everything else can be computed again. Knows nothing of requests, nor of
how suggestions and guesses are made.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selftrain.data.images import FileImages
from selftrain.data.sources.answer_file import Answer, AnswerFile
from selftrain.data.sources.class_names import composed, without_case
from selftrain.data.sources.label_file import NONE, SKIP, RowPaths
from selftrain.errors import UserError

LONGEST_NAME = 100
MOST_CLASSES = 10_000
OTHER = {"none": NONE, "skip": SKIP}
Step = dict[str, tuple[Answer | None, Answer | None]]
"""answers before and after one change, by image"""


@dataclass(frozen=True)
class Round:
    """What one round of training found out."""

    labels: int
    seconds: float
    estimate: Mapping[str, Any] | None
    """accuracy with low and high, as shares, and how it was found; None if there are too few labels"""
    weakest: Sequence[str] = ()
    model: str = ""


@dataclass
class Found:
    """The newest results of the process that trains."""

    suggestions: list[dict[str, Any]] = field(default_factory=list)
    """row, kind, why, same: the most useful first"""
    classes: list[str] = field(default_factory=list)
    """the classes that guesses refer to"""
    guesses: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    status: str = "starting"
    progress: float | None = None
    error: str | None = None


class Session:
    """Photos with their answers. All methods may be called from several threads."""

    def __init__(self, photos: FileImages, labels: Path, classes: Sequence[str] = ()):
        self.photos = photos
        self.position = {name: i for i, name in enumerate(photos.names)}
        self.found = Found()
        self.lock = threading.RLock()
        self._paths = RowPaths(Path(photos.root), labels.absolute().parent, self.position, ())
        self.file = AnswerFile(labels, self._name_of)
        self._classes: OrderedDict[str, None] = OrderedDict()
        self._history: list[Step] = []
        self._log: list[int] = []
        """photos whose answers changed, in order; its length is the version"""
        for name in classes:
            self.add_class(name)
        self.refresh()
        self._history = [{name: (None, answer)} for name, answer in self.file.answers.items()]

    def _name_of(self, path: str) -> str | None:
        try:
            return self.photos.names[self._paths.find(path)]
        except UserError:
            return None

    @property
    def version(self) -> int:
        return len(self._log)

    @property
    def answers(self) -> Mapping[str, Answer]:
        return self.file.answers

    @property
    def classes(self) -> list[str]:
        """The classes, in the order in which they were given or first used."""
        with self.lock:
            return list(self._classes)

    def refresh(self) -> None:
        """Read the label file again if somebody else has changed it."""
        with self.lock:
            self._note(self.file.refresh())

    def _note(self, changed: set[str]) -> None:
        self._log += [self.position[name] for name in changed]
        for answer in self.file.answers.values():
            if answer.label:
                self._classes.setdefault(answer.label)
        if changed:  # an undo must not bring back what somebody else has changed
            self._history = [step for step in self._history if not changed & step.keys()]

    def add_class(self, name: str) -> str:
        """Add a class and return its name; a name that differs from a known one only in case or spaces is that one."""
        name = composed(" ".join(str(name).split()))
        if not name or name == "-1" or len(name) > LONGEST_NAME or not name.isprintable():
            raise UserError(f"class {name[:40]!r}: expected a name of 1 to {LONGEST_NAME} printable characters.")
        if name != name.encode("utf-8", "replace").decode():
            raise UserError(f"class {name!r}: not valid UTF-8.")
        with self.lock:
            for known in self._classes:
                if without_case(known) == without_case(name):
                    return known
            if len(self._classes) >= MOST_CLASSES:
                raise UserError(f"class {name!r}: there are {MOST_CLASSES:,} classes already.")
            self._classes[name] = None
            return name

    def answer(self, given: Mapping[int, str | None], kind: str = "label") -> int:
        """Write answers and return how many there are: labels by photo, or ``none``, ``skip`` or ``clear`` for all."""
        if kind not in ("label", "none", "skip", "clear"):
            raise UserError(f"answer {kind!r}: expected label, none, skip or clear.")
        changes: dict[str, Answer | None] = {}
        for row, label in given.items():
            if not 0 <= row < len(self.photos):
                raise UserError(f"photo {row}: there are {len(self.photos)} photos, from 0.")
            if kind == "label" and label is None:
                raise UserError(f"photo {row}: a label is missing.")
            answer: Answer | None = None
            if kind == "label":
                answer = Answer(self.add_class(str(label)))
            elif kind != "clear":
                answer = Answer(other=OTHER[kind])
            changes[self.photos.names[row]] = answer
        with self.lock:
            self._change(changes)
        return len(changes)

    def _change(self, changes: Mapping[str, Answer | None]) -> None:
        before, others = self.file.change(changes)
        self._note(others)
        self._history.append({name: (before[name], answer) for name, answer in changes.items()})
        self._log += [self.position[name] for name in changes]

    def undo(self) -> list[int]:
        """Take back the last change and return its photos; nothing if there is none."""
        with self.lock:
            self.refresh()
            if not self._history:
                return []
            step = self._history[-1]
            self.file.change({name: before for name, (before, _) in step.items()})
            self._history.pop()
            rows = [self.position[name] for name in step]
            self._log += rows
            return rows

    def changes_since(self, version: int) -> list[int]:
        """Return the photos whose answers have changed since a version."""
        with self.lock:
            return sorted(set(self._log[max(0, version) :])) if version <= len(self._log) else []

    def item(self, row: int, why: str = "", same: Sequence[int] = ()) -> dict[str, Any]:
        """Return a photo as the page shows it."""
        answer = self.answers.get(self.photos.names[row])
        found = self.found
        guess = found.classes[found.guesses[row]] if row < len(found.guesses) else None
        return {
            "id": row,
            "name": self.photos.names[row].encode("utf-8", "replace").decode(),
            "why": why,
            "same": list(same),
            "guess": guess,
            "confidence": found.confidence[row] if guess is not None else None,
            "label": answer.label if answer and answer.label else None,
            "answer": None if answer is None else answer.other or "label",
        }

    def next_items(self, count: int, without: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Return photos to label next, the most useful first; without suggestions, in the order of their names."""
        with self.lock:
            found, out = self.found, set(without)
            chosen: OrderedDict[int, dict[str, Any]] = OrderedDict()

            def free(row: int) -> bool:
                unseen = row not in out and row not in chosen and row not in found.unreadable
                return unseen and self.photos.names[row] not in self.answers

            for entry in found.suggestions:
                if len(chosen) == count:
                    break
                if free(entry["row"]):
                    same = [row for row in entry["same"] if self.photos.names[row] not in self.answers]
                    chosen[entry["row"]] = self.item(entry["row"], entry["why"], same)
            ready = bool(found.suggestions) or found.error is not None
            for row in range(len(self.photos)) if ready else ():
                if len(chosen) == count:
                    break
                if free(row):
                    chosen[row] = self.item(row)
            return list(chosen.values())

    def guessed(self, label: str, count: int, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return unanswered photos that the model takes for a class, the surest first, and how many there are."""
        with self.lock:
            found = self.found
            if label not in found.classes:
                return [], 0
            k = found.classes.index(label)
            names = self.photos.names
            rows = [r for r, guess in enumerate(found.guesses) if guess == k and names[r] not in self.answers]
            rows.sort(key=lambda r: -found.confidence[r])
            return [self.item(row) for row in rows[offset : offset + count]], len(rows)

    def labeled(self, label: str, count: int, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return photos with a label, the newest first, and how many there are."""
        with self.lock:
            names = [name for name, answer in self.answers.items() if answer.label == label][::-1]
            return [self.item(self.position[name]) for name in names[offset : offset + count]], len(names)

    def summary(self) -> dict[str, Any]:
        """Return the counts and the newest results, for the page."""
        with self.lock:
            found = self.found
            counts = Counter(answer.label for answer in self.answers.values() if answer.label)
            others = Counter(answer.other for answer in self.answers.values() if answer.other)
            guessed: Counter[int] = Counter()
            if found.guesses:
                guessed.update(found.guesses)
                for name in self.answers:
                    guessed[found.guesses[self.position[name]]] -= 1
            number = {name: k for k, name in enumerate(found.classes)}
            return {
                "version": self.version,
                "photos": len(self.photos),
                "unreadable": len(found.unreadable),
                "labeled": sum(counts.values()),
                "none": others[NONE],
                "skipped": others[SKIP],
                "classes": [
                    {"name": name, "labels": counts[name], "guesses": guessed[number[name]] if name in number else 0}
                    for name in self._classes
                ],
                "can_undo": bool(self._history),
                "status": found.status,
                "progress": found.progress,
                "error": found.error,
                "ready": bool(found.suggestions) or found.error is not None,
                "rounds": [vars(one) for one in found.rounds[-200:]],
            }

    def labels(self) -> dict[int, str]:
        """Return the label of each labeled photo."""
        with self.lock:
            return {self.position[name]: answer.label for name, answer in self.answers.items() if answer.label}

    def left_out(self) -> list[int]:
        """Return the photos with another answer than a label."""
        with self.lock:
            return [self.position[name] for name, answer in self.answers.items() if answer.other]
