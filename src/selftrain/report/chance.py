"""How much of a measured difference chance explains, and what self-training changed beyond that.

Knows nothing of pages. The top of the page, the table of classes and the advice all ask here, so that they agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from selftrain.report.reference import baseline_of
from selftrain.report.run_data import RunData
from selftrain.runs.model_readme import Z90

WITHOUT_COUNTS = 0.05
"""a change of a class is clear above this, if it is not known how many images it was measured on"""


def margin(a: float, b: float, n: int) -> float:
    """Return the difference of two accuracies on n images that chance explains in 90 of 100 cases.

    One image of either kind is added to each (Agresti and Caffo, 2000), because shares of 0 and 1 of a few images are
    not certain.
    """
    p, q = ((share * n + 1) / (n + 2) for share in (a, b))
    return Z90 * math.sqrt((p * (1 - p) + q * (1 - q)) / (n + 2))


class Change(NamedTuple):
    """The accuracy of a class with the labels alone and with self-training."""

    before: float | None
    after: float | None
    n: int | None
    """images that both were measured on"""

    @property
    def gain(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def images(self) -> int | None:
        """How many more images are right."""
        return None if self.gain is None or not self.n else round(self.gain * self.n)

    @property
    def clear(self) -> bool:
        """Whether the change is larger than chance explains."""
        if self.gain is None or self.before is None or self.after is None:
            return False
        if not self.n:
            return abs(self.gain) > WITHOUT_COUNTS
        return abs(self.gain) > margin(self.before, self.after, self.n)

    @property
    def better(self) -> bool:
        return self.clear and (self.gain or 0) > 0

    @property
    def worse(self) -> bool:
        return self.clear and (self.gain or 0) < 0


def class_changes(run: RunData, others: Sequence[RunData]) -> list[Change] | None:
    """Return the change of each class from the labels alone; None if one of the two is not known."""
    baseline = baseline_of(run, others)
    if baseline is None or run.per_class is None or run.labels_only:
        return None
    support: Sequence[int | None] = run.support or [None] * len(run.classes)
    return [Change(a, b, n) for a, b, n in zip(baseline.per_class, run.per_class, support, strict=True)]
