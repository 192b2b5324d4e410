"""The building blocks of the page: a section, and the blocks it is made of.

Knows nothing of what the sections are about. ``page.html`` has one macro for each kind of block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from selftrain.report.chance import Change
from selftrain.report.charts import Axis, Chart, Series, Table, line_chart
from selftrain.report.examples import Example
from selftrain.report.run_data import PerClass, RunData

SHARE = Axis(low=0.0, high=1.0)
"""the axis of a measure between 0 and 100%"""


@dataclass(frozen=True)
class Note:
    """A sentence that says what a run lacks, and why."""

    kind: ClassVar[str] = "note"
    text: str
    about: str = ""
    """the part of the page that is missing"""


@dataclass(frozen=True)
class Figure:
    kind: ClassVar[str] = "figure"
    id: str
    """unique on the page"""
    title: str
    caption: str
    chart: Chart
    run: int | None = None
    """the run that the figure is about; None for a figure of several runs"""
    legend: str = ""
    """the legend that explains its shapes; see ``legend`` in page.html"""
    table: Table | None = None


@dataclass(frozen=True)
class Comparison:
    """A few sentences about a run, and a small table that supports them."""

    kind: ClassVar[str] = "comparison"
    title: str
    text: str
    table: Table
    run: int


@dataclass(frozen=True)
class ConfusionMatrix:
    kind: ClassVar[str] = "matrix"
    id: str
    title: str
    caption: str
    chart: Chart
    run: int
    noun: str
    pairs: Sequence[tuple[str, str, int, str]]
    """(true class, predicted class, images, share of the true class), the most frequent first"""
    mistakes: int
    share: str
    """of all mistakes that the pairs make up"""


@dataclass(frozen=True)
class Map:
    """Points on a plane, of which one class can be picked out."""

    kind: ClassVar[str] = "map"
    id: str
    title: str
    caption: str
    chart: Chart
    run: int
    classes: Sequence[str]
    table: Table | None


class ClassColumn(NamedTuple):
    """The accuracy of each class in one run."""

    run: int
    name: str
    values: PerClass
    intervals: Sequence[tuple[float, float] | None]
    """90%; None where it is not known"""
    changes: Sequence[Change] | None
    """from the labels alone"""


@dataclass(frozen=True)
class ClassTable:
    kind: ClassVar[str] = "class_table"
    title: str
    noun: str
    names: Sequence[str]
    support: Sequence[int] | None
    """evaluated images of each class"""
    before: PerClass | None
    """accuracy with labels only"""
    columns: Sequence[ClassColumn]
    order: Sequence[int]


@dataclass(frozen=True)
class Gallery:
    kind: ClassVar[str] = "gallery"
    title: str
    caption: str
    run: int
    examples: Sequence[Example]


@dataclass(frozen=True)
class SettingsTable:
    kind: ClassVar[str] = "settings"
    title: str
    rows: Sequence[tuple[str, Sequence[str]]]
    open: bool = False


@dataclass(frozen=True)
class Folders:
    kind: ClassVar[str] = "folders"
    folders: Sequence[tuple[str, str]]
    """(name of the run, its folder)"""


Block: TypeAlias = Note | Figure | Comparison | ConfusionMatrix | ClassTable | Map | Gallery | SettingsTable | Folders


@dataclass
class Section:
    id: str
    kicker: str
    """its name in the navigation"""
    title: str
    """what was found"""
    text: str = ""
    blocks: list[Block] = field(default_factory=list)
    two_columns: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show, at most a note that says why."""
        return all(isinstance(block, Note) for block in self.blocks)

    def note(self, text: str) -> None:
        self.blocks.append(Note(text))

    def figure(
        self,
        id: str,
        title: str,
        caption: str,
        chart: Chart,
        *,
        run: int | None = None,
        legend: str = "",
        table: Table | None = None,
    ) -> None:
        """Add a figure; its table is the chart's own, unless another is given."""
        self.blocks.append(Figure(f"{self.id}-{id}", title, caption, chart, run, legend, table or chart.table))

    def curves(self, runs: Sequence[RunData], name: str, title: str, caption: str, y: Axis = SHARE) -> bool:
        """Add a figure of one measure over training, for all runs that have it; return whether any has."""
        series = [Series(i, run.name, run.curve(name)) for i, run in enumerate(runs)]
        return self.series(name, title, caption, series, y)

    def series(self, id: str, title: str, caption: str, series: Sequence[Series], y: Axis = SHARE) -> bool:
        """Add a figure of lines over training; return False if no line has a point."""
        found = [line for line in series if line.points]
        if found:
            self.figure(id, title, caption, training_chart(title, found, y))
        return bool(found)


def training_chart(title: str, series: Sequence[Series], y: Axis) -> Chart:
    """Draw lines over training steps, with their last values as the text alternative."""
    ends = "; ".join(f"{line.name} ends at {y.form(line.points[-1][1])}" for line in series)
    return line_chart(f"{title} over training steps. {ends}.", series, y)


def only(runs: Sequence[RunData]) -> RunData | None:
    """Return the run of a page about one run, None on a page about several."""
    return runs[0] if len(runs) == 1 else None


def headed(runs: Sequence[RunData], i: int, title: str) -> str:
    """Return the title of a block about one run, with the run's name only where there are several."""
    return title if len(runs) == 1 else f"{runs[i].name}: {title[0].lower() + title[1:]}"


def by_classes(runs: Sequence[RunData]) -> dict[tuple[str, ...], list[tuple[int, RunData]]]:
    """Return the runs, with their numbers, grouped by their classes: only those can be compared class by class."""
    groups: dict[tuple[str, ...], list[tuple[int, RunData]]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(tuple(run.classes), []).append((i, run))
    return groups
