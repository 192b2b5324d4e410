"""Charts as HTML and SVG: curves, changes by class, stacked bias, confusion matrices. Numbers in, markup out.

Knows nothing of runs. The SVG stretches and its words are HTML, so that they can be read at any width; colours are
classes of the page's stylesheet; what the script needs for its tooltips is in ``Chart.data``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from markupsafe import Markup

Format = Callable[[float], str]
Values = Sequence[float | None]
MOST_ROWS = 60  # of the table under a chart
MOST_NAMED = 24  # classes, with their names under the bars


def percent(value: float) -> str:
    return f"{100 * value:.1f}\u202f%"


def points(value: float) -> str:
    """A difference of two shares, with its sign."""
    return f"{100 * value:+.1f}".replace("-", "\u2212")


def number(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:.3g}"


def ratio(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def count(value: float) -> str:
    return f"{value:,.0f}"


@dataclass(frozen=True)
class Series:
    """A line: the run it belongs to says its colour, dash and mark."""

    run: int
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    markup: Markup
    data: dict[str, Any]
    """what tooltips say: positions and words"""
    columns: list[str]
    rows: list[list[str]]
    remark: str = ""
    """about the table: that it is thinned out"""


@dataclass
class _Scale:
    low: float
    high: float
    log: bool = False
    infinite: bool = False
    ticks: list[float] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        """From a value to a place in percent of the height, from the top."""
        if math.isinf(value):
            return 4.0
        low, high, v = (math.log(x) for x in (self.low, self.high, max(value, self.low))) if self.log else (
            self.low, self.high, value,
        )  # fmt: skip
        share = (v - low) / (high - low)
        room = 82.0 if self.infinite else 100.0
        return 100.0 - room * min(max(share, 0.0), 1.0)


def _nice_scale(values: Sequence[float], low: float | None, high: float | None, log: bool) -> _Scale:
    finite = [v for v in values if math.isfinite(v)]
    infinite = any(math.isinf(v) for v in values)
    if log:
        top = max([v for v in finite if v > 0], default=2.0)
        fine = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000) if t <= top * 1.3] or [1]
        coarse = fine if len(fine) <= 5 else [t for t in fine if str(t)[0] == "1"]
        return _Scale(1.0, max(top * 1.15, 2.0), True, infinite, [float(t) for t in coarse])
    bottom = low if low is not None else min(finite, default=0.0)
    top = high if high is not None else max(finite, default=1.0)
    if not top > bottom:
        bottom, top = (bottom - 0.5, bottom + 0.5) if low is None else (bottom, bottom + 1)
    step = 10 ** math.floor(math.log10((top - bottom) / 2))
    step = next(step * m for m in (1, 2, 5, 10) if (top - bottom) / (step * m) <= 4.5)
    bottom = math.floor(bottom / step + 1e-9) * step if low is None else low
    top = math.ceil(top / step - 1e-9) * step if high is None else high
    ticks: list[float] = []
    t = math.ceil(bottom / step - 1e-9) * step
    while t <= top + 1e-9 * step:
        ticks.append(round(t, 12))
        t += step
    return _Scale(bottom, top, False, infinite, ticks)


def _place(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _grid(scale: _Scale, form: Format) -> tuple[str, Markup]:
    lines = "".join(f"M0 {_place(scale(t))}H100" for t in scale.ticks)
    words = [(scale(t), form(t)) for t in scale.ticks]
    if scale.infinite:
        lines += "M0 4H100"
        words.append((4.0, "∞"))
    words_ = Markup("").join(
        Markup('<span class="yt" style="top:{}%">{}</span>').format(_place(y), text) for y, text in words
    )
    return lines, words_


def _brief(value: float, form: Format) -> str:
    """A number for the end of a curve, where a telephone has room for six signs."""
    text = form(value).replace("\u202f%", "")
    if text == "infinite":
        return "∞"
    return next((words for words in (text, f"{value:.2g}") if len(words) <= 6), f"{value:.0e}")


def _short(form: Format) -> Format:
    """Ticks without needless decimals."""
    return lambda value: form(value).replace(".0\u202f%", "\u202f%").removesuffix(".0")


def _apart(places: list[float], gap: float) -> list[float]:
    """The same places, moved as little as needed to lie a gap apart, in their order."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = places[:]
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    over = moved[order[-1]] - 98 if order else 0
    if over > 0:
        moved[order[-1]] -= over
        for after, before in pairwise(order[::-1]):
            moved[before] = min(moved[before], moved[after] - gap)
    return moved


