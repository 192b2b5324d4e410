"""The problem a run solves: its corpus, its split, and the images it is evaluated on.

Knows nothing of networks or training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selftrain.config.settings import DataSettings, Settings
from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.corpus import Corpus
from selftrain.data.features.thumbnails import thumbnails
from selftrain.data.images import Images
from selftrain.data.pile import Pile
from selftrain.data.source import Source
from selftrain.data.sources.file_parts import Checker
from selftrain.data.sources.junk import add_junk
from selftrain.data.sources.label_file import possible_typos
from selftrain.data.split import Looks, Split, fold_splits, make_split
from selftrain.data.split_file import load_split
from selftrain.errors import UserError
from selftrain.runs.layout import RunLayout
from selftrain.text import listed, plural


@dataclass(frozen=True)
class Problem:
    """Data as a run sees it."""

    corpus: Corpus
    split: Split


@dataclass(frozen=True)
class Evaluated:
    """The labeled images that a run is evaluated on; none if ``on`` is None."""

    on: Literal["test", "validation"] | None = None
    images: Images | None = None
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


def source_of(settings: Settings) -> Source:
    """Return the source of the data that the settings name."""
    return Source.from_settings(settings.data.path, root=settings.data.root, labels=settings.data.labels)


def read_corpus(settings: Settings, arrays: Any, test_arrays: Any, reporter: Reporter) -> Corpus:
    """Return the images and labels that the settings name, or those of the pairs of arrays."""
    data = settings.data
    source = source_of(settings) if arrays is None else Source.parse(arrays)
    test = data.test if test_arrays is None and arrays is None else test_arrays
    source.prepare(check=data.check, strict=data.strict, reporter=reporter)
    if data.unlabeled is not None:
        more = Source.parse(data.unlabeled, argument="unlabeled")
        more.prepare(check=data.check, strict=data.strict, reporter=reporter)
    with reporter.progress("reading images", 1, "images") as bar:
        corpus = source.corpus(
            test=test,
            unlabeled=data.unlabeled,
            strict=data.strict,
            check=data.check,
            progress=bar.reach,
            cache=data.cache,
            features=settings.network.backbone == "features",
        )
    if data.junk:
        with reporter.progress("reading junk", 1, "images") as bar:
            checker = Checker(data.strict, data.check, bar.reach, data.cache)
            corpus = add_junk(corpus, data.junk_from, data.root, checker)
    _warn(corpus, data, reporter)
    return corpus


def _warn(corpus: Corpus, data: DataSettings, reporter: Reporter) -> None:
    for remark in corpus.remarks:
        reporter.warn(remark)
    if corpus.skipped:
        count = plural(len(corpus.skipped), "image")
        reporter.warn(
            f"left out {count} that cannot be read: {listed(corpus.skipped)} (`strict=True` stops at the first)"
        )
    typos = possible_typos(corpus) if data.labels else []
    asked = " ".join(f"Only one image has the label {odd!r}: did you mean {usual!r}?" for odd, usual in typos)
    if asked and not data.keep_odd_labels:
        raise UserError(
            f"{data.labels}: {asked} Correct the file, or add `data.keep_odd_labels=true` if that is meant."
        )
    if asked:
        reporter.warn(f"{data.labels}: {asked}")


def choose_split(
    settings: Settings, corpus: Corpus, reporter: Reporter, resumed: RunLayout | None = None, *, hashed: bool = True
) -> Split:
    """Draw the labeled images as the settings say; a resumed run keeps the split it was started with.

    Without ``hashed``, the split has no hash, which takes long for millions of images and only run folders need.
    """
    if resumed is not None and resumed.split.exists():
        return load_split(resumed.split, corpus)
    if resumed is not None and resumed.checkpoints.is_dir():
        raise UserError(
            f"`resume=True`: {resumed.folder} has no {resumed.split.name}, so it is not known which images were "
            f"labeled. Start a new run."
        )
    data = settings.data
    split = make_split(
        corpus,
        labels_per_class=data.labels_per_class,
        seed=data.split_seed,
        include_labeled=data.include_labeled,
        validation_per_class=data.validation_per_class,
        pile=Pile(data.imbalance, data.label_imbalance, data.imbalance_order, data.junk, data.label_modes),
        looks=None if data.label_modes is None else _looks(data, corpus, reporter),
        say=reporter.say,
        hashed=hashed,
    )
    return split if data.fold is None else _hold_out_fold(data, split, corpus)


def _looks(data: DataSettings, corpus: Corpus, reporter: Reporter) -> Looks:
    """Return a function from images to vectors that are near each other for images that look alike."""
    known = np.flatnonzero(corpus.labels >= 0)
    images = corpus.images if len(known) == len(corpus.images) else corpus.images.subset(known)
    small = thumbnails(images, cache_root(data.cache), reporter)
    row = np.full(len(corpus.images), -1, np.int64)
    row[known] = np.arange(len(known))
    return lambda indices: small[row[indices]].astype(np.float32)


def _hold_out_fold(data: DataSettings, split: Split, corpus: Corpus) -> Split:
    """Return the split with one of several folds of its labels held out: ``data.fold=1/5`` is the first of five."""
    match = re.fullmatch(r"(\d+)/(\d+)", str(data.fold))
    number, folds = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= folds:
        raise UserError(f"data.fold={data.fold}: expected a fold such as 1/5, the first of five.")
    if data.validation_per_class:
        raise UserError(f"data.fold={data.fold}: conflicts with data.validation_per_class. The fold is held out.")
    return fold_splits(split, corpus, folds)[number - 1]


def evaluated_images(settings: Settings, corpus: Corpus, split: Split) -> Evaluated:
    """Return the test set, else the held-out labels, else nothing; ``data.evaluate_on`` insists on one of them."""
    asked = settings.data.evaluate_on
    if corpus.test is not None and corpus.test_labels is not None and asked != "validation":
        return Evaluated("test", corpus.test, corpus.test_labels)
    if len(split.validation) and asked != "test":
        return Evaluated("validation", corpus.images.subset(split.validation), split.validation_labels)
    if asked is not None:
        missing = "a test set (`test`)" if asked == "test" else "held-out labels (`data.validation_per_class=1`)"
        raise UserError(f"data.evaluate_on={asked}: there is nothing to evaluate on. It needs {missing}.")
    return Evaluated()
