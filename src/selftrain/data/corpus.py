"""Every picture of a problem in one place: the pool, what is known of it, the test set.

Knows nothing of where pictures come from, of splits or of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from selftrain.data.images import Images

Metric = Literal["accuracy", "mean_per_class"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Every picture there is, and what is known of it. Training gets pictures and a split's labels, not this."""

    name: str
    """The folder's or the dataset's name."""
    classes: tuple[str, ...]
    """Class names, sorted (integer labels by value) or in a dataset's own order; a label is a position in it."""
    images: Images
    """The training pool: labeled and unlabeled pictures."""
    labels: NDArray[np.int64]
    """What training may know, one a picture; -1 is unlabeled. In a benchmark all of them: a split must hide most."""
    truth: NDArray[np.int64]
    """The true class where it is known, else -1. For observers only."""
    test: Images | None = None
    """The test set, where there is one."""
    test_labels: NDArray[np.int64] | None = None
    """Its classes."""
    flip: bool = True
    """Whether a mirrored picture keeps its meaning (not so for digits)."""
    skipped: tuple[str, ...] = ()
    """Names of files that were left out because they can't be read."""
    remarks: tuple[str, ...] = ()
    """What the user should know of files that were not even tried."""
    is_benchmark: bool = False
    """Whether ``labels`` holds labels that training must not see (layout 2, named datasets)."""
    metric: Metric = "accuracy"
    """The measure that is reported of it: the share of all test pictures, or the mean over classes."""

    def __post_init__(self) -> None:
        for field, images in (("labels", self.images), ("truth", self.images), ("test_labels", self.test)):
            values = getattr(self, field)
            if values is None and images is None:
                continue
            if values is None or images is None or np.shape(values) != (len(images),):
                raise ValueError(f"{field} must hold one class a picture")
            values = np.array(values, dtype=np.int64)
            if len(values) and not (values.min() >= -1 and values.max() < len(self.classes)):
                raise ValueError(f"{field} must be positions in the {len(self.classes)} classes, or -1")
            object.__setattr__(self, field, values)

    def __repr__(self) -> str:
        known = int((self.labels >= 0).sum())
        counts = f"{len(self.classes)} classes, {len(self.images)} images, {known} labels"
        return f"Corpus({self.name!r}, {counts}, test {'none' if self.test is None else len(self.test)})"