def line_chart(
    label: str,
    series: Sequence[Series],
    *,
    form: Format = percent,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    x_name: str = "step",
    x_form: Format = count,
    x_range: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> Chart:
    """Values over steps (or over anything else); an infinite one lies on a line of its own at the top."""
    xs = sorted({x for s in series for x, _ in s.points})
    x0, x1 = x_range or (min(0.0, xs[0]), xs[-1])
    scale = _nice_scale([y for s in series for _, y in s.points], low, high, log)

    def across(x: float) -> float:
        return 100 * (x - x0) / (x1 - x0) if x1 > x0 else 50.0

    grid, y_words = _grid(scale, _short(form))
    shapes = [f'<path class="lines" d="{grid}"/>']
    if diagonal:
        shapes.append('<path class="diagonal" d="M0 100L100 0"/>')
    marks, ends = [], []
    for s in series:
        path = "".join(
            f"{'M' if i == 0 else 'L'}{_place(across(x))} {_place(scale(y))}" for i, (x, y) in enumerate(s.points)
        )
        shapes.append(f'<path class="line s{s.run % 8}" data-run="{s.run}" d="{path}"/>')
        last_x, last_y = s.points[-1]
        shown = s.points if diagonal or len(s.points) == 1 else [(last_x, last_y)]
        for x, y in shown:
            marks.append(
                f'<i class="mark s{s.run % 8}" data-run="{s.run}" '
                f'style="left:{_place(across(x))}%;top:{_place(scale(y))}%"></i>'
            )
        ends.append(scale(last_y))
    labels = Markup("")
    if not diagonal:
        for s, y in zip(series, _apart(ends, 9.0), strict=True):
            labels += Markup('<span class="end s{}" data-run="{}" style="top:{}%">{}</span>').format(
                s.run % 8, s.run, _place(y), _brief(s.points[-1][1], form)
            )
    x_ticks = [x0, (x0 + x1) / 2, x1] if x1 > x0 else [x0]
    x_words = Markup("").join(
        Markup('<span class="xt" style="left:{}%">{}</span>').format(_place(across(x)), _short(x_form)(x))
        for x in x_ticks
    )
    lookup = [dict(s.points) for s in series]
    data = {
        "labels": [f"{x_name} {x_form(x)}" for x in xs],
        "x": [round(across(x), 2) for x in xs],
        "series": [
            {
                "run": s.run,
                "name": s.name,
                "text": [form(at[x]) if x in at else None for x in xs],
                "y": [round(scale(at[x]), 2) if x in at else None for x in xs],
            }
            for s, at in zip(series, lookup, strict=True)
        ],
    }
    every = max(1, math.ceil(len(xs) / MOST_ROWS))
    kept = [x for i, x in enumerate(xs) if (len(xs) - 1 - i) % every == 0]
    rows = [[x_form(x), *(form(at[x]) if x in at else "–" for at in lookup)] for x in kept]
    return Chart(
        _plot(label, Markup("".join(shapes)), y_words, x_words, Markup("".join(marks)) + labels),
        data,
        [x_name, *(s.name for s in series)],
        rows,
        f"Every {every}th evaluation and the last." if every > 1 else "",
    )


def _plot(label: str, shapes: Markup, y_words: Markup, x_words: Markup, over: Markup, more: str = "") -> Markup:
    return Markup(
        '<div class="plot {}" tabindex="0" role="img" aria-label="{}"><div class="area">'
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true" focusable="false">{}</svg>'
        '{}<i class="cursor"></i></div><div class="ys" aria-hidden="true">{}</div>'
        '<div class="xs" aria-hidden="true">{}</div></div>'
    ).format(more, label, shapes, over, y_words, x_words)


def _rect(x: float, width: float, top: float, bottom: float) -> str:
    return f"M{_place(x)} {_place(top)}h{_place(width)}V{_place(bottom)}h-{_place(width)}z"


def _ends(names: Sequence[str], x_words: tuple[str, str]) -> Markup:
    """Under the bars: the names of the classes where there is room, and what lies on either side."""
    step = 100 / max(len(names), 1)
    named = Markup("").join(
        Markup('<span class="name" style="left:{}%"><bdi>{}</bdi></span>').format(_place((i + 0.5) * step), name)
        for i, name in enumerate(names if len(names) <= MOST_NAMED else ())
    )
    return named + Markup('<span class="xl">{}</span><span class="xr">{}</span>').format(*x_words)


def change_chart(
    label: str,
    run: int,
    names: Sequence[str],
    before: Values,
    after: Values,
    *,
    words: tuple[str, str],
    form: Format = percent,
    high: float | None = 1.0,
    x_words: tuple[str, str] = ("", ""),
) -> Chart:
    """A bar for each class from where it was to where it is: up is gained, down is lost."""
    known = [v for v in (*before, *after) if v is not None]
    scale = _nice_scale(known, 0.0, high, False)
    step = 100 / max(len(names), 1)
    width = step * (0.72 if len(names) <= 80 else 1.0)
    paths: dict[str, list[str]] = {"gain": [], "loss": [], "tick": []}
    tops: list[float | None] = []
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        x = i * step + (step - width) / 2
        tops.append(None if b is None else round(scale(b), 2))
        if a is not None:
            paths["tick"].append(f"M{_place(x)} {_place(scale(a))}h{_place(width)}")
        if a is not None and b is not None and a != b:
            top, bottom = sorted((scale(a), scale(b)))
            paths["gain" if b > a else "loss"].append(_rect(x, width, top, bottom))
    grid, y_words = _grid(scale, _short(form))
    shapes = [f'<path class="lines" d="{grid}"/>']
    shapes += [f'<path class="{kind}" d="{"".join(d)}"/>' for kind, d in paths.items() if d]
    ends = _ends(names, x_words)

    def told(value: float | None) -> str | None:
        return None if value is None else form(value)

    changes = [None if a is None or b is None else points(b - a) for a, b in zip(before, after, strict=True)]
    data = {
        "labels": list(names),
        "x": [round((i + 0.5) * step, 2) for i in range(len(names))],
        "series": [
            {"run": run, "name": words[0], "text": [told(v) for v in before], "y": [None] * len(names)},
            {"run": run, "name": words[1], "text": [told(v) for v in after], "y": tops},
            {"run": run, "name": "change", "text": changes, "y": [None] * len(names)},
        ],
    }
    more = "changes named" if len(names) <= MOST_NAMED else "changes" if len(names) <= 80 else "changes dense"
    return Chart(_plot(label, Markup("".join(shapes)), y_words, ends, Markup(""), more), data, [], [])


def stacked_chart(
    label: str,
    run: int,
    names: Sequence[str],
    base: Values | None,
    data_part: Values,
    training: Values,
    *,
    x_words: tuple[str, str] = ("", ""),
) -> Chart:
    """Error of each class: what remains with every label, what few labels add, what self-training adds or takes."""
    bottoms = [v or 0.0 for v in base] if base is not None else [0.0] * len(names)
    step = 100 / max(len(names), 1)
    width = step * (0.72 if len(names) <= 80 else 1.0)
    scale = _nice_scale([0.0, 1.0], 0.0, 1.0, False)
    paths: dict[str, list[str]] = {"base": [], "data": [], "added": [], "taken": []}
    tops: list[float | None] = []
    for i, (low, d, t) in enumerate(zip(bottoms, data_part, training, strict=True)):
        x = i * step + (step - width) / 2
        if d is None or t is None:
            tops.append(None)
            continue
        before, after = low + d, low + d + t
        if low > 0:
            paths["base"].append(_rect(x, width, scale(min(low, before)), 100))
        kept = min(before, after)
        if kept > low:
            paths["data"].append(_rect(x, width, scale(kept), scale(low)))
        if t > 0:
            paths["added"].append(_rect(x, width, scale(after), scale(max(before, 0.0))))
        elif t < 0:
            paths["taken"].append(_rect(x, width, scale(before), scale(max(after, 0.0))))
        tops.append(round(scale(after), 2))
    grid, y_words = _grid(scale, _short(percent))
    shapes = [f'<path class="lines" d="{grid}"/>']
    shapes += [f'<path class="part-{kind}" d="{"".join(d)}"/>' for kind, d in paths.items() if d]

    def told(values: Values) -> list[str | None]:
        return [None if v is None else points(v) for v in values]

    series = [
        {"run": run, "name": "data bias", "text": told(data_part), "y": [None] * len(names)},
        {"run": run, "name": "training bias", "text": told(training), "y": tops},
    ]
    if base is None:
        series[0]["name"] = "error with labels only"
    data = {
        "labels": list(names),
        "x": [round((i + 0.5) * step, 2) for i in range(len(names))],
        "series": series,
    }
    more = "changes named" if len(names) <= MOST_NAMED else "changes" if len(names) <= 80 else "changes dense"
    return Chart(_plot(label, Markup("".join(shapes)), y_words, _ends(names, x_words), Markup(""), more), data, [], [])


SHADES = 8


def matrix(label: str, run: int, names: Sequence[str], cells: Sequence[tuple[int, int, int]]) -> Chart:
    """A confusion matrix, a square a pair of classes: the fuller, the larger the share of the true class."""
    K = len(names)
    support = [0] * K
    for t, _, n in cells:
        support[t] += n
    right: list[list[str]] = [[] for _ in range(SHADES)]
    wrong: list[list[str]] = [[] for _ in range(SHADES)]
    for t, p, n in cells:
        shade = min(SHADES - 1, int(math.sqrt(n / support[t]) * SHADES))
        (right if t == p else wrong)[shade].append(f"M{p} {t}h1v1h-1z")
    shapes = [
        f'<path class="{kind} q{q}" d="{"".join(d)}"/>'
        for kind, bins in (("right", right), ("wrong", wrong))
        for q, d in enumerate(bins)
        if d
    ]
    rows = Markup("")
    if K <= 25:
        rows = Markup('<div class="rows" aria-hidden="true">{}</div>').format(
            Markup("").join(Markup("<span><bdi>{}</bdi></span>").format(name) for name in names)
        )
    flat = [value for cell in sorted(cells) for value in cell]
    markup = Markup(
        '<div class="matrix" tabindex="0" role="img" aria-label="{}">{}<div class="square">'
        '<svg viewBox="0 0 {} {}" aria-hidden="true" focusable="false" shape-rendering="{}">{}</svg>'
        '<i class="cell"></i></div></div>'
    ).format(label, rows, K, K, "crispEdges" if K > 60 else "auto", Markup("".join(shapes)))
    return Chart(markup, {"run": run, "cells": flat, "size": K}, [], [])


__all__ = [
    "Chart", "Series", "change_chart", "count", "line_chart", "matrix", "number", "percent", "points", "ratio",
    "stacked_chart",
]  # fmt: skip
