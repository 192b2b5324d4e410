"""All images that are checked, with their part (labeled, unlabeled or test), label, features and thumbnails.

Knows nothing of what is wrong with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.config.settings import Settings
from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.corpus import Corpus
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.features.thumbnails import thumbnails
from selftrain.data.images import Images, JoinedImages
from selftrain.errors import UserError
from selftrain.runs.extractor import Extractor
from selftrain.runs.network_inputs import make_extractor
from selftrain.runs.problem import choose_split, read_corpus

Part = Literal["labeled", "unlabeled", "test"]
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Pool:
    """Images of all parts, one after the other: those of training, then those of the test set."""

    images: Images
    parts: tuple[Part, ...]
    labels: NDArray[np.int64]
    """positions in ``classes``; -1 without a label. Test images keep theirs."""
    classes: tuple[str, ...]
    skipped: tuple[str, ...]
    """names of files that cannot be read"""
    settings: Settings
    reporter: Reporter
    name: str = ""

    def __len__(self) -> int:
        return len(self.parts)

    @cached_property
    def labeled(self) -> NDArray[np.int64]:
        """The rows of the labeled images of training."""
        return np.array([i for i, part in enumerate(self.parts) if part == "labeled"], np.int64)

    @cached_property
    def trained(self) -> NDArray[np.int64]:
        """The rows of all images of training."""
        return np.array([i for i, part in enumerate(self.parts) if part != "test"], np.int64)

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """(n, d) clean features of the frozen backbone, from the cache if they are there."""
        return _features(self.extractor, self.images, "clean")

    @cached_property
    def thumbnails(self) -> NDArray[np.uint8]:
        """(n, 768) colours of tiny copies."""
        return thumbnails(self.images, cache_root(self.settings.data.cache), self.reporter, detail=8)

    @cached_property
    def extractor(self) -> Extractor:
        return make_extractor(self.settings, None, torch.device("cpu"), self.reporter)

    def mirrored(self, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the features of some images and of their mirror images, both of one crop."""
        pair = np.asarray(self.extractor.features(self.images.subset(rows), ("clean", "mirrored")))
        return pair[:, 0], pair[:, 1]


def _features(extractor: Extractor, images: Images, view: str) -> NDArray[np.float32]:
    found = extractor.features(images, (view,))
    return np.concatenate([batch.numpy() for batch in feature_batches(found, 4096)])


def read_pool(settings: Settings, reporter: Reporter) -> Pool:
    """Read the data that the settings name as a run would, and return all its images."""
    corpus: Corpus = read_corpus(settings, None, None, reporter)
    if isinstance(corpus.images, FeatureRows):
        raise UserError("`data`: features have no pixels to check; give images.")
    split = choose_split(settings, corpus, reporter, hashed=False)
    labels = np.full(len(corpus.images), -1, np.int64)
    labels[split.labeled] = split.labels
    parts: list[Part] = ["labeled" if k >= 0 else "unlabeled" for k in labels]
    images, used = corpus.images, np.union1d(split.labeled, split.unlabeled)
    if len(used) < len(images):
        images, labels, parts = images.subset(used), labels[used], [parts[i] for i in used]
    if corpus.test is not None and corpus.test_labels is not None and len(corpus.test):
        names = [*images.names, *(name if name.startswith("test/") else f"test/{name}" for name in corpus.test.names)]
        images = JoinedImages([images, corpus.test], names)
        labels = np.concatenate([labels, corpus.test_labels])
        parts += ["test"] * len(corpus.test)
    return Pool(images, tuple(parts), labels, corpus.classes, corpus.skipped, settings, reporter, corpus.name)
