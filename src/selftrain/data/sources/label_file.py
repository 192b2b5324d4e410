"""Layout 3 as a corpus: any tree of images and a CSV file with the columns ``path`` and ``label``.

Knows nothing of the other layouts, except that a ``test/`` folder with class folders is the test set.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from selftrain.data.corpus import Corpus
from selftrain.data.images import SearchNotes, find_images, suffix_list
from selftrain.data.sources.class_names import composed, not_a_class, without_case
from selftrain.data.sources.file_parts import Checker, FilePart, corpus_of_files, prefix_inside, relative_name
from selftrain.data.sources.folders import class_folders, classes_in, no_image
from selftrain.errors import UserError
from selftrain.regular_files import open_regular

NONE, SKIP = "none", "skip"
"""values of the column ``answer``: the image is of no class, or somebody looked at it and could not tell"""


MOST_PROBLEMS = 10
"""problems of a file that are told at once"""


class Problems:
    """What is wrong with a file, line by line, so that all of it can be told in one message."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: list[tuple[int, str]] = []

    def add(self, line: int, text: object) -> None:
        self.found.append((line, str(text)))

    def tell(self) -> None:
        """Raise a UserError if there are any."""
        found = sorted(self.found)
        if len(found) == 1:
            raise UserError(f"{self.file}, line {found[0][0]}: {found[0][1]}")
        if found:
            told = " ".join(f"Line {line}: {text}" for line, text in found[:MOST_PROBLEMS])
            more = f" And {len(found) - MOST_PROBLEMS} more." if len(found) > MOST_PROBLEMS else ""
            raise UserError(f"{self.file}: {len(found)} problems. {told}{more}")


class Row(NamedTuple):
    line: int
    path: str
    label: str
    """empty if there is another answer"""
    answer: str = ""
    """empty for a label, else ``none`` or ``skip``"""


def load_labeled_tree(folder: Path, file: Path, tested: Path | None, checker: Checker) -> Corpus:
    """Return the corpus of a tree with a label file.

    ``tested`` is a folder of class folders or another label file; it replaces the tree's own ``test/`` folder.
    """
    everything = read_answers(file, problems := Problems(file))
    rows = labels_among(everything, file, problems)
    classes = tuple(sorted({row.label for row in rows}))
    check_alike(rows, file, problems)
    names = find_images(folder, notes := SearchNotes())
    if not names:
        raise UserError(no_image(folder))
    test, excluded = _test_part(folder, names, classes, tested)
    excluded |= _of_no_class(everything, folder, file, names)
    pool = [name for name in names if name not in excluded] if excluded else names
    labels = np.full(len(pool), -1, np.int64)
    finder = RowPaths(folder, file.parent, {name: i for i, name in enumerate(pool)}, excluded)
    for i, k in classes_by_position(rows, file, finder, pool, classes, problems).items():
        labels[i] = k
    problems.tell()
    part = FilePart(folder, pool, labels, _where(file, classes), notes)
    return corpus_of_files(folder, classes, part, test, checker, is_benchmark=False, classes_from=file)


def _test_part(
    folder: Path, names: Sequence[str], classes: Sequence[str], tested: Path | None
) -> tuple[FilePart | None, set[str]]:
    """Return the test set, and the names in the tree that are thereby excluded from the pool."""
    test = None
    prefixes = []
    if (folder / "test").is_dir() and not set(classes).isdisjoint(classes_in(folder / "test")):
        prefixes.append("test/")
        test = class_folders(folder, "test", classes=classes) if tested is None else None
    if tested is not None and tested.is_file():
        test = rows_part(folder, tested, classes, names)
    elif tested is not None:
        prefix = prefix_inside(tested, folder)
        if prefix == "":
            raise UserError(f"`test` {tested}: is the same folder as `data`; give a folder of other images.")
        prefixes += [prefix] if prefix is not None else []
        test = class_folders(tested, classes=classes)
    excluded = {name for name in names if name.startswith(tuple(prefixes))} if prefixes else set()
    if test is not None and test.root == folder:
        excluded.update(test.names)
    return test, excluded


def _of_no_class(rows: Iterable[Row], folder: Path, file: Path, names: Sequence[str]) -> set[str]:
    """Return the images that somebody found to be of no class: they are left out of the pool."""
    finder = RowPaths(folder, file.parent, {name: i for i, name in enumerate(names)}, ())
    found = set()
    for row in rows:
        if row.answer == NONE:
            with suppress(UserError):  # the image is gone, and nothing has to be left out
                found.add(names[finder.find(row.path)])
    return found


