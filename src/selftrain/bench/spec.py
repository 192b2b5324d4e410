"""What a bench is: datasets x methods x seeds x settings, as data.

Knows nothing of which benches there are, nor of how one is run or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from selftrain.methods.spelling import Spelling, parse


@dataclass(frozen=True)
class Row:
    """A row of a table: a method, and settings of its own besides those of the bench."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    """name of the row; unset: the method"""
    against: str = ""
    """row to compare with; unset: the row called 'supervised', if there is one"""

    @property
    def name(self) -> str:
        return self.label or self.method


@dataclass(frozen=True)
class Variant:
    """The whole table once more with other settings: another pretraining, another number of labels."""

    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    about: str
    datasets: tuple[str, ...]
    """names of datasets, or of image folders under the root folder"""
    rows: tuple[Row, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """shared by all runs; '{root}' in a value stands for the root folder"""
    draws: Literal["one", "each"] = "one"
    """one draw of the labeled images for all seeds, or another draw for each seed, which no table uses"""
    variants: tuple[Variant, ...] = (Variant(),)
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """settings of one dataset, such as its backbone"""
    paper: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    """the paper's results in percent, (variant, dataset) -> row -> result; the dataset may be one that is not run"""
    measures: tuple[str, ...] = ("worst20_percent",)
    """columns beside the accuracy"""

    def baseline(self, row: Row) -> str:
        """Return the name of the row that this one is compared with, or an empty string."""
        known = {other.name for other in self.rows}
        wanted = row.against or "supervised"
        return wanted if wanted in known and wanted != row.name else ""


def rows_of(methods: Iterable[str]) -> tuple[Row, ...]:
    """Return one row per method."""
    return tuple(Row(method) for method in methods)


def rows_against_base(methods: Iterable[str]) -> tuple[Row, ...]:
    """Return one row per method; a method that wraps another is compared with that one."""
    return tuple(Row(method, against=base_of(method)) for method in methods)


def pairs(bases: Iterable[str]) -> tuple[Row, ...]:
    """Return two rows per method: the method, and DST around it, which is compared with it."""
    return rows_against_base(method for base in bases for method in (base, f"dst({base})"))


def vary(methods: Iterable[str], setting: str, values: Iterable[Any]) -> tuple[Row, ...]:
    """Return one row per method and value of a setting."""
    return tuple(Row(m, {setting: v}, f"{m}, {setting.rpartition('.')[2]} {v}") for m in methods for v in values)


def base_of(method: str) -> str:
    """Return the name of the method that a method string wraps, or an empty string."""
    base = parse(method).given.get("base")
    return base.name if isinstance(base, Spelling) else ""


def option_of_base(method: str, option: str) -> str:
    """Return the setting for an option of a method or, where it wraps another, of the wrapped one."""
    return f"method.base.{option}" if base_of(method) else f"method.{option}"
