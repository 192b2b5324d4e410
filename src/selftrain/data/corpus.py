"""All images of a classification problem in one place: the training pool, its known labels and the test set.

Knows nothing of where images come from, of splits or of training.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from selftrain.data.images import Images, JoinedImages

Metric = Literal["accuracy", "mean_per_class"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """All images and what is known of them. Training never sees this, only images and the labels of a split."""

    name: str
    """The name of the folder or dataset."""
    classes: tuple[str, ...]
    """Class names, sorted (integer labels by value) or in the dataset's own order; a label is a position in it."""
    images: Images
    """The training pool: labeled and unlabeled images."""
    labels: NDArray[np.int64]
    """Labels that training may use, one per image; -1 is unlabeled. In a benchmark all of them: a split hides most."""
    truth: NDArray[np.int64]
    """The true class if known, else -1. For observers only."""
    test: Images | None = None
    """The test set, if there is one."""
    test_labels: NDArray[np.int64] | None = None
    """The class of each test image."""
    flip: bool = True
    """Whether a mirrored image keeps its class (false for digits)."""
    skipped: tuple[str, ...] = ()
    """Names of files that were left out because they cannot be read."""
    remarks: tuple[str, ...] = ()
    """Warnings for the user about files that were ignored."""
    is_benchmark: bool = False
    """Whether ``labels`` holds labels that training must not see (layout 2, named datasets)."""
    metric: Metric = "accuracy"
    """The measure to report: accuracy over all test images, or the mean of the per-class accuracies."""
    integer_classes: bool = False
    """Whether the labels were given as integers; class names are text all the same."""
    junk: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    """Whether each image is known to be of no class; its truth is -1. For observers only."""

    def __post_init__(self) -> None:
        junk = self.junk if len(self.junk) else np.zeros(len(self.images), bool)
        if np.shape(junk) != (len(self.images),):
            raise ValueError("junk must hold one truth value per image")
        object.__setattr__(self, "junk", junk)
        for name, images in (("labels", self.images), ("truth", self.images), ("test_labels", self.test)):
            values = getattr(self, name)
            if values is None and images is None:
                continue
            if values is None or images is None or np.shape(values) != (len(images),):
                raise ValueError(f"{name} must hold one class per image")
            values = np.array(values, dtype=np.int64)
            if len(values) and not (values.min() >= -1 and values.max() < len(self.classes)):
                raise ValueError(f"{name} must be positions in the {len(self.classes)} classes, or -1")
            object.__setattr__(self, name, values)

    def __repr__(self) -> str:
        known = int((self.labels >= 0).sum())
        counts = f"{len(self.classes)} classes, {len(self.images)} images, {known} labels"
        return f"Corpus({self.name!r}, {counts}, test {'none' if self.test is None else len(self.test)})"

    def with_test(self, images: Images, labels: NDArray[np.int64], skipped: tuple[str, ...] = ()) -> Corpus:
        """Return this corpus with another test set; ``skipped`` names its unreadable files."""
        return replace(self, test=images, test_labels=labels, skipped=self.skipped + skipped)

    def with_unlabeled(self, images: Images, skipped: tuple[str, ...] = (), remarks: tuple[str, ...] = ()) -> Corpus:
        """Return this corpus with more unlabeled images in its pool, named ``unlabeled:...``."""
        prefix = "unlabeled:"
        more = tuple(prefix + name for name in skipped)
        return self._joined(images, [prefix + name for name in images.names], more, remarks, junk=False)

    def with_junk(
        self, images: Images, names: list[str], skipped: tuple[str, ...] = (), remarks: tuple[str, ...] = ()
    ) -> Corpus:
        """Return this corpus with more images in its pool that are known to be of no class."""
        return self._joined(images, names, skipped, remarks, junk=True)

    def _joined(
        self, images: Images, names: list[str], skipped: tuple[str, ...], remarks: tuple[str, ...], junk: bool
    ) -> Corpus:
        unknown = np.full(len(images), -1, np.int64)
        return replace(
            self,
            images=JoinedImages([self.images, images], [*self.images.names, *names]),
            labels=np.concatenate([self.labels, unknown]),
            truth=np.concatenate([self.truth, unknown]),
            junk=np.concatenate([self.junk, np.full(len(images), junk)]),
            skipped=self.skipped + skipped,
            remarks=self.remarks + remarks,
        )
