"""Files of features and their labels as a corpus, as a test set, or as rows to predict.

Knows nothing of how features are stored, nor of splits or training.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.data.corpus import Corpus
from selftrain.data.features.feature_file import FeatureFile, is_feature_path
from selftrain.data.features.origin import check_origins
from selftrain.data.features.rows import FeatureRows
from selftrain.data.sources.arrays import corpus_from_arrays, every_label
from selftrain.data.sources.class_names import composed, positions
from selftrain.data.sources.file_parts import Readable
from selftrain.data.sources.label_file import Finder, Row, check_alike, classes_by_position, read_rows, suggestion
from selftrain.errors import UserError

AnyPath = str | os.PathLike[str]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class NumberedRows:
    """Rows without names, which a label file calls by their numbers."""

    file: FeatureFile
    excluded: Collection[int]
    """rows that belong to the test set"""

    def find(self, path: str) -> int:
        count = len(self.file.rows)
        if not (path.isdecimal() and len(path) <= 20 and int(path) < count):
            raise UserError(
                f"there is no row {path!r} in {self.file.path}; its rows have no names, and are numbered from 0 to "
                f"{count - 1}."
            )
        if int(path) in self.excluded:
            raise UserError(f"{path!r} belongs to the test set; remove the row.")
        return int(path)


@dataclass(frozen=True)
class NamedRows:
    """Rows with names, which a label file has as paths."""

    file: FeatureFile
    excluded: Collection[int] = ()
    """rows that belong to the test set"""

    @cached_property
    def position(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.file.rows.names)}

    @cached_property
    def by_composed_name(self) -> dict[str, int]:
        return {composed(name): i for name, i in self.position.items()}

    def find(self, path: str) -> int:
        found = self.known(path)
        if found is None:
            raise UserError(f"there is no row {path!r} in {self.file.path}.{suggestion(path, self.position)}")
        if found in self.excluded:
            raise UserError(f"{path!r} belongs to the test set; remove the row.")
        return found

    def known(self, path: str) -> int | None:
        """Return the row that a path refers to, whether or not it may have a label; None if there is none."""
        texts = dict.fromkeys((path, path.replace("\\", "/"), posixpath.normpath(path.replace("\\", "/"))))
        exact = next((self.position[text] for text in texts if text in self.position), None)
        if exact is not None:
            return exact
        return next((self.by_composed_name[t] for t in map(composed, texts) if t in self.by_composed_name), None)


def _finder(file: FeatureFile, excluded: Collection[int] = ()) -> Finder:
    return NamedRows(file, excluded) if file.is_named else NumberedRows(file, excluded)


def load_features(path: Path, labels: AnyPath | None, test: Any, unlabeled: AnyPath | None = None) -> Corpus:
    """Return the corpus of a file of features.

    Parameters
    ----------
    labels
        A CSV file with the columns path and label; by default the labels in the file of features.
    test
        Another file of features, labeled by its own labels or by rows of ``labels``; or a CSV file about rows of
        ``path``.
    unlabeled
        Must be None: unlabeled rows are in the file itself.
    """
    if isinstance(test, (tuple, list)):
        raise UserError("`test`: `data` is a file of features, so the test set must also be a file.")
    if unlabeled is not None:
        raise UserError("`unlabeled`: with features, put the unlabeled rows into the file of `data`.")
    if test is not None and not os.path.exists(test):
        raise UserError(f"`test` {test}: there is no such file; give a file of features, or a CSV file path,label.")
    return _load(path, None if labels is None else Path(labels), None if test is None else Path(test))


def _load(path: Path, labels: Path | None, test: Path | None) -> Corpus:
    file = FeatureFile.read(path)
    tested = FeatureFile.read(test) if test is not None and is_feature_path(test) else None
    if tested is not None:
        _check_fits(tested, file)
    if labels is None:
        corpus = _corpus_of_own_labels(file)
        rows_of_test: list[Row] = []
    else:
        rows = read_rows(labels)
        check_alike(rows, labels)
        rows, rows_of_test = _shared(rows, file, tested, labels)
        corpus = _corpus_of_rows(file, rows, labels, test if tested is None else None)
    if tested is not None:
        images, truth = _labeled_rows(tested, rows_of_test, labels, corpus.classes, "`test` ")
        return corpus.with_test(images, truth)
    if test is not None and labels is None:
        raise UserError(f"`test` {test}: expected a file of features with labels in it (an array y).")
    return corpus


def _corpus_of_own_labels(file: FeatureFile) -> Corpus:
    if file.labels is None:
        raise UserError(
            f"`data` {file.path}: there are no labels. Give a CSV file with the columns path,label as `labels`, or an "
            f"array y in the file (-1 or an empty text is unlabeled)."
        )
    with _named(file.path):
        corpus = corpus_from_arrays(file.rows, file.labels, name=_name(file.path))
    return replace(corpus, integer_classes=are_integers(file.labels))


def _shared(
    rows: Sequence[Row], file: FeatureFile, tested: FeatureFile | None, labels: Path
) -> tuple[list[Row], list[Row]]:
    """Return the rows of a label file that are about training rows, and those about rows of the test file."""
    if tested is None or tested.labels is not None:
        return list(rows), []
    if not (file.is_named and tested.is_named):
        raise UserError(
            f"`test` {tested.path}: has no labels (an array y), and {labels} cannot label it, because rows without "
            f"names have the same numbers in both files."
        )
    mine, other = NamedRows(file), NamedRows(tested)
    both = next((row for row in rows if None not in (mine.known(row.path), other.known(row.path))), None)
    if both is not None:
        raise UserError(
            f"{labels}, line {both.line}: {both.path!r} is a row of {file.path} and of {tested.path}; it is not clear "
            f"which of them has this label. Add the labels of the test set to its file, as an array y."
        )
    is_tested = [other.known(row.path) is not None for row in rows]
    of_test = [row for row, tested_row in zip(rows, is_tested, strict=True) if tested_row]
    return [row for row, tested_row in zip(rows, is_tested, strict=True) if not tested_row], of_test


def _corpus_of_rows(file: FeatureFile, rows: Sequence[Row], labels: Path, test: Path | None) -> Corpus:
    """Return the corpus of a file whose labels are in a CSV file; ``test`` is another CSV file about its rows."""
    classes = tuple(sorted({row.label for row in rows}))
    if len(classes) < 2:
        found = f"only one class ({classes[0]})" if classes else f"no label for a row of {file.path}"
        raise UserError(f"{labels}: {found}; at least two classes are needed.")
    tested: dict[int, int] = {}
    if test is not None:
        tested = classes_by_position(read_rows(test), test, _finder(file), file.rows.names, classes)
    found_classes = classes_by_position(rows, labels, _finder(file, tested), file.rows.names, classes)
    y = np.full(len(file.rows), -1, np.int64)
    y[list(found_classes)] = list(found_classes.values())
    name = _name(file.path)
    if test is None:
        return Corpus(name, classes, file.rows, y, y)
    order = np.array(sorted(tested), np.int64)
    pool = np.ones(len(y), bool)
    pool[order] = False
    corpus = Corpus(name, classes, file.rows.subset(pool), y[pool], y[pool])
    return corpus.with_test(file.rows.subset(order), np.array([tested[i] for i in order.tolist()], np.int64))


def _labeled_rows(
    file: FeatureFile, rows: Sequence[Row], labels: Path | None, classes: Sequence[str], what: str
) -> tuple[FeatureRows, Labels]:
    """Return rows to evaluate on and their classes: those of a label file, else all rows with the file's own labels."""
    if rows and labels is not None:
        found = classes_by_position(rows, labels, _finder(file), file.rows.names, classes)
        order = sorted(found)
        images = file.rows if len(order) == len(file.rows) else file.rows.subset(np.array(order))
        return images, np.array([found[i] for i in order], np.int64)
    if file.labels is None:
        more = "" if labels is None else f", and no row of {labels} is about it"
        raise UserError(f"{what}{file.path}: there are no labels (no array y){more}.")
    with _named(file.path):
        values = every_label(file.labels, len(file.rows), "y")
        return file.rows, positions([str(value) for value in values], classes, "y")


