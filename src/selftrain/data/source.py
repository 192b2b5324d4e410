"""DATA as the user names it (a folder, a label file, a dataset's name, shards, arrays) made into one Corpus.

Knows nothing of splits, views, methods or training; never guesses a label from what is not one of the three layouts.
"""

from __future__ import annotations

import csv
import difflib
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.images import (
    IMAGE_SUFFIXES,
    FileImages,
    FoundOnTheWay,
    Images,
    JoinedImages,
    UnreadableImage,
    check_images,
    find_images,
    is_hidden,
)
from selftrain.data.sources.arrays import composed, corpus_from_arrays, encode_labels
from selftrain.data.sources.hub import HubName, hub_images, is_hub, load_hub, open_hub
from selftrain.data.sources.named import DATASETS, DatasetSpec
from selftrain.data.sources.shards import find_shards, index_shards, is_shards, load_shards, read_shards
from selftrain.errors import UserError, nearest

__all__ = [
    "DATASETS",
    "Corpus",
    "DatasetSpec",
    "absolute",
    "corpus_from_arrays",
    "load_corpus",
    "load_test_set",
    "names_dataset",
    "perhaps_misspelt",
    "prepare",
]

Progress = Callable[[int, int], object]
_Kept = tuple[Images, NDArray[np.int64], tuple[str, ...]]  # readable pictures, their classes, names of the skipped ones

TOPS = ("labeled", "train")  # what the first two layouts are known by
LAYOUTS = (
    "labeled/<class>/* with unlabeled/**; or train/<class>/* with test/<class>/* and --labels-per-class N; "
    "or any tree with --labels FILE.csv (path,label)"
)


def load_corpus(
    data: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    unlabeled: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    strict: bool = False,
    check: str = "full",
    progress: Progress | None = None,
) -> Corpus:
    """Find, check and sort out the pictures that ``data`` names.

    ``data`` is a folder; or a name in ``DATASETS``; or ``hf:`` and a name on Hugging Face; or a pattern of tar files;
    or the name of a folder inside ``root``. A folder has one of three layouts, and images nested deeper in a class
    folder count for that class:

    1. ``labeled/<class>/*``, ``unlabeled/**`` and optionally ``test/<class>/*``;
    2. ``train/<class>/*`` and optionally ``test/<class>/*``: a benchmark, with every label known and to be hidden;
    3. with ``labels``, any tree: images without a row in the file are unlabeled. Folder names mean nothing then
       (``labeled/`` and ``train/`` included), with one exception: a top-level ``test`` folder with at least one
       subfolder that has the name of a class is the test set and is kept out of the pool.

    Parameters
    ----------
    labels
        A CSV file, UTF-8, with the columns ``path`` and ``label``. Paths are relative to ``data``, or to the file's own
        folder, or absolute inside ``data``.
    test
        A folder of class folders: the test set, instead of ``data``'s own. Where it lies inside ``data``, its images
        are kept out of the pool.
    unlabeled
        More unlabeled pictures: a folder (any tree), a pattern of tar files, or ``hf:...``. Their labels, if they have
        any, are not looked at.
    root
        The folder that datasets lie in.
    strict
        Stop at the first image that can't be read, instead of leaving it out (``Corpus.skipped``).
    check
        ``"full"`` decodes every file once, ``"header"`` looks at the headers only, ``"none"`` trusts the files.
    progress
        Called as ``progress(done, total)`` while files are checked.

    Raises
    ------
    UserError
        Whatever the user can put right, in one line.
    """
    checker = _Checker(strict, check, progress)
    found = Path(data) if labels is not None and os.path.isdir(data) else _resolve(data, root)
    tested = None if test is None else Path(test)
    if tested is not None and not tested.is_dir():
        if not tested.is_file():
            raise UserError(f"--test {tested}: no such folder; it must hold one folder a class.")
        if labels is None:
            raise UserError(f"--test {tested}: a file goes with --labels only; give a folder with one folder a class.")
    if isinstance(found, Path):
        corpus = _load_folder(found, None if labels is None else Path(labels), tested, checker)
    elif labels is not None:
        raise UserError(f"--labels {labels}: goes with a folder of images, not with {os.fspath(data)!r}.")
    else:
        corpus = found(checker)
        if tested is not None:
            part = _class_folders(tested, classes=corpus.classes)
            corpus = _with_test(corpus, checker.keep_readable([part], corpus.classes)[0])
    return corpus if unlabeled is None else _with_unlabeled(corpus, os.fspath(unlabeled), checker)


