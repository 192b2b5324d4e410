"""Image files with their classes before any is opened, and the check that leaves out the unreadable ones.

Knows nothing of layouts or label files: it is given names and classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selftrain.data.cache_folder import cache_root
from selftrain.data.corpus import Corpus
from selftrain.data.images import FileImages, Images, SearchNotes, UnreadableImage, check_images
from selftrain.data.images.memory import Memory
from selftrain.errors import UserError

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class FilePart:
    """Names of image files under one root with their classes, before any file is opened."""

    root: Path
    names: list[str]
    labels: NDArray[np.int64]
    where: Mapping[int, str]
    """Where the user finds each class: its folder, or its name in the label file."""
    notes: SearchNotes = field(default_factory=SearchNotes)


class Readable(NamedTuple):
    """Images that can be read, their classes, and the names of those left out."""

    images: Images
    labels: NDArray[np.int64]
    skipped: tuple[str, ...]


def corpus_of_files(
    folder: Path,
    classes: tuple[str, ...],
    pool: FilePart,
    test: FilePart | None,
    checker: Checker,
    *,
    is_benchmark: bool,
    classes_from: Path,
) -> Corpus:
    """Return the readable images of a folder as a corpus; test images never stay in the pool.

    ``classes_from`` is the folder or label file that an error about the number of classes names.
    """
    if len(classes) < 2:
        raise UserError(f"{classes_from}: only one class ({classes[0]}); at least two classes are needed.")
    pool = without_test_images(pool, {} if test is None else real_paths(test.root, test.names))
    parts = checker.keep_readable([pool] if test is None else [pool, test], classes)
    images, labels, skipped = parts[0]
    remarks = dict.fromkeys(part.notes.remark for part in (pool, test) if part is not None)
    corpus = Corpus(
        name=folder.resolve().name,
        classes=classes,
        images=images,
        labels=labels,
        truth=labels,
        skipped=skipped,
        remarks=tuple(remark for remark in remarks if remark),
        is_benchmark=is_benchmark,
    )
    return corpus if test is None else corpus.with_test(*parts[1])


def real_paths(root: str | os.PathLike[str], names: Iterable[str]) -> dict[str, str]:
    """Map the real path of each file, with links resolved, to its path as given."""
    return {os.path.realpath(path): path for path in (os.path.join(root, name) for name in names)}


def without_test_images(pool: FilePart, tested: Mapping[str, str]) -> FilePart:
    """Return the pool without test images and without unlabeled duplicates, also when links lead to them.

    ``tested`` is the result of ``real_paths`` for the test set. A labeled image that is also a test image is an error.
    """
    root = os.path.realpath(pool.root) + os.sep
    inside = {path[len(root) :] for path in tested if path.startswith(root)}
    linked, kept, seen = pool.notes.linked, np.ones(len(pool.names), bool), set(tested)
    if not inside and not linked:
        return pool
    not_linked = set(pool.names) - linked if linked else set()
    for i in np.argsort(pool.labels < 0, kind="stable").tolist():  # labeled images first: of duplicates, they stay
        name = pool.names[i]
        if name not in linked and name not in inside:
            continue
        path = os.path.realpath(pool.root / name) if name in linked else root + name
        if path in tested and pool.labels[i] >= 0:
            raise UserError(
                f"{pool.root / name}: is a labeled training image and also a test image ({tested[path]}). "
                f"Remove one of them."
            )
        duplicate = path in seen or (name in linked and path.startswith(root) and path[len(root) :] in not_linked)
        kept[i] = pool.labels[i] >= 0 or not duplicate
        seen.add(path)
    names = [name for name, stays in zip(pool.names, kept.tolist(), strict=True) if stays]
    return replace(pool, names=names, labels=pool.labels[kept])


def relative_name(path: Path, folder: Path) -> str | None:
    """Return ``path`` as a POSIX path relative to ``folder``; None if it lies elsewhere."""
    for resolve in (os.path.abspath, os.path.realpath):  # as written first: an image may be a link out of the folder
        try:
            return Path(resolve(path)).relative_to(resolve(folder)).as_posix()
        except ValueError:
            continue
    return None


def prefix_inside(inner: Path, folder: Path) -> str | None:
    """Return the prefix that names of images in ``inner`` have relative to ``folder``; None if it lies elsewhere."""
    name = relative_name(inner, folder)
    return None if name is None else "" if name == "." else f"{name}/"


@dataclass(frozen=True)
class Checker:
    """Opens images and keeps those that can be read."""

    strict: bool = False
    """stop at the first unreadable image instead of leaving it out"""
    check: str = "full"
    """``"full"`` decodes every file once, ``"header"`` reads only headers, ``"none"`` trusts the files"""
    progress: Progress | None = None
    """called as ``progress(done, total)``"""
    cache: str | None = None
    """folder of what is known from earlier runs; None: the user's"""

    def __post_init__(self) -> None:
        if self.check not in ("full", "header", "none"):
            raise UserError(f"`data.check={self.check}`: must be 'full', 'header' or 'none'.")

    def keep_readable(self, parts: Sequence[FilePart], classes: Sequence[str]) -> list[Readable]:
        """Return the readable images of each part; an error if a class of a part has none left."""
        total = sum(len(part.names) for part in parts)
        done = 0
        kept: list[Readable] = []
        for part in parts:
            images = FileImages(part.root, part.names)
            bad = self._unreadable(images, done, total)
            done += len(images)
            if not bad:
                kept.append(Readable(images, part.labels, ()))
                continue
            keep = np.ones(len(images), bool)
            keep[[error.index for error in bad if error.index is not None]] = False
            counts = np.bincount(part.labels[keep & (part.labels >= 0)], minlength=len(classes))
            for k, where in part.where.items():
                if not counts[k]:
                    first = next(error for error in bad if part.labels[error.index or 0] == k)
                    raise UserError(f"{where}: this class has no readable image; the first error is {first}.")
            inside = part.root == parts[0].root  # a name relative to another folder would be ambiguous
            skipped = tuple(images.names[e.index] if inside else e.path for e in bad if e.index is not None)
            kept.append(Readable(images.subset(keep), part.labels[keep], skipped))
        return kept

    def keep_readable_of(self, corpus: Corpus) -> Corpus:
        """Return the corpus without the unreadable images of its pool and of its test set."""
        test = corpus.test
        total = len(corpus.images) + (0 if test is None else len(test))
        readable, names = self.readable(corpus.images, 0, total)
        images, labels = corpus.images, corpus.labels
        if names:
            images, labels = images.subset(readable), labels[readable]
        truth, skipped = corpus.truth[readable], corpus.skipped + names
        kept = replace(corpus, images=images, labels=labels, truth=truth, skipped=skipped, junk=corpus.junk[readable])
        if test is None or corpus.test_labels is None:
            return kept
        readable, names = self.readable(test, len(corpus.images), total)
        return kept.with_test(test.subset(readable) if names else test, corpus.test_labels[readable], names)

    def readable(self, images: Images, done: int, total: int) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
        """Return which images can be read, as a mask, and the names of the others."""
        bad = [error.index for error in self._unreadable(images, done, total) if error.index is not None]
        good = np.ones(len(images), bool)
        good[bad] = False
        return good, tuple(images.names[i] for i in bad)

    def _unreadable(self, images: Images, done: int, total: int) -> list[UnreadableImage]:
        if self.check == "none":
            return []
        progress = self.progress
        shifted = None if progress is None else (lambda i, _: progress(done + i, total))
        memory = Memory(cache_root(self.cache))
        return check_images(images, strict=self.strict, full=self.check == "full", progress=shifted, memory=memory)
