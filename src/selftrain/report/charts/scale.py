"""From values to positions on a chart: the range of an axis and its ticks.

Knows nothing of markup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selftrain.report.charts.formats import Format, percent

INFINITE_AT = 4.0
"""position of infinite values, in percent from the top"""
LOG_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000)


@dataclass(frozen=True)
class Axis:
    """What an axis shows, and its range where that does not follow from the values."""

    name: str = ""
    form: Format = percent
    low: float | None = None
    high: float | None = None
    log: bool = False


@dataclass(frozen=True)
class Scale:
    """The range of a vertical axis. Infinite values, if there are any, lie on a line of their own at the top."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    infinite: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value, in percent of the height from the top."""
        if math.isinf(value):
            return INFINITE_AT
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        share = (value - low) / (high - low)
        room = 82.0 if self.infinite else 100.0
        return 100.0 - room * min(max(share, 0.0), 1.0)


def make_scale(values: Sequence[float], axis: Axis) -> Scale:
    """Return a scale that holds all values and has round ticks."""
    finite = [v for v in values if math.isfinite(v)]
    infinite = any(math.isinf(v) for v in values)
    return _log_scale(finite, infinite) if axis.log else _linear_scale(finite, infinite, axis)


def _log_scale(values: Sequence[float], infinite: bool) -> Scale:
    top = max([v for v in values if v > 0], default=2.0)
    fine = [t for t in LOG_TICKS if t <= top * 1.3] or [1]
    ticks = fine if len(fine) <= 5 else [t for t in fine if str(t)[0] == "1"]
    return Scale(1.0, max(top * 1.15, 2.0), tuple(map(float, ticks)), True, infinite)


def _linear_scale(values: Sequence[float], infinite: bool, axis: Axis) -> Scale:
    bottom = axis.low if axis.low is not None else min(values, default=0.0)
    top = axis.high if axis.high is not None else max(values, default=1.0)
    if not top > bottom:
        bottom, top = (bottom - 0.5, bottom + 0.5) if axis.low is None else (bottom, bottom + 1)
    step = 10 ** math.floor(math.log10((top - bottom) / 2))
    step = next(step * m for m in (1, 2, 5, 10) if (top - bottom) / (step * m) <= 4.5)
    bottom = math.floor(bottom / step + 1e-9) * step if axis.low is None else axis.low
    top = math.ceil(top / step - 1e-9) * step if axis.high is None else axis.high
    ticks: list[float] = []
    tick = math.ceil(bottom / step - 1e-9) * step
    while tick <= top + 1e-9 * step:
        ticks.append(round(tick, 12))
        tick += step
    return Scale(bottom, top, tuple(ticks), False, infinite)
