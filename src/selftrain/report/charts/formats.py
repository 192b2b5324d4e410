"""Numbers as text, for charts, tables and sentences.

Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Format = Callable[[float], str]


def percent(value: float) -> str:
    """Return a share as a percentage: ``46.2%``."""
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """Return the difference of two shares in percentage points, with its sign."""
    return f"{100 * value:+.1f}".replace("-", "\u2212")


def number(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:.3g}"


def ratio(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def short_duration(seconds: float) -> str:
    """Return a duration for a narrow column: ``40 s``, ``2.5 min`` or ``1.2 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def brief(value: float, form: Format) -> str:
    """Return a number of at most six characters: a phone has no room for more at the end of a curve."""
    text = form(value).removesuffix("%")
    if text == "infinite":
        return "∞"
    return next((short for short in (text, f"{value:.2g}") if len(short) <= 6), f"{value:.0e}")


def without_decimals(form: Format) -> Format:
    """Return a format for axis ticks, which drops a trailing ``.0``."""
    return lambda value: form(value).replace(".0%", "%").removesuffix(".0")