def _load_folder(folder: Path, labels: Path | None, tested: Path | None, checker: _Checker) -> Corpus:
    if labels is not None:
        classes, pool, test_part = _layout_csv(folder, labels, tested)
    else:
        classes, pool, test_part = _layout_folders(folder, tested)
    if len(classes) < 2:
        where = labels if labels is not None else folder
        raise UserError(f"{where}: only one class ({classes[0]}); at least two are needed to tell apart.")
    pool = _apart(pool, {} if test_part is None else _real_paths(test_part.root, test_part.names))
    parts = checker.keep_readable([pool] if test_part is None else [pool, test_part], classes)
    images, known, skipped = parts[0]
    remarks = {part.besides.remark for part in (pool, test_part) if part is not None}
    corpus = Corpus(
        name=folder.resolve().name,
        classes=classes,
        images=images,
        labels=known,
        truth=known,
        skipped=skipped,
        remarks=tuple(remark for remark in remarks if remark),
        is_benchmark=labels is None and not (folder / "labeled").is_dir(),
    )
    return corpus if test_part is None else _with_test(corpus, parts[1])


def _with_test(corpus: Corpus, part: _Kept) -> Corpus:
    test, test_labels, skipped = part
    return replace(corpus, test=test, test_labels=test_labels, skipped=corpus.skipped + skipped)


def _with_unlabeled(corpus: Corpus, text: str, checker: _Checker) -> Corpus:
    """The corpus with more pictures in its pool, whose names begin with ``unlabeled:``."""
    skipped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    if is_shards(text):
        more: Images
        more, _, skipped = read_shards(text, check=checker.check, strict=checker.strict)
    elif is_hub(text):
        more = hub_images(text)
        good, skipped = checker.good(more, 0, len(more))
        more = more.subset(good) if skipped else more
    elif os.path.isdir(text):
        names = find_images(text, besides := FoundOnTheWay())
        part = _Part(Path(text), names, np.full(len(names), -1, np.int64), {}, besides)
        files = isinstance(corpus.test, FileImages)
        part = _apart(part, _real_paths(corpus.test.root, corpus.test.names) if files else {})  # type: ignore[union-attr]
        if not part.names:
            raise UserError(f"--unlabeled {text}: no image in this folder ({_suffixes()}).")
        more, _, skipped = checker.keep_readable([part], corpus.classes)[0]
        remarks = (besides.remark,) if besides.remark else ()
    else:
        raise UserError(
            f"--unlabeled {text}: no such folder; give a folder of images, tar files ('shards/{{000..099}}.tar'), or "
            f"hf:NAME."
        )
    names = corpus.images.names + [f"unlabeled:{name}" for name in more.names]
    none = np.full(len(more), -1, np.int64)
    return replace(
        corpus,
        images=JoinedImages([corpus.images, more], names),
        labels=np.concatenate([corpus.labels, none]),
        truth=np.concatenate([corpus.truth, none]),
        skipped=corpus.skipped + tuple(f"unlabeled:{name}" for name in skipped),
        remarks=corpus.remarks + remarks,
    )