def rows_part(folder: Path, file: Path, classes: Sequence[str], names: Sequence[str] | None = None) -> FilePart:
    """Return the images of ``folder`` that a label file has a row for, as a test set."""
    names = find_images(folder) if names is None else names
    finder = RowPaths(folder, file.parent, {name: i for i, name in enumerate(names)}, ())
    found = classes_by_position(read_rows(file), file, finder, names, classes)
    order = sorted(found)
    labels = np.array([found[i] for i in order], np.int64)
    return FilePart(folder, [names[i] for i in order], labels, _where(file, classes))


def _where(file: Path, classes: Sequence[str]) -> dict[int, str]:
    return {k: f"{file}, class {name!r}" for k, name in enumerate(classes)}


class Finder(Protocol):
    """Finds what the path in a row refers to."""

    def find(self, path: str) -> int:
        """Return its position; an error says why there is none."""


def classes_by_position(
    rows: Sequence[Row],
    file: Path,
    finder: Finder,
    names: Sequence[str],
    classes: Sequence[str],
    problems: Problems | None = None,
) -> dict[int, int]:
    """Map the position in ``names`` of each image that has a row to its class.

    Mistakes are added to ``problems`` if it is given; otherwise they are an error.
    """
    own = Problems(file) if problems is None else problems
    class_position = {composed(name): k for k, name in enumerate(classes)}
    line_of: dict[int, int] = {}
    found: dict[int, int] = {}
    for line, path, label, _ in rows:
        try:
            i = finder.find(path)
        except UserError as error:
            own.add(line, error)
            continue
        if i in line_of:
            own.add(line, f"{names[i]!r} already has a row, line {line_of[i]}; remove one of them.")
        elif label not in class_position:
            own.add(line, f"the label {label!r} is {not_a_class(label, classes)}")
        else:
            line_of[i], found[i] = line, class_position[label]
    if problems is None:
        own.tell()
    return found


def check_alike(rows: Iterable[Row], file: Path, problems: Problems | None = None) -> None:
    """Refuse labels that differ only in case or spaces: they would become separate classes."""
    own = Problems(file) if problems is None else problems
    first: dict[str, tuple[int, str]] = {}
    for line, _, label, _ in rows:
        known_line, known = first.setdefault(without_case(label), (line, label))
        if label != known:
            own.add(
                line,
                f"the label {label!r} differs from {known!r} (line {known_line}) only in case or spaces. Write both "
                f"the same way.",
            )
    if problems is None:
        own.tell()


def possible_typos(corpus: Corpus) -> list[tuple[str, str]]:
    """Return classes with a single label whose names nearly equal another class name: ``[("laef", "leaf")]``."""

    def without_digits(name: str) -> str:
        return "".join(c for c in name if not c.isdigit())  # room1 and room2 are both intended

    counts = np.bincount(corpus.labels[corpus.labels >= 0], minlength=len(corpus.classes)).tolist()
    frequent = [name for name, count in zip(corpus.classes, counts, strict=True) if count > 1]
    found = []
    for name, count in zip(corpus.classes, counts, strict=True):
        near = difflib.get_close_matches(name, frequent, n=1, cutoff=0.75) if count == 1 else []
        found += [(name, other) for other in near if without_digits(name) != without_digits(other)]
    return found


# --- reading the file --------------------------------------------------------------------------------------------


def read_rows(file: Path) -> list[Row]:
    """Return every row of a label file that has a label."""
    return labels_among(read_answers(file), file)


def labels_among(rows: Iterable[Row], file: Path, problems: Problems | None = None) -> list[Row]:
    """Return the rows with a label; an error if there are none."""
    found = [row for row in rows if not row.answer]
    if not found and problems is not None:
        problems.tell()
    if not found:
        raise UserError(f"{file}: no rows below the header; add one row (path,label) per labeled image.")
    return found


def read_answers(file: Path, problems: Problems | None = None) -> list[Row]:
    """Return every row of a label file, those without a label included; bad rows are added to ``problems``."""
    own = Problems(file) if problems is None else problems
    try:
        with open_regular(file) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as handle:
            rows = list(_parse_rows(handle, file, own))
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 (byte {error.start}); save it as CSV UTF-8.") from error
    except csv.Error as error:
        raise UserError(f"{file}: not a CSV file ({error}).") from error
    except OSError as error:
        raise UserError(f"`labels` {file}: cannot be read ({(error.strerror or str(error)).lower()}).") from error
    if problems is None:
        own.tell()
    return rows


