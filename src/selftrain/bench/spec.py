"""What a bench is: datasets x methods x seeds x settings, as data.

Knows nothing of which benches there are, nor of how one is run or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SHARES = ("accuracy", "mean_per_class", "worst10", "worst20", "worst20_percent", "ece", "pseudo_label_quantity",
          "pseudo_label_quality")  # fmt: skip
"""measures of a run that are shown in percent"""
AMOUNTS = ("imbalance_ratio", "seconds", "steps", "steps_per_second", "labeled", "unlabeled")
"""and those that are shown as they are"""


@dataclass(frozen=True)
class Row:
    """A line of a table: a method, and settings of its own beside those of the bench."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    """what it is called; unset: the method"""
    against: str = ""
    """the row it is compared with; unset: the row called 'supervised', where there is one"""

    @property
    def name(self) -> str:
        return self.label or self.method


@dataclass(frozen=True)
class Variant:
    """The whole table once more with other settings: another pretraining, another amount of labels."""

    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    about: str
    datasets: tuple[str, ...]
    """names of datasets, or of folders of images under --root"""
    rows: tuple[Row, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """shared by all runs; '{root}' in a value stands for --root"""
    draws: Literal["one", "each"] = "one"
    """one draw of the labeled images for all seeds, or another for each seed, other than that of the tables"""
    variants: tuple[Variant, ...] = (Variant(),)
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """settings of one dataset, such as its backbone"""
    paper: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    """the paper's figures in percent, (variant, dataset) -> row -> figure; a dataset need not be one of the bench"""
    measures: tuple[str, ...] = ("worst20_percent",)
    """what is shown beside the accuracy"""

    def baseline(self, row: Row) -> str:
        """The row that this one is compared with, or nothing."""
        known = {other.name for other in self.rows}
        wanted = row.against or "supervised"
        return wanted if wanted in known and wanted != row.name else ""


def rows_of(methods: Iterable[str]) -> tuple[Row, ...]:
    return tuple(Row(method) for method in methods)


def changes(methods: Iterable[str], setting: str, values: Iterable[Any]) -> tuple[Row, ...]:
    """One setting at several values."""
    return tuple(Row(m, {setting: v}, f"{m}, {setting.rpartition('.')[2]} {v}") for m in methods for v in values)


def pairs(bases: Iterable[str]) -> tuple[Row, ...]:
    """Each method and DST around it, which is compared with it."""
    return tuple(row for base in bases for row in (Row(base), Row(f"dst({base})", against=base)))