def load_test_set(
    data: str | os.PathLike[str],
    classes: Sequence[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    strict: bool = False,
    check: str = "full",
    progress: Progress | None = None,
    skipped: list[str] | None = None,
) -> tuple[Images, NDArray[np.int64]]:
    """Labeled pictures to evaluate on, with their positions in ``classes`` (those of a model).

    ``data`` is a folder with ``test/<class>/*`` in it; or a folder of class folders; or a dataset's name; or, with a
    CSV file of ``labels``, any folder, of which the pictures in that file are meant. Files that can't be read are left
    out and their names added to ``skipped``; ``strict`` stops at the first instead. The other parameters are as in
    ``load_corpus``.
    """
    checker = _Checker(strict, check, progress)
    if labels is not None:
        if not os.path.isdir(data):
            raise UserError(f"--labels {labels}: goes with a folder of images, not with {os.fspath(data)!r}.")
        return _tested(checker, _rows_part(Path(data), Path(labels), classes), classes, skipped)
    found = _resolve(data, root)
    if not isinstance(found, Path):
        text, corpus = os.fspath(data), found(checker)
        test, test_labels = corpus.test, corpus.test_labels
        if is_shards(text) or (is_hub(text) and HubName.parse(text).split):  # these very pictures were asked for
            test, test_labels = corpus.images, corpus.labels
        if test is None or test_labels is None:
            raise UserError(f"{text}: this dataset has no test set.")
        if (test_labels < 0).any():
            raise UserError(f"{text}: {int((test_labels < 0).sum())} of {len(test)} images have no label to compare.")
        if skipped is not None:
            skipped += corpus.skipped
        position = {composed(name): k for k, name in enumerate(classes)}
        named = [composed(corpus.classes[k]) for k in test_labels.tolist()]
        return test, encode_labels(named, position, classes, text)
    top = _subfolders(found)
    below = "test" if "test" in top and "test" not in classes else ""
    other = next((name for name in ("labeled", "unlabeled", "train") if name in top and name not in classes), None)
    if other is not None and not below:
        raise UserError(f"{found}: has {other}/ but no test/<class> folders; give a folder of class folders.")
    return _tested(checker, _class_folders(found, below, classes), classes, skipped)


def _tested(
    checker: _Checker, part: _Part, classes: Sequence[str], skipped: list[str] | None
) -> tuple[Images, NDArray[np.int64]]:
    images, labels, left_out = checker.keep_readable([part], classes)[0]
    if skipped is not None:
        skipped += left_out
    return images, labels


# --- what DATA means ---------------------------------------------------------------------------------------------


def names_dataset(text: str, root: str | os.PathLike[str] | None = None) -> bool:
    """Whether DATA is the name of a dataset: a folder of that name comes first only if it has one of the layouts."""
    places = [Path(text)] if root is None else [Path(text), Path(root, text)]
    return text in DATASETS and not any(_has_layout(place) for place in places)


def _has_layout(folder: Path) -> bool:
    return any((folder / name).is_dir() for name in TOPS)


def absolute(data: object) -> str:
    """DATA as it is understood from anywhere; a name that is no path here stays as it is."""
    if not isinstance(data, (str, os.PathLike)):
        raise UserError(
            f"data: expected a folder, a name, or a pair of arrays (x, y) with a label for each row of x (-1 is "
            f"unlabeled); got {type(data).__name__} alone."
        )
    text = os.fspath(data)
    if is_hub(text):
        return HubName.parse(text).absolute()
    if is_shards(text):
        return os.path.abspath(text)
    return text if names_dataset(text) or not os.path.exists(text) else str(Path(text).resolve())


def prepare(
    *data: str | None,
    root: str | os.PathLike[str] | None = None,
    check: str = "full",
    strict: bool = False,
    reporter: Reporter,
) -> None:
    """Do for DATA what takes long and is kept on disk, with a word on it: fetch a dataset, index shards."""
    for text in data:
        if text is None:
            continue
        if is_hub(text):
            open_hub(HubName.parse(text))
        elif is_shards(text):
            index_shards(find_shards(text), check=check, strict=strict, reporter=reporter)
        elif names_dataset(text, root):
            DATASETS[text].make_ready(root, reporter)


def _resolve(data: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> Path | Callable[[_Checker], Corpus]:
    """A folder, or what loads the corpus that DATA names otherwise."""
    text = os.fspath(data)
    if names_dataset(text, root):
        return lambda checker: DATASETS[text].load(root)
    if os.path.isdir(text) and (text not in DATASETS or _has_layout(Path(text))):
        return Path(text)
    if is_hub(text):
        return lambda checker: checker.keep_readable_of(load_hub(text))
    if is_shards(text):
        return lambda checker: load_shards(text, check=checker.check, strict=checker.strict)
    if root is not None and not Path(root).is_dir():
        raise UserError(f"--root {root}: no such folder; it must hold the folders of the datasets.")
    in_root: list[str] = []
    if root is not None:
        if text and os.path.isdir(Path(root, text)):
            return Path(root, text)
        in_root = _subfolders(Path(root))
    if os.path.exists(text):
        raise UserError(
            f"DATA {text!r}: is a file; give a folder of images, tar files, or a dataset's name ('selftrain list "
            f"datasets')."
        )
    where = "no such folder" if root is None else f"no such folder, here or in {root}"
    raise UserError(
        f"DATA {text!r}: {where}, and no dataset of that name ('selftrain list datasets')."
        f"{nearest(text, [*DATASETS, *in_root])}"
    )


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry.name))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{folder}: the folder can't be listed ({reason}).") from error