def _parse_rows(lines: Iterable[str], file: Path, problems: Problems) -> Iterator[Row]:
    reader = csv.reader(lines)
    header = next(reader, [])
    path_column, label_column = _columns(header, file)
    answer_column = next((i for i, cell in enumerate(header) if cell.strip().lower() == "answer"), len(header))

    def cell(cells: Sequence[str], column: int) -> str:
        return cells[column].strip() if column < len(cells) else ""

    for cells in reader:
        if not any(text.strip() for text in cells):
            continue
        path, label = cell(cells, path_column), composed(cell(cells, label_column))
        answer = cell(cells, answer_column) if answer_column < len(header) else ""
        if any(text.strip() for text in cells[len(header) :]):
            counts = f"{len(cells)} values, but the first line names {len(header)} columns"
            problems.add(reader.line_num, f'{counts}. Put quotes around a label with a comma: {path},"a, b".')
            continue
        if not path:
            problems.add(reader.line_num, "no path; each row needs a path and a label.")
            continue
        if answer in (NONE, SKIP) and not label:
            yield Row(reader.line_num, path, "", answer)
            continue
        if not label or label == "-1":
            found = "the label -1" if label else "no label"
            todo = "give a label, or remove the row to leave the image unlabeled."
            problems.add(reader.line_num, f"{found} for {path!r}; {todo}")
            continue
        yield Row(reader.line_num, path, label)


def _columns(cells: Sequence[str], file: Path) -> tuple[int, int]:
    """Return the positions of the columns ``path`` and ``label``."""
    header = [cell.strip().lower() for cell in cells]
    missing = [column for column in ("path", "label") if column not in header]
    if missing:
        found = ", ".join(header) or "nothing"
        raise UserError(
            f"{file}: no column {' and no column '.join(missing)} in the first line (found {found}). "
            "It must name the columns path and label."
        )
    twice = next((column for column in ("path", "label") if header.count(column) > 1), None)
    if twice is not None:
        raise UserError(f"{file}: {header.count(twice)} columns are called {twice!r}; keep one of them.")
    return header.index("path"), header.index("label")


@dataclass(frozen=True)
class RowPaths:
    """Finds the image that the path in a row refers to."""

    folder: Path
    csv_folder: Path
    position: Mapping[str, int]
    """of each image of the pool"""
    excluded: Collection[str]
    """names of images that belong to the test set"""

    @cached_property
    def by_composed_name(self) -> dict[str, str]:
        """Names of all images, by their names with accents in composed form."""
        return {composed(name): name for name in (*self.excluded, *self.position)}

    def find(self, path: str) -> int:
        """Return the position of the image; an error says why there is none."""
        text = path.replace("\\", "/")
        candidates = [name for spelling in dict.fromkeys((path, text)) for name in self._candidates(spelling)]
        for name in candidates:
            if name in self.position:
                return self.position[name]
        same = self.by_composed_name
        equal = [same[composed(name)] for name in candidates if composed(name) in same]
        for name in equal:
            if name in self.position:
                return self.position[name]
        if equal:
            raise UserError(f"{path!r} belongs to the test set; remove the row.")
        for base in (self.folder, self.csv_folder):
            place = base / text
            if os.path.exists(place):
                if relative_name(place, self.folder) is None:
                    raise UserError(f"{path!r} lies outside `data` ({self.folder}). Paths must be inside it.")
                raise UserError(f"{path!r} is not an image in a supported format ({suffix_list()}).")
        raise UserError(f"there is no image {path!r} in {self.folder}.{suggestion(text, self.position)}")

    def _candidates(self, text: str) -> list[str]:
        """Return the names under the folder that the text may refer to, the most likely first."""
        names: list[str | None] = [text, posixpath.normpath(text)]
        if text not in self.position and names[1] not in self.position:  # the slow ones only if needed
            names += [relative_name(base / text, self.folder) for base in (self.folder, self.csv_folder)]
        return [name for name in names if name is not None]


def suggestion(text: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'a/b.jpg'?"`` if a name is like the text, else an empty string."""

    def stem(name: str) -> str:
        return posixpath.splitext(posixpath.basename(name))[0].lower()

    known, wanted = list(names), stem(text)
    same = next((name for name in known if stem(name) == wanted), None)
    if same is None:
        beside = posixpath.dirname(text)
        near = [name for name in known if posixpath.dirname(name) == beside] or known
        close = difflib.get_close_matches(text, near[:5000], n=1, cutoff=0.75)
        same = close[0] if close else None
    return "" if same is None else f" Did you mean {same!r}?"
