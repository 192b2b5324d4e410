"""``Source``: the one place that decides what DATA means, and gives a corpus, images or a test set from it.

Knows nothing of splits, views, methods or training. How each kind of data is read is up to ``selftrain.data.sources``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.features.feature_file import is_feature_path
from selftrain.data.images import FileImages, Images
from selftrain.data.sources.arrays import corpus_of_pairs, every_label, images_of_array, is_pair, numeric_pair
from selftrain.data.sources.class_names import positions
from selftrain.data.sources.feature_files import are_integers, feature_rows, feature_test_set, load_features
from selftrain.data.sources.file_parts import Checker, Progress, Readable
from selftrain.data.sources.folders import (
    add_unlabeled_folder,
    class_folders,
    evaluation_part,
    has_layout,
    images_in,
    load_folder,
    subfolders,
)
from selftrain.data.sources.hub import HubName, hub_images, is_hub, load_hub, open_hub
from selftrain.data.sources.label_file import load_labeled_tree, rows_part
from selftrain.data.sources.named import DATASETS, DatasetSpec
from selftrain.data.sources.parquet import is_parquet, parquet_images
from selftrain.data.sources.shards import find_shards, index_shards, is_shards, load_shards, read_shards, shard_images
from selftrain.data.sources.urls import UrlImages, is_url
from selftrain.errors import UserError, nearest

__all__ = ["ARRAYS", "Kind", "Source"]

AnyPath = str | os.PathLike[str]
Argument = Literal["data", "images", "unlabeled"]
Kind = Literal["folder", "dataset", "hub", "shards", "features", "file", "files", "arrays", "parquet", "url", "missing"]

ARRAYS = "arrays"
"""The word that stands for arrays in the settings of a run trained on them."""


@dataclass(frozen=True, eq=False)
class Source:
    """DATA as the user gives it, with the two arguments that its meaning depends on. ``parse`` makes one.

    Text is understood in this order:

    1. the name of a dataset (see ``DATASETS``), unless a folder of that name, here or in ``root``, is in layout 1 or 2;
    2. a file or folder of features, or a folder;
    3. ``hf:`` and the name of a dataset on Hugging Face;
    4. a pattern of tar files;
    5. the name of a folder inside ``root``.

    With ``labels`` a folder comes first: any tree will do.
    """

    data: Any
    """Text; a pair of arrays (x, y); or, as images, an array, several paths or ``Images``."""
    root: str | None = None
    """The folder that contains datasets."""
    labels: Any = None
    """The path of a CSV file with the columns path and label; or, to evaluate, one label per image."""
    argument: Argument = "data"
    """The argument that this is the value of. Only ``data`` may be the name of a dataset."""

    @classmethod
    def parse(
        cls, data: Any, *, root: AnyPath | None = None, labels: Any = None, argument: Argument = "data"
    ) -> Source:
        """Return the source that an argument of ``train``, ``predict`` or ``evaluate`` stands for."""
        root = None if root is None else os.fspath(root)
        if isinstance(data, (str, os.PathLike)):
            return cls(os.fspath(data), root, labels, argument)
        if argument == "images" or (labels is not None and not isinstance(labels, (str, os.PathLike))):
            return cls(data, root, labels, argument)
        if argument != "data" or not is_pair(data):
            raise UserError(
                f"`{argument}`: expected a folder, a name, or a pair of arrays (x, y) with one label per row of x (-1 "
                f"is unlabeled); got {type(data).__name__} alone."
            )
        if labels is not None:
            raise UserError("`labels`: `data` is a pair of arrays (x, y), whose labels are in y.")
        return cls(numeric_pair(data, argument), root)

    @classmethod
    def from_settings(cls, path: str | None, *, root: AnyPath | None = None, labels: AnyPath | None = None) -> Source:
        """Return the source that ``data.path``, ``data.root`` and ``data.labels`` stand for.

        The word "arrays" gives a source that knows its kind but has no images.
        """
        root = None if root is None else os.fspath(root)
        return cls(None if path == ARRAYS else path or "", root, labels)

    @classmethod
    def below(cls, root: AnyPath | None, name: str) -> Source:
        """Return the source that a bench calls ``name``: a folder in ``root``, or something that needs no folder."""
        if root is not None and os.path.isdir(Path(root, name)) and not _names_dataset(name, root):
            return cls.parse(Path(root, name))
        if name in DATASETS or is_hub(name) or is_shards(name):
            return cls.parse(name, root=root)
        where = f"in {root}" if root is not None else "(pass the folder that contains it as `root`)"
        raise UserError(
            f"dataset {name}: there is no such folder {where}, and no dataset of that name.{nearest(name, DATASETS)}"
        )

    @property
    def kind(self) -> Kind:
        """What this is, as far as the file system tells without opening a file."""
        if not isinstance(self.data, str):
            return "files" if self.argument == "images" and _are_paths(self.data) else "arrays"
        text = self.data
        if self.argument == "images" and (is_parquet(text) or is_url(text)):
            return "parquet" if is_parquet(text) else "url"
        as_tree = self.labels is not None and os.path.isdir(text)
        if self.argument == "data" and _names_dataset(text, self.root) and not as_tree:
            return "dataset"
        if is_feature_path(text) and not (os.path.isdir(text) and has_layout(Path(text))):
            return "features"
        if self._folder() is not None:
            return "folder"
        if is_hub(text):
            return "hub"
        if is_shards(text):
            return "shards"
        return "file" if os.path.exists(text) else "missing"

    @property
    def spec(self) -> DatasetSpec | None:
        """The row of the dataset table, for the name of a dataset: its regime, defaults and metric."""
        return DATASETS[self.data] if self.kind == "dataset" else None

    @property
    def is_features(self) -> bool:
        """Whether this is a file of features, or a pair of arrays whose x holds one feature vector per row."""
        return self.kind == "features" or (isinstance(self.data, tuple) and np.ndim(self.data[0]) == 2)

    def _folder(self) -> Path | None:
        text = self.data
        hidden = self.argument == "data" and text in DATASETS and self.labels is None  # by the dataset of that name
        if os.path.isdir(text) and not (hidden and not has_layout(Path(text))):
            return Path(text)
        if self.root is None or not text or is_hub(text) or is_shards(text):
            return None
        return Path(self.root, text) if os.path.isdir(Path(self.root, text)) else None

    def absolute(self) -> str:
        """Return this as text that means the same from any working directory; "arrays" for arrays."""
        kind = self.kind
        if kind == "arrays":
            return ARRAYS
        text = str(self.data)
        if kind == "hub":
            return HubName.parse(text).absolute()
        if kind == "shards":
            return os.path.abspath(text)
        is_path = kind in ("file", "features") or self._folder() == Path(text)
        return str(Path(text).resolve()) if is_path else text

    def prepare(self, *, check: str = "full", strict: bool = False, reporter: Reporter) -> None:
        """Do the slow work whose result stays on disk, and report it: download a dataset, index shards."""
        kind = self.kind
        if kind == "hub":
            open_hub(HubName.parse(self.data))
        elif kind == "shards":
            index_shards(find_shards(self.data), check=check, strict=strict, reporter=reporter)
        elif kind == "dataset":
            DATASETS[self.data].make_ready(self.root, reporter)

    def corpus(
        self,
        *,
        test: Any = None,
        unlabeled: AnyPath | None = None,
        strict: bool = False,
        check: str = "full",
        progress: Progress | None = None,
        cache: str | None = None,
        features: bool = False,
    ) -> Corpus:
        """Find, check and sort the images to train on.

        A folder has one of three layouts; images nested deeper in a class folder belong to that class:

        1. ``labeled/<class>/*``, ``unlabeled/**`` and optionally ``test/<class>/*``;
        2. ``train/<class>/*`` and optionally ``test/<class>/*``: a benchmark, whose labels are all known and to be
           hidden;
        3. with ``labels``, any tree: images without a row in the file are unlabeled. Folder names have no meaning then
           (including ``labeled/`` and ``train/``), with one exception: a top-level ``test`` folder with at least one
           subfolder named like a class is the test set and is excluded from the pool.

        Parameters
        ----------
        test
            The test set, instead of the data's own: a folder of class folders; with ``labels``, also a second CSV
            file; with arrays, a pair of arrays; with a file of features, another one or a CSV file. Test images
            that lie inside the data are excluded from the pool.
        unlabeled
            More unlabeled images: a folder (any tree), a pattern of tar files, or ``hf:...``. Their labels, if any, are
            ignored.
        strict
            Stop at the first unreadable image, instead of leaving it out (``Corpus.skipped``).
        check
            ``"full"`` decodes every file once, ``"header"`` reads only headers, ``"none"`` trusts the files.
        progress
            Called as ``progress(done, total)`` while files are checked.
        cache
            The folder of what is known from earlier runs; None is the user's.
        features
            With arrays: x holds features, not images.
        """
        checker = Checker(strict, check, progress, cache)
        if self.kind == "arrays":
            return self._corpus_of_arrays(test, unlabeled, features)
        if self.kind == "features":
            return load_features(Path(self.data), self.labels, test, unlabeled)
        if self.kind in ("file", "missing"):
            self._raise_not_found()
        tested = _test_path(test, self.labels)
        folder = self._folder() if self.kind == "folder" else None
        if folder is None and self.labels is not None:
            raise UserError(self._no_labels())
        if folder is not None and self.labels is not None:
            corpus = load_labeled_tree(folder, Path(self.labels), tested, checker)
        elif folder is not None:
            corpus = load_folder(folder, tested, checker)
        else:
            corpus = self._corpus_without_folder(checker)
            if tested is not None:
                part = class_folders(tested, classes=corpus.classes)
                corpus = corpus.with_test(*checker.keep_readable([part], corpus.classes)[0])
        if unlabeled is None:
            return corpus
        return Source.parse(unlabeled, argument="unlabeled")._added_to(corpus, checker)

    def _corpus_of_arrays(self, test: Any, unlabeled: AnyPath | None, features: bool) -> Corpus:
        if self.data is None:
            raise UserError("`data`: this run was trained on arrays: pass them again, as selftrain.train((x, y), ...).")
        if test is not None and not is_pair(test):
            raise UserError("`test`: `data` is a pair of arrays (x, y), so the test set must also be a pair of arrays.")
        if unlabeled is not None:
            raise UserError("`unlabeled`: with arrays (x, y), put unlabeled images into x and set their y to -1.")
        pair = None if test is None else numeric_pair(test, "test")
        corpus = corpus_of_pairs(self.data, pair, features=features)
        return replace(corpus, integer_classes=are_integers(self.data[1]))

    def _corpus_without_folder(self, checker: Checker) -> Corpus:
        kind, text = self.kind, str(self.data)
        if kind == "dataset":
            return DATASETS[text].load(self.root)
        if kind == "hub":
            return checker.keep_readable_of(load_hub(text))
        if kind == "shards":
            return load_shards(text, check=checker.check, strict=checker.strict)
        self._raise_not_found()

    def _no_labels(self) -> str:
        return f"`labels` {self.labels}: only a folder of images can have a label file, not {self.data!r}."

    def _raise_not_found(self) -> NoReturn:
        text, root = str(self.data), self.root
        if root is not None and not os.path.isdir(root):
            raise UserError(f"`root` {root}: there is no such folder; it must contain the folders of the datasets.")
        if os.path.exists(text):
            raise UserError(
                f"`data` {text!r}: is a file; give a folder of images, tar files, features (.npz), or the name of a "
                f"dataset ('selftrain list datasets')."
            )
        if text.endswith((".npz", ".npy")):
            raise UserError(f"`data` {text!r}: there is no such file.")
        where = "the folder does not exist" if root is None else f"the folder does not exist, here or in {root}"
        known = [*DATASETS, *([] if root is None else subfolders(Path(root)))]
        raise UserError(
            f"`data` {text!r}: {where}, and there is no dataset of that name ('selftrain list datasets')."
            f"{nearest(text, known)}"
        )

    def _added_to(self, corpus: Corpus, checker: Checker) -> Corpus:
        """Return the corpus with these images as more unlabeled ones."""
        kind, text = self.kind, str(self.data)
        if kind == "shards":
            images, _, skipped = read_shards(text, check=checker.check, strict=checker.strict)
            return corpus.with_unlabeled(images, skipped)
        if kind == "hub":
            rows = hub_images(text)
            readable, skipped = checker.readable(rows, 0, len(rows))
            return corpus.with_unlabeled(rows.subset(readable) if skipped else rows, skipped)
        if kind != "folder":
            raise UserError(
                f"`unlabeled` {text}: there is no such folder; give a folder of images, tar files "
                f"('shards/{{000..099}}.tar'), or hf:NAME."
            )
        return add_unlabeled_folder(corpus, Path(text), checker)

    def images(self, *, features: int = 0, reporter: Reporter | None = None) -> Images:
        """Return images to predict; for a model trained on features, rows of ``features`` numbers."""
        if isinstance(self.data, Images):
            return self.data
        if features:
            return feature_rows(self.data, features)
        kind = self.kind
        if kind == "files":
            return FileImages("", [str(name) for name in self.data])
        if kind == "arrays":
            return images_of_array(self.data)
        text, path = str(self.data), Path(self.data)
        if not text:
            raise UserError("`images` is empty: give a folder, an image, tar files ('shards/*.tar'), or hf:NAME.")
        if kind == "shards":
            return shard_images(text)
        if kind in ("hub", "parquet", "url"):
            return {"hub": hub_images, "parquet": parquet_images, "url": UrlImages.below}[kind](text)
        if kind == "features":
            raise UserError(f"{path}: these are features, but this needs images.")
        if path.is_file():
            return FileImages(path.parent, [path.name])
        if kind != "folder":
            raise UserError(
                f"{path}: there is no such folder or image; give a folder, an image, tar files ('shards/*.tar'), "
                f"Parquet files, a URL, or hf:NAME."
            )
        return images_in(path, Reporter(quiet=True) if reporter is None else reporter)

    def test_set(
        self,
        classes: Sequence[str],
        *,
        strict: bool = False,
        check: str = "full",
        progress: Progress | None = None,
        features: int = 0,
    ) -> Readable:
        """Return labeled images to evaluate on, with their positions in ``classes`` (those of a model).

        These are the images of ``test/<class>/*``, of class folders, of a dataset's test set, or those that
        ``labels``, a CSV file, has a row for; or images with one label each. Parameters are as in ``corpus`` and
        ``images``.
        """
        if self.labels is not None and not isinstance(self.labels, (str, os.PathLike)):
            images = Source.parse(self.data, argument="images").images(features=features)
            values = every_label(self.labels, len(images), "labels")
            return Readable(images, positions([str(value) for value in values], classes, "labels"), ())
        if isinstance(self.data, tuple):
            return Source(self.data[0], labels=self.data[1]).test_set(classes, features=features)
        if self.kind == "features" and features:
            labels = None if self.labels is None else Path(self.labels)
            return feature_test_set(Path(self.data), labels, classes, features)
        checker = Checker(strict, check, progress)
        if self.labels is not None:
            if not os.path.isdir(self.data):
                raise UserError(self._no_labels())
            return checker.keep_readable([rows_part(Path(self.data), Path(self.labels), classes)], classes)[0]
        folder = self._folder() if self.kind == "folder" else None
        if folder is not None:
            return checker.keep_readable([evaluation_part(folder, classes)], classes)[0]
        return self._test_set_of(self._corpus_without_folder(checker), classes)

    def _test_set_of(self, corpus: Corpus, classes: Sequence[str]) -> Readable:
        kind, text = self.kind, str(self.data)
        test, labels = corpus.test, corpus.test_labels
        if kind == "shards" or (kind == "hub" and HubName.parse(text).split):  # the user asked for exactly these images
            test, labels = corpus.images, corpus.labels
        if test is None or labels is None:
            raise UserError(f"{text}: this dataset has no test set.")
        if (labels < 0).any():
            raise UserError(f"{text}: {int((labels < 0).sum())} of {len(test)} images have no label to compare with.")
        return Readable(test, positions([corpus.classes[k] for k in labels.tolist()], classes, text), corpus.skipped)


def _names_dataset(text: str, root: AnyPath | None) -> bool:
    """Return whether text is the name of a dataset; a folder of that name wins only if it is in layout 1 or 2."""
    places = [Path(text)] if root is None else [Path(text), Path(root, text)]
    return text in DATASETS and not any(has_layout(place) for place in places)


def _are_paths(data: Any) -> bool:
    return isinstance(data, Sequence) and bool(data) and all(isinstance(name, (str, os.PathLike)) for name in data)


def _test_path(test: Any, labels: Any) -> Path | None:
    if test is None:
        return None
    if is_pair(test):
        raise UserError("`test`: a pair of arrays is possible only if `data` is a pair of arrays.")
    path = Path(test)
    if path.is_dir():
        return path
    if not path.is_file():
        raise UserError(f"`test` {path}: there is no such folder; it must contain one folder per class.")
    if labels is None:
        raise UserError(f"`test` {path}: a file is possible only with `labels`; give a folder of class folders.")
    return path