# --- the three layouts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Names under one root with their classes, before any file was opened."""

    root: Path
    names: list[str]
    labels: NDArray[np.int64]
    where: Mapping[int, str]
    """Where the user finds a class: its folder, or its name in the label file."""
    besides: FoundOnTheWay = field(default_factory=FoundOnTheWay)


def _layout_folders(folder: Path, test_folder: Path | None) -> tuple[tuple[str, ...], _Part, _Part | None]:
    """Layouts 1 and 2."""
    top = _subfolders(folder)
    if "labeled" in top and "train" in top:
        raise UserError(
            f"{folder}: has both labeled/ and train/; keep one of them, or give --labels. Layouts: {LAYOUTS}."
        )
    if "labeled" not in top and "train" not in top:
        _not_recognised(folder, top)
    kind = "labeled" if "labeled" in top else "train"
    other = _misspelled_unlabeled(top) if kind == "labeled" and "unlabeled" not in top else None
    if other is not None:
        raise UserError(f"{folder / other}: rename it to 'unlabeled' if these are the unlabeled images.")
    pool = _class_folders(folder, kind)
    classes = _classes_in(folder / kind)
    test_prefix = None if test_folder is None else _prefix_inside(test_folder, folder)
    if test_prefix is not None and any(name.startswith(test_prefix) for name in pool.names):
        raise UserError(f"--test {test_folder}: holds images that are trained on; give a folder of other images.")
    if kind == "labeled" and "unlabeled" in top:
        unlabeled, besides = _search(folder, "unlabeled")
        besides = FoundOnTheWay(pool.besides.linked | besides.linked, pool.besides.passed_over + besides.passed_over)
        if test_prefix is not None:
            unlabeled = [name for name in unlabeled if not name.startswith(test_prefix)]
        labels = np.concatenate([pool.labels, np.full(len(unlabeled), -1, np.int64)])
        # sorted still: "labeled" < "unlabeled"
        pool = replace(pool, names=pool.names + unlabeled, labels=labels, besides=besides)
    if test_folder is not None:
        return classes, pool, _class_folders(test_folder, classes=classes)
    return classes, pool, _class_folders(folder, "test", classes=classes) if "test" in top else None


def _search(root: Path, below: str) -> tuple[list[str], FoundOnTheWay]:
    """Images in ``root/below``, named relative to ``root``, and what there is besides."""
    prefix = f"{below}/" if below else ""
    found = FoundOnTheWay()
    names = [prefix + name for name in find_images(root / below, found)]
    linked = set(names) if below and (root / below).is_symlink() else {prefix + name for name in found.linked}
    return names, FoundOnTheWay(linked, found.passed_over)


def _real_paths(root: str | os.PathLike[str], names: Iterable[str]) -> dict[str, str]:
    """The files themselves, whatever links lead to them, with the paths that were given."""
    return {os.path.realpath(path): path for path in (os.path.join(root, name) for name in names)}


