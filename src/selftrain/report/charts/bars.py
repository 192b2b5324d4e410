"""Bar charts with one bar per class: changes, and errors split into parts.

Knows nothing of what the values before and after are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from selftrain.report.charts.formats import percent, points
from selftrain.report.charts.plot import Chart, decimal, grid, plot
from selftrain.report.charts.scale import Axis, make_scale

Values = Sequence[float | None]
MOST_NAMED = 24
"""classes whose names fit below the bars"""
MOST_APART = 80
"""classes whose bars have gaps between them"""


def change_chart(
    label: str,
    run: int,
    names: Sequence[str],
    before: Values,
    after: Values,
    *,
    words: tuple[str, str],
    high: float | None = 1.0,
    ends: tuple[str, str] = ("", ""),
    clear: Sequence[bool] | None = None,
    notes: Sequence[str] = (),
) -> Chart:
    """Draw one bar per class from its value before to its value after: up is a gain, down a loss.

    Parameters
    ----------
    words
        What the values before and after are called in tooltips.
    high
        The top of the axis; None: the largest value.
    ends
        What the leftmost and the rightmost classes have in common.
    clear
        Whether each change is certain; the others are drawn pale.
    notes
        Words beside each change in tooltips.
    """
    known = [v for v in (*before, *after) if v is not None]
    scale = make_scale(known, Axis(low=0.0, high=high))
    step, width = _widths(len(names))
    paths: dict[str, list[str]] = {"gain": [], "loss": [], "gain pale": [], "loss pale": [], "tick": []}
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        x = i * step + (step - width) / 2
        if a is not None:
            paths["tick"].append(f"M{decimal(x)} {decimal(scale(a))}h{decimal(width)}")
        if a is not None and b is not None and a != b:
            top, bottom = sorted((scale(a), scale(b)))
            sure = clear is None or clear[i]
            paths[("gain" if b > a else "loss") + ("" if sure else " pale")].append(_rectangle(x, width, top, bottom))
    tops = [None if b is None else round(scale(b), 2) for b in after]
    changes = [None if a is None or b is None else points(b - a) for a, b in zip(before, after, strict=True)]
    changes = [f"{text} ({note})" if text and note else text for text, note in zip_longest(changes, notes)]
    unmarked = [None] * len(names)
    series = [
        {"run": run, "name": words[0], "text": [_percent(v) for v in before], "y": unmarked},
        {"run": run, "name": words[1], "text": [_percent(v) for v in after], "y": tops},
        {"run": run, "name": "change", "text": changes, "y": unmarked},
    ]
    grid_lines, y_labels = grid(scale, percent)
    markup = plot(label, grid_lines + _shapes(paths), y_labels, _class_labels(names, ends), kind=_kind(len(names)))
    return Chart(markup, _tooltips(names, series))


def stacked_chart(
    label: str,
    run: int,
    names: Sequence[str],
    base: Values | None,
    data_part: Values,
    training: Values,
    *,
    ends: tuple[str, str] = ("", ""),
) -> Chart:
    """Draw the error of each class: what remains with all labels, what few labels add, what self-training changes.

    Parameters
    ----------
    base
        Error with all labels; None where it is not known, and ``data_part`` is then the error with labels only.
    """
    bottoms = [v or 0.0 for v in base] if base is not None else [0.0] * len(names)
    step, width = _widths(len(names))
    scale = make_scale([0.0, 1.0], Axis(low=0.0, high=1.0))
    paths: dict[str, list[str]] = {"part-base": [], "part-data": [], "part-added": [], "part-removed": []}
    tops: list[float | None] = []
    for i, (low, d, t) in enumerate(zip(bottoms, data_part, training, strict=True)):
        x = i * step + (step - width) / 2
        if d is None or t is None:
            tops.append(None)
            continue
        before, after = low + d, low + d + t
        if low > 0:
            paths["part-base"].append(_rectangle(x, width, scale(min(low, before)), 100))
        kept = min(before, after)
        if kept > low:
            paths["part-data"].append(_rectangle(x, width, scale(kept), scale(low)))
        if t > 0:
            paths["part-added"].append(_rectangle(x, width, scale(after), scale(max(before, 0.0))))
        elif t < 0:
            paths["part-removed"].append(_rectangle(x, width, scale(before), scale(max(after, 0.0))))
        tops.append(round(scale(after), 2))
    first = "data bias" if base is not None else "error with labels only"
    series = [
        {"run": run, "name": first, "text": [_points(v) for v in data_part], "y": [None] * len(names)},
        {"run": run, "name": "training bias", "text": [_points(v) for v in training], "y": tops},
    ]
    grid_lines, y_labels = grid(scale, percent)
    markup = plot(label, grid_lines + _shapes(paths), y_labels, _class_labels(names, ends), kind=_kind(len(names)))
    return Chart(markup, _tooltips(names, series))


def _widths(classes: int) -> tuple[float, float]:
    """Return the distance between bars and their width, in percent of the chart's width."""
    step = 100 / max(classes, 1)
    return step, step * (0.72 if classes <= MOST_APART else 1.0)


def _kind(classes: int) -> str:
    return "bars named" if classes <= MOST_NAMED else "bars" if classes <= MOST_APART else "bars dense"


def _rectangle(x: float, width: float, top: float, bottom: float) -> str:
    return f"M{decimal(x)} {decimal(top)}h{decimal(width)}V{decimal(bottom)}h-{decimal(width)}z"


def _shapes(paths: dict[str, list[str]]) -> Markup:
    return Markup("").join(
        Markup('<path class="{}" d="{}"/>').format(kind, "".join(parts)) for kind, parts in paths.items() if parts
    )


def _class_labels(names: Sequence[str], ends: tuple[str, str]) -> Markup:
    """Return the labels below the bars: class names where they fit, and what lies on either side."""
    step, _ = _widths(len(names))
    named = Markup("").join(
        Markup('<span class="name" style="left:{}%"><bdi>{}</bdi></span>').format(decimal((i + 0.5) * step), name)
        for i, name in enumerate(names if len(names) <= MOST_NAMED else ())
    )
    return named + Markup('<span class="xl">{}</span><span class="xr">{}</span>').format(*ends)


def _tooltips(names: Sequence[str], series: list[dict[str, Any]]) -> dict[str, Any]:
    step, _ = _widths(len(names))
    centres = [round((i + 0.5) * step, 2) for i in range(len(names))]
    return {"labels": list(names), "x": centres, "series": series}


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _points(value: float | None) -> str | None:
    return None if value is None else points(value)
