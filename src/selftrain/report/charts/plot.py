"""The frame that line and bar charts share: plot area, grid, tick labels.

Knows nothing of lines or bars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from selftrain.report.charts.formats import Format, without_decimals
from selftrain.report.charts.scale import INFINITE_AT, Scale


@dataclass(frozen=True)
class Table:
    """The values of a chart, to be read as text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""
    """says that rows are left out, if they are"""


@dataclass(frozen=True)
class Chart:
    markup: Markup
    data: dict[str, Any]
    """the positions and texts of tooltips"""
    table: Table | None = None


def decimal(value: float) -> str:
    """Return a position with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def grid(scale: Scale, form: Format) -> tuple[Markup, Markup]:
    """Return the grid lines as an SVG path, and the tick labels of the vertical axis."""
    short = without_decimals(form)
    ticks = [(scale(tick), short(tick)) for tick in scale.ticks]
    if scale.infinite:
        ticks.append((INFINITE_AT, "∞"))
    lines = "".join(f"M0 {decimal(y)}H100" for y, _ in ticks)
    labels = Markup("").join(
        Markup('<span class="yt" style="top:{}%">{}</span>').format(decimal(y), text) for y, text in ticks
    )
    return Markup('<path class="lines" d="{}"/>').format(lines), labels


def plot(
    label: str, shapes: Markup, y_labels: Markup, x_labels: Markup, *, over: Markup | None = None, kind: str = ""
) -> Markup:
    """Return a whole chart; ``over`` is HTML on top of the shapes, ``kind`` further classes of the stylesheet."""
    return Markup(
        '<div class="plot {}" tabindex="0" role="img" aria-label="{}"><div class="area">'
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true" focusable="false">{}</svg>'
        '{}<i class="cursor"></i></div><div class="ys" aria-hidden="true">{}</div>'
        '<div class="xs" aria-hidden="true">{}</div></div>'
    ).format(kind, label, shapes, over or Markup(), y_labels, x_labels)