def feature_test_set(path: Path, labels: Path | None, classes: Sequence[str], dim: int) -> Readable:
    """Return labeled features for a model that takes ``dim`` numbers per row, with their positions in its classes."""
    file = FeatureFile.read(path)
    _check_dim(file.rows, dim, str(path))
    rows = [] if labels is None else read_rows(labels)
    return Readable(*_labeled_rows(file, rows, labels, classes, "`data` "), ())


def feature_rows(features: Any, dim: int) -> FeatureRows:
    """Return features for a model that takes ``dim`` numbers per row: an array, or the path of a file of features."""
    if not isinstance(features, (str, os.PathLike)):
        rows = FeatureRows(features)
        _check_dim(rows, dim, "features")
        return rows
    path = Path(features)
    if path.suffix not in (".npz", ".npy") and not is_feature_path(path):
        raise UserError(
            f"{path}: this model was trained on features; give a .npz or .npy file with {dim} numbers per row. For "
            f"images, make it with the same backbone: selftrain embed {path} -o new.npz."
        )
    rows = FeatureFile.read(path).rows
    _check_dim(rows, dim, str(path))
    return rows


def are_integers(labels: Any) -> bool:
    """Return whether labels are integers, and not text; missing values and -1 aside."""
    values = np.asarray(labels)
    if values.dtype.kind != "O":
        return values.dtype.kind in "iufb"
    return any(isinstance(value, (int, np.integer)) and value != -1 for value in values.reshape(-1).tolist())


def _check_dim(rows: FeatureRows, dim: int, what: str) -> None:
    if rows.dim != dim:
        raise UserError(f"{what}: this model takes {dim} numbers per row, not {rows.dim}.")


def _check_fits(test: FeatureFile, file: FeatureFile) -> None:
    if test.rows.dim != file.rows.dim:
        raise UserError(
            f"`test` {test.path}: its rows have {test.rows.dim} numbers, the training rows have {file.rows.dim}."
        )
    check_origins(test.rows.origin, file.rows.origin, f"`test` {test.path}", "the training rows")


def _name(path: Path) -> str:
    return path.resolve().name if path.is_dir() else path.stem


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Inside, errors about labels begin with the path of the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}, {error}") from None
