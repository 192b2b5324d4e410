"""Maps: points on a plane, each in one of a few states.

Knows nothing of how the places were computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from selftrain.report.charts.plot import Chart, decimal

EDGE = 3.0
"""room between points and the edge, in percent"""
DRAWN = ("predicted", "unsure", "unknown", "labeled")
"""states in the order in which they are drawn: later ones cover earlier ones"""


class MapPoint(NamedTuple):
    x: float
    y: float
    """0 to 1"""
    state: str
    name: str
    group: int
    """position in the list of groups"""
    confidence: float


def map_chart(label: str, run: int, points: Sequence[MapPoint], groups: Sequence[str]) -> Chart:
    """Draw each point as a dot whose colour and shape say its state; the page's script can pick out one group."""
    places = [(EDGE + (100 - 2 * EDGE) * p.x, EDGE + (100 - 2 * EDGE) * p.y) for p in points]
    shapes = Markup("")
    for state in DRAWN:
        # A line of no length with round ends is a dot that stays round however the drawing is stretched.
        dots = "".join(
            f"M{decimal(x)} {decimal(y)}h0" for p, (x, y) in zip(points, places, strict=True) if p.state == state
        )
        if dots:
            twice = '<path class="dots {0}" d="{1}"/><path class="dots {0} core" d="{1}"/>'
            shapes += Markup(twice).format(state, dots)
    markup = Markup(
        '<div class="map" tabindex="0" role="img" aria-label="{}"><svg viewBox="0 0 100 100" '
        'preserveAspectRatio="none" aria-hidden="true" focusable="false">{}<path class="dots picked" d=""/></svg>'
        '<i class="here"></i></div>'
    ).format(label, shapes)
    data = {
        "run": run,
        "x": [round(x, 1) for x, _ in places],
        "y": [round(y, 1) for _, y in places],
        "state": [DRAWN.index(p.state) for p in points],
        "states": list(DRAWN),
        "group": [p.group for p in points],
        "name": [p.name for p in points],
        "sure": [f"{100 * p.confidence:.0f}%" for p in points],
        "names": list(groups),
    }
    return Chart(markup, data)
