"""Class folders as a corpus: layout 1 (``labeled/``, ``unlabeled/``, ``test/``) and layout 2 (``train/``, ``test/``).

Knows nothing of label files or dataset names. Never guesses a label from a folder that is not in one of the layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.images import FileImages, SearchNotes, find_images, is_hidden, suffix_list
from selftrain.data.images.find import cannot_list
from selftrain.data.sources.class_names import composed, not_a_class, without_case
from selftrain.data.sources.file_parts import (
    Checker,
    FilePart,
    corpus_of_files,
    prefix_inside,
    real_paths,
    without_test_images,
)
from selftrain.errors import UserError

TOP_FOLDERS = ("labeled", "train")  # the folders that identify layouts 1 and 2
LAYOUTS = (
    "labeled/<class>/* with unlabeled/**; or train/<class>/* with test/<class>/* and `labels_per_class`; "
    "or any tree with a CSV file of labels, `labels`, with the columns path and label"
)


def has_layout(folder: Path) -> bool:
    """Return whether a folder is in layout 1 or 2."""
    return any((folder / name).is_dir() for name in TOP_FOLDERS)


def load_folder(folder: Path, test_folder: Path | None, checker: Checker) -> Corpus:
    """Return the corpus of a folder in layout 1 or 2; ``test_folder`` replaces its own test set."""
    classes, pool, test = _find_parts(folder, test_folder)
    is_benchmark = not (folder / "labeled").is_dir()
    return corpus_of_files(folder, classes, pool, test, checker, is_benchmark=is_benchmark, classes_from=folder)


def _find_parts(folder: Path, test_folder: Path | None) -> tuple[tuple[str, ...], FilePart, FilePart | None]:
    """Return the classes, the pool and the test set."""
    top = subfolders(folder)
    kind = _layout_of(folder, top)
    pool = class_folders(folder, kind)
    classes = classes_in(folder / kind)
    test_prefix = None if test_folder is None else prefix_inside(test_folder, folder)
    if test_prefix is not None and any(name.startswith(test_prefix) for name in pool.names):
        raise UserError(f"`test` {test_folder}: contains training images; give a folder of other images.")
    if kind == "labeled" and "unlabeled" in top:
        unlabeled, notes = _search(folder, "unlabeled")
        notes = SearchNotes(pool.notes.linked | notes.linked, pool.notes.unsupported + notes.unsupported)
        if test_prefix is not None:
            unlabeled = [name for name in unlabeled if not name.startswith(test_prefix)]
        labels = np.concatenate([pool.labels, np.full(len(unlabeled), -1, np.int64)])
        # The names remain sorted, because "labeled" < "unlabeled".
        pool = replace(pool, names=pool.names + unlabeled, labels=labels, notes=notes)
    if test_folder is not None:
        return classes, pool, class_folders(test_folder, classes=classes)
    return classes, pool, class_folders(folder, "test", classes=classes) if "test" in top else None


def _layout_of(folder: Path, top: Sequence[str]) -> str:
    """Return ``"labeled"`` (layout 1) or ``"train"`` (layout 2)."""
    if "labeled" in top and "train" in top:
        raise UserError(
            f"{folder}: contains both labeled/ and train/; keep one of them, or pass `labels`. Layouts: {LAYOUTS}."
        )
    if "labeled" not in top and "train" not in top:
        _raise_not_recognised(folder, top)
    if "labeled" in top and "unlabeled" not in top:
        misspelled = next((name for name in top if name.lower() in ("unlabeled", "unlabelled")), None)
        if misspelled is not None:
            raise UserError(f"{folder / misspelled}: rename it to 'unlabeled' if these are the unlabeled images.")
    return "labeled" if "labeled" in top else "train"


def _raise_not_recognised(folder: Path, top: Sequence[str]) -> NoReturn:
    images = find_images(folder)
    if not images:
        raise UserError(no_image(folder))
    loose = sum("/" not in name for name in images)
    found = [f"{name}/" for name in top[:4]] + (["..."] if len(top) > 4 else [])
    found += [f"{loose} images directly in it"] if loose else []
    file = folder / "labels.csv"
    hint = f" It contains {file.name}: pass `labels={file}`." if file.exists() else ""
    raise UserError(f"{folder}: layout not recognised (found {', '.join(found)}). Use {LAYOUTS}.{hint}")


def evaluation_part(folder: Path, classes: Sequence[str]) -> FilePart:
    """Return the labeled images of a folder to evaluate on: those in ``test/<class>/*``, or in class folders."""
    top = subfolders(folder)
    below = "test" if "test" in top and "test" not in classes else ""
    other = next((name for name in ("labeled", "unlabeled", "train") if name in top and name not in classes), None)
    if other is not None and not below:
        raise UserError(f"{folder}: contains {other}/ but no test/<class> folders; give a folder of class folders.")
    return class_folders(folder, below, classes)


def add_unlabeled_folder(corpus: Corpus, folder: Path, checker: Checker) -> Corpus:
    """Return the corpus with the images of a tree as more unlabeled ones; its test images are left out."""
    names = find_images(folder, notes := SearchNotes())
    tested = corpus.test
    part = without_test_images(
        FilePart(folder, names, np.full(len(names), -1, np.int64), {}, notes),
        real_paths(tested.root, tested.names) if isinstance(tested, FileImages) else {},
    )
    if not part.names:
        raise UserError(f"`unlabeled` {no_image(folder)}")
    images, _, skipped = checker.keep_readable([part], corpus.classes)[0]
    return corpus.with_unlabeled(images, skipped, (notes.remark,) if notes.remark else ())


def images_in(folder: Path, reporter: Reporter) -> FileImages:
    """Return all images of a folder and its subfolders; ignored ones are reported."""
    names = find_images(folder, notes := SearchNotes())
    if notes.remark:
        reporter.warn(f"{folder}: {notes.remark}")
    if not names:
        raise UserError(f"{folder}: no image in this folder or its subfolders.")
    return FileImages(folder, names)


def subfolders(folder: Path) -> list[str]:
    """Return the names of the visible folders directly in ``folder``, sorted."""
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry.name))
    except OSError as error:
        raise UserError(cannot_list(folder, error)) from error


def classes_in(folder: Path) -> tuple[str, ...]:
    """Return the class names that the subfolders of ``folder`` stand for, sorted."""
    return tuple(sorted({composed(name) for name in subfolders(folder)}))


def class_folders(root: Path, below: str = "", classes: Sequence[str] | None = None) -> FilePart:
    """Return the images in ``root/below/<class>/**``, named relative to ``root``.

    With ``classes`` given, class folders of other names are an error.
    """
    folder = root / below if below else root
    names, notes = _search(root, below)
    found = subfolders(folder)
    if not names:
        raise UserError(f"{no_image(folder)[:-1]}; add images or remove the folder.")
    if not found:
        raise UserError(f"{folder}: contains no class folder; create one folder per class.")
    if classes is None:
        classes = classes_in(folder)
        _check_alike(folder, classes)
    of_class = {composed(name): k for k, name in enumerate(classes)}
    for name in found:
        if composed(name) not in of_class:
            raise UserError(f"{folder / name}: {not_a_class(name, classes)}")
    position = {name: of_class[composed(name)] for name in found}
    labels = _labels_of(root, folder, names, f"{below}/" if below else "", position)
    filled = np.bincount(labels, minlength=len(classes))
    for name in found:
        if not filled[position[name]]:
            raise UserError(
                f"{folder / name}: no image in this class folder; add one ({suffix_list()}) or remove the folder."
            )
    return FilePart(root, names, labels, {position[name]: str(folder / name) for name in found}, notes)


def _labels_of(
    root: Path, folder: Path, names: Sequence[str], prefix: str, position: dict[str, int]
) -> NDArray[np.int64]:
    labels = np.empty(len(names), np.int64)
    for i, name in enumerate(names):
        first, slash, _ = name[len(prefix) :].partition("/")
        if not slash:
            raise UserError(
                f"{root / name}: is not in a class folder; move it to {folder / '<class>'}/ or out of {folder}."
            )
        labels[i] = position[first]
    return labels


def _check_alike(folder: Path, classes: Sequence[str]) -> None:
    known: dict[str, str] = {}
    for name in classes:
        if (other := known.setdefault(without_case(name), name)) != name:
            raise UserError(
                f"{folder}: the class folders {other!r} and {name!r} differ only in case or spaces. "
                f"Merge them, or rename one."
            )


def _search(root: Path, below: str) -> tuple[list[str], SearchNotes]:
    """Return the images in ``root/below``, named relative to ``root``, and the notes of the search."""
    prefix = f"{below}/" if below else ""
    found = SearchNotes()
    names = [prefix + name for name in find_images(root / below, found)]
    linked = set(names) if below and (root / below).is_symlink() else {prefix + name for name in found.linked}
    return names, SearchNotes(linked, found.unsupported)


def no_image(folder: Path) -> str:
    """Return the error message for a folder without images."""
    return f"{folder}: no image in this folder ({suffix_list()})."