def _apart(pool: _Part, tested: Mapping[str, str]) -> _Part:
    """The pool without what is tested on, which is not trained on either, and without unlabeled files that are in it
    already under another name: links may lead to both."""
    root = os.path.realpath(pool.root) + os.sep
    inside = {path[len(root) :] for path in tested if path.startswith(root)}
    linked, kept, seen = pool.besides.linked, np.ones(len(pool.names), bool), set(tested)
    if not inside and not linked:
        return pool
    here = set(pool.names) - linked if linked else set()
    for i in np.argsort(pool.labels < 0, kind="stable").tolist():  # labeled ones first, which stay
        name = pool.names[i]
        if name not in linked and name not in inside:
            continue
        path = os.path.realpath(pool.root / name) if name in linked else root + name
        if path in tested and pool.labels[i] >= 0:
            raise UserError(f"{pool.root / name}: is to be trained on, and is tested on, too ({tested[path]}).")
        double = path in seen or (name in linked and path.startswith(root) and path[len(root) :] in here)
        kept[i] = pool.labels[i] >= 0 or not double
        seen.add(path)
    names = [name for name, stays in zip(pool.names, kept.tolist(), strict=True) if stays]
    return replace(pool, names=names, labels=pool.labels[kept])


def _misspelled_unlabeled(top: Sequence[str]) -> str | None:
    return next((name for name in top if name.lower() in ("unlabeled", "unlabelled")), None)


def _not_recognised(folder: Path, top: Sequence[str]) -> None:
    images = find_images(folder)
    if not images:
        raise UserError(f"{folder}: no image in this folder ({_suffixes()}).")
    loose = sum("/" not in name for name in images)
    found = [f"{name}/" for name in top[:4]] + (["..."] if len(top) > 4 else [])
    found += [f"{loose} images directly in it"] if loose else []
    hint = (
        f" There is a labels.csv in it: add --labels {folder / 'labels.csv'}."
        if (folder / "labels.csv").exists()
        else ""
    )
    raise UserError(f"{folder}: layout not recognised (found {', '.join(found)}). Use {LAYOUTS}.{hint}")


def _suffixes() -> str:
    return " ".join(suffix[1:] for suffix in IMAGE_SUFFIXES)


def _classes_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted({composed(name) for name in _subfolders(folder)}))


def _class_folders(root: Path, below: str = "", classes: Sequence[str] | None = None) -> _Part:
    """Images in ``root/below/<class>/**``, named relative to ``root``. With ``classes`` given, no others may occur."""
    folder = root / below if below else root
    prefix = f"{below}/" if below else ""
    names, besides = _search(root, below)
    found = _subfolders(folder)
    if not names:
        raise UserError(f"{folder}: no image in this folder ({_suffixes()}); add some or remove it.")
    if not found:
        raise UserError(f"{folder}: no class folder in it; it must hold one folder a class.")
    if classes is None:
        classes = _classes_in(folder)
        known: dict[str, str] = {}
        for name in classes:
            if (other := known.setdefault(_bare(name), name)) != name:
                raise UserError(
                    f"{folder}: the class folders {other!r} and {name!r} are the same but for capitals or spaces. "
                    f"Join them, or rename one."
                )
    of_class = {composed(name): k for k, name in enumerate(classes)}
    for name in found:
        if composed(name) not in of_class:
            raise UserError(f"{folder / name}: {_no_class(name, classes)}")
    position = {name: of_class[composed(name)] for name in found}
    labels = np.empty(len(names), np.int64)
    for i, name in enumerate(names):
        first, slash, _ = name[len(prefix) :].partition("/")
        if not slash:
            raise UserError(f"{root / name}: lies in no class folder; move it to {folder / '<class>'}/ or elsewhere.")
        labels[i] = position[first]
    filled = np.bincount(labels, minlength=len(classes))
    for name in found:
        if not filled[position[name]]:
            raise UserError(
                f"{folder / name}: no image in this class folder; add one ({_suffixes()}) or remove the folder."
            )
    return _Part(root, names, labels, {position[name]: str(folder / name) for name in found}, besides)


def _no_class(name: str, classes: Sequence[str]) -> str:
    known = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
    return f"not a class of the training data ({known}).{nearest(name, classes)}"


