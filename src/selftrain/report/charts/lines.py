"""Line charts: values over steps, or accuracy over confidence.

Knows nothing of which measure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from selftrain.report.charts.formats import brief, count, without_decimals
from selftrain.report.charts.plot import Chart, Table, decimal, grid, plot
from selftrain.report.charts.scale import Axis, Scale, make_scale

MOST_ROWS = 60
"""of the table below a chart"""
LABEL_GAP = 9.0
"""between the values at the ends of lines, in percent of the height"""
STEPS = Axis("step", count)


@dataclass(frozen=True)
class Series:
    """A line; the run that it belongs to decides its colour, dash and mark."""

    run: int
    name: str
    points: Sequence[tuple[float, float]]


def line_chart(
    label: str, series: Sequence[Series], y: Axis | None = None, x: Axis = STEPS, *, diagonal: bool = False
) -> Chart:
    """Draw one line per series. With ``diagonal``, mark every point and draw the line where x equals y."""
    y = y or Axis()
    xs = sorted({at for s in series for at, _ in s.points})
    left = x.low if x.low is not None else min(0.0, xs[0])
    right = x.high if x.high is not None else xs[-1]
    scale = make_scale([value for s in series for _, value in s.points], y)

    def across(at: float) -> float:
        return 100 * (at - left) / (right - left) if right > left else 50.0

    grid_lines, y_labels = grid(scale, y.form)
    shapes = grid_lines + (Markup('<path class="diagonal" d="M0 100L100 0"/>') if diagonal else Markup())
    shapes += Markup("").join(_line(s, across, scale) for s in series)
    over = Markup("").join(_marks(s, across, scale, every=diagonal) for s in series)
    if not diagonal:
        over += _end_labels(series, scale, y)
    ticks = [left, (left + right) / 2, right] if right > left else [left]
    x_labels = Markup("").join(
        Markup('<span class="xt" style="left:{}%">{}</span>').format(decimal(across(at)), without_decimals(x.form)(at))
        for at in ticks
    )
    markup = plot(label, shapes, y_labels, x_labels, over=over)
    return Chart(markup, _tooltips(series, xs, x, y, across, scale), _table(series, xs, x, y))


def _line(series: Series, across: Callable[[float], float], scale: Scale) -> Markup:
    path = "L".join(f"{decimal(across(x))} {decimal(scale(y))}" for x, y in series.points)
    return Markup('<path class="line s{}" data-run="{}" d="M{}"/>').format(series.run % 8, series.run, path)


def _marks(series: Series, across: Callable[[float], float], scale: Scale, *, every: bool) -> Markup:
    marked = series.points if every else series.points[-1:]
    return Markup("").join(
        Markup('<i class="mark s{}" data-run="{}" style="left:{}%;top:{}%"></i>').format(
            series.run % 8, series.run, decimal(across(x)), decimal(scale(y))
        )
        for x, y in marked
    )


def _end_labels(series: Sequence[Series], scale: Scale, y: Axis) -> Markup:
    values = [s.points[-1][1] for s in series]
    places = spread_apart([scale(value) for value in values], LABEL_GAP)
    return Markup("").join(
        Markup('<span class="end s{}" data-run="{}" style="top:{}%">{}</span>').format(
            s.run % 8, s.run, decimal(place), brief(value, y.form)
        )
        for s, value, place in zip(series, values, places, strict=True)
    )


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """Return the positions in the same order, moved as little as needed so that they lie a gap apart."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    over = moved[order[-1]] - 98 if order else 0
    if over > 0:
        moved[order[-1]] -= over
        for after, before in pairwise(order[::-1]):
            moved[before] = min(moved[before], moved[after] - gap)
    return moved


def _tooltips(
    series: Sequence[Series], xs: Sequence[float], x: Axis, y: Axis, across: Callable[[float], float], scale: Scale
) -> dict[str, Any]:
    lookup = [dict(s.points) for s in series]
    return {
        "labels": [f"{x.name} {x.form(at)}" for at in xs],
        "x": [round(across(at), 2) for at in xs],
        "series": [
            {
                "run": s.run,
                "name": s.name,
                "text": [y.form(values[at]) if at in values else None for at in xs],
                "y": [round(scale(values[at]), 2) if at in values else None for at in xs],
            }
            for s, values in zip(series, lookup, strict=True)
        ],
    }


def _table(series: Sequence[Series], xs: Sequence[float], x: Axis, y: Axis) -> Table:
    lookup = [dict(s.points) for s in series]
    every = max(1, math.ceil(len(xs) / MOST_ROWS))
    kept = [at for i, at in enumerate(xs) if (len(xs) - 1 - i) % every == 0]
    rows = [[x.form(at), *(y.form(values[at]) if at in values else "–" for values in lookup)] for at in kept]
    remark = f"One of every {every} evaluations, including the last." if every > 1 else ""
    return Table([x.name, *(s.name for s in series)], rows, remark)