def _bare(name: str) -> str:
    """A name without capitals and spaces."""
    return "".join(name.casefold().split())


def _check_alike(rows: Iterable[tuple[int, str, str]], file: Path) -> None:
    """Refuse labels that are the same but for capitals and spaces: they would become classes of their own."""
    first: dict[str, tuple[int, str]] = {}
    for line, _, label in rows:
        known_line, known = first.setdefault(_bare(label), (line, label))
        if label != known:
            raise UserError(
                f"{file}, line {line}: the label {label!r} is {known!r} (line {known_line}) but for capitals or "
                f"spaces. Write both alike."
            )


def perhaps_misspelt(corpus: Corpus) -> list[tuple[str, str]]:
    """Classes with a single label whose names are nearly those of others: ``[("laef", "leaf")]``."""

    def letters(name: str) -> str:
        return "".join(c for c in name if not c.isdigit())  # room1 and room2 are both meant

    counts = np.bincount(corpus.labels[corpus.labels >= 0], minlength=len(corpus.classes)).tolist()
    usual = [name for name, count in zip(corpus.classes, counts, strict=True) if count > 1]
    found = []
    for name, count in zip(corpus.classes, counts, strict=True):
        near = difflib.get_close_matches(name, usual, n=1, cutoff=0.75) if count == 1 else []
        found += [(name, other) for other in near if letters(name) != letters(other)]
    return found


def _layout_csv(folder: Path, file: Path, tested: Path | None) -> tuple[tuple[str, ...], _Part, _Part | None]:
    """Layout 3. ``tested``: class folders, or another file of labels."""
    rows = _read_rows(file)
    classes = tuple(sorted({label for _, _, label in rows}))
    _check_alike(rows, file)
    names = find_images(folder, besides := FoundOnTheWay())
    if not names:
        raise UserError(f"{folder}: no image in this folder ({_suffixes()}).")
    test_part, kept_out = None, []
    if (folder / "test").is_dir() and not set(classes).isdisjoint(_classes_in(folder / "test")):
        kept_out.append("test/")
        test_part = _class_folders(folder, "test", classes=classes) if tested is None else None
    if tested is not None and tested.is_file():
        test_part = _rows_part(folder, tested, classes, names)
    elif tested is not None:
        prefix = _prefix_inside(tested, folder)
        if prefix == "":
            raise UserError(f"--test {tested}: is DATA itself; give a folder of other images.")
        kept_out += [prefix] if prefix is not None else []
        test_part = _class_folders(tested, classes=classes)
    held = {name for name in names if name.startswith(tuple(kept_out))} if kept_out else set()
    if test_part is not None and test_part.root == folder:
        held.update(test_part.names)
    pool = [name for name in names if name not in held] if held else names
    labels = np.full(len(pool), -1, np.int64)
    for i, k in _place_rows(rows, file, folder, pool, classes, held).items():
        labels[i] = k
    where = {k: f"{file}, class {name!r}" for k, name in enumerate(classes)}
    return classes, _Part(folder, pool, labels, where, besides), test_part


def _rows_part(folder: Path, file: Path, classes: Sequence[str], names: list[str] | None = None) -> _Part:
    """The images of ``folder`` that a file of labels has a row for, to test on."""
    names = find_images(folder) if names is None else names
    found = _place_rows(_read_rows(file), file, folder, names, classes)
    where = {k: f"{file}, class {name!r}" for k, name in enumerate(classes)}
    order = sorted(found)
    return _Part(folder, [names[i] for i in order], np.array([found[i] for i in order], np.int64), where)


def _place_rows(
    rows: Sequence[tuple[int, str, str]],
    file: Path,
    folder: Path,
    names: Sequence[str],
    classes: Sequence[str],
    held: Collection[str] = (),
) -> dict[int, int]:
    """The class of each image in ``names`` that has a row, both by position."""
    row_paths = _RowPaths(folder, file.parent, {name: i for i, name in enumerate(names)}, held)
    class_position = {composed(name): k for k, name in enumerate(classes)}
    line_of: dict[int, int] = {}
    found: dict[int, int] = {}
    for line, path, label in rows:
        try:
            i = row_paths.find(path)
        except UserError as error:
            raise UserError(f"{file}, line {line}: {error}") from None
        if i in line_of:
            raise UserError(
                f"{file}, line {line}: {names[i]!r} has a row already, line {line_of[i]}; keep one of them."
            )
        if label not in class_position:
            raise UserError(f"{file}, line {line}: the label {label!r} is {_no_class(label, classes)}")
        line_of[i], found[i] = line, class_position[label]
    return found


def _read_rows(file: Path) -> list[tuple[int, str, str]]:
    """``(line, path, label)`` for every row of a label file."""
    rows: list[tuple[int, str, str]] = []
    try:
        with open(file, encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle)
            header = [column.strip().lower() for column in next(reader, [])]
            missing = [column for column in ("path", "label") if column not in header]
            if missing:
                found = ", ".join(header) or "nothing"
                raise UserError(
                    f"{file}: no column {' and no column '.join(missing)} in the first line (found {found}); "
                    "it must begin with 'path,label'."
                )
            twice = next((column for column in ("path", "label") if header.count(column) > 1), None)
            if twice is not None:
                raise UserError(f"{file}: {header.count(twice)} columns are called {twice!r}; keep one of them.")
            path_column, label_column = header.index("path"), header.index("label")
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                path = row[path_column].strip() if path_column < len(row) else ""
                label = composed(row[label_column].strip()) if label_column < len(row) else ""
                if not path:
                    raise UserError(f"{file}, line {reader.line_num}: no path; each row needs a path and a label.")
                if not label or label == "-1":
                    found = "the label -1" if label else "no label"
                    raise UserError(
                        f"{file}, line {reader.line_num}: {found} for {path!r}; "
                        "give one, or remove the row to leave the image unlabeled."
                    )
                rows.append((reader.line_num, path, label))
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 (byte {error.start}); save it as CSV UTF-8.") from error
    except csv.Error as error:
        raise UserError(f"{file}: not a CSV file ({error}).") from error
    except OSError as error:
        raise UserError(f"--labels {file}: can't be read ({(error.strerror or str(error)).lower()}).") from error
    if not rows:
        raise UserError(f"{file}: no rows below the header; add one row (path,label) a labeled image.")
    return rows


class _RowPaths:
    """Finds the image that a row of a label file means."""

    def __init__(self, folder: Path, csv_folder: Path, position: Mapping[str, int], held: Collection[str]) -> None:
        self.folder = folder
        self.csv_folder = csv_folder
        self.position = position
        self.held = held

    @cached_property
    def alike(self) -> dict[str, str]:
        """Names of images and of held-out ones, by what they are but for how accents are written."""
        return {composed(name): name for name in (*self.held, *self.position)}

    def find(self, path: str) -> int:
        text = path.replace("\\", "/")
        readings = [name for spelling in dict.fromkeys((path, text)) for name in self._readings(spelling)]
        for name in readings:
            if name in self.position:
                return self.position[name]
        alike = [self.alike[composed(name)] for name in readings if composed(name) in self.alike]
        for name in alike:
            if name in self.position:
                return self.position[name]
        if alike:
            raise UserError(f"{path!r} belongs to the test set; remove the row.")
        for base in (self.folder, self.csv_folder):
            place = base / text
            if os.path.exists(place):
                if _relative_name(place, self.folder) is None:
                    raise UserError(f"{path!r} lies outside DATA ({self.folder}).")
                raise UserError(f"{path!r} is not an image that is read here ({_suffixes()}).")
        raise UserError(f"no image {path!r} under {self.folder}.{self._suggestion(text)}")

    def _readings(self, text: str) -> list[str]:
        """Names under DATA that the text may mean, the likeliest first."""
        names: list[str | None] = [text, posixpath.normpath(text)]
        if text not in self.position and names[1] not in self.position:  # the costly ones only where needed
            names += [
                _relative_name(self.folder / text, self.folder),
                _relative_name(self.csv_folder / text, self.folder),
            ]
        return [name for name in names if name is not None]

    def _suggestion(self, text: str) -> str:
        def plain(name: str) -> str:
            return posixpath.splitext(posixpath.basename(name))[0].lower()

        wanted = plain(text)
        same = next((name for name in self.position if plain(name) == wanted), None)
        if same is None:
            beside = posixpath.dirname(text)
            near = [name for name in self.position if posixpath.dirname(name) == beside] or list(self.position)
            close = difflib.get_close_matches(text, near[:5000], n=1, cutoff=0.6)
            same = close[0] if close else None
        return "" if same is None else f" Did you mean {same!r}?"


def _relative_name(path: Path, folder: Path) -> str | None:
    """``path`` as a POSIX path relative to ``folder``; None where it lies elsewhere."""
    for resolve in (os.path.abspath, os.path.realpath):  # as written first: an image may be a link out of the folder
        try:
            return Path(resolve(path)).relative_to(resolve(folder)).as_posix()
        except ValueError:
            continue
    return None


def _prefix_inside(inner: Path, folder: Path) -> str | None:
    """What the names of images in ``inner`` begin with, relative to ``folder``; None where it lies elsewhere."""
    name = _relative_name(inner, folder)
    return None if name is None else "" if name == "." else f"{name}/"


# --- leaving out what can't be read ------------------------------------------------------------------------------


class _Checker:
    """Opens the files of one or more parts and keeps those that can be read."""

    def __init__(self, strict: bool, check: str, progress: Progress | None) -> None:
        if check not in ("full", "header", "none"):
            raise UserError(f"check {check!r}: must be 'full', 'header' or 'none'.")
        self.strict = strict
        self.check = check
        self.progress = progress

    def keep_readable(self, parts: Sequence[_Part], classes: Sequence[str]) -> list[_Kept]:
        total = sum(len(part.names) for part in parts)
        done = 0
        kept: list[_Kept] = []
        for part in parts:
            images = FileImages(part.root, part.names)
            bad = self._check(images, done, total)
            done += len(images)
            if not bad:
                kept.append((images, part.labels, ()))
                continue
            keep = np.ones(len(images), bool)
            keep[[error.index for error in bad if error.index is not None]] = False
            counts = np.bincount(part.labels[keep & (part.labels >= 0)], minlength=len(classes))
            for k, where in part.where.items():
                if not counts[k]:
                    first = next(error for error in bad if part.labels[error.index or 0] == k)
                    raise UserError(f"{where}: no readable image in this class; the first is {first}.")
            inside = part.root == parts[0].root  # a name relative to another folder would say too little
            skipped = tuple(images.names[e.index] if inside else e.path for e in bad if e.index is not None)
            kept.append((images.subset(keep), part.labels[keep], skipped))
        return kept

    def keep_readable_of(self, corpus: Corpus) -> Corpus:
        """The corpus without those pictures of its pool and of its test set that can't be read."""
        test = corpus.test
        total = len(corpus.images) + (0 if test is None else len(test))
        good, names = self.good(corpus.images, 0, total)
        images, labels = corpus.images, corpus.labels
        if names:
            images, labels = images.subset(good), labels[good]
        kept = replace(corpus, images=images, labels=labels, truth=corpus.truth[good], skipped=corpus.skipped + names)
        if test is None or corpus.test_labels is None:
            return kept
        good, names = self.good(test, len(corpus.images), total)
        return _with_test(kept, (test.subset(good) if names else test, corpus.test_labels[good], names))

    def good(self, images: Images, done: int, total: int) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
        bad = [error.index for error in self._check(images, done, total) if error.index is not None]
        good = np.ones(len(images), bool)
        good[bad] = False
        return good, tuple(images.names[i] for i in bad)

    def _check(self, images: Images, done: int, total: int) -> list[UnreadableImage]:
        if self.check == "none":
            return []
        progress = self.progress
        shifted = None if progress is None else (lambda i, _: progress(done + i, total))
        return check_images(images, strict=self.strict, full=self.check == "full", progress=shifted)
