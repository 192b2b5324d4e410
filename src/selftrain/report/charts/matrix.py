"""Confusion matrices: one square per pair of classes.

Knows nothing of how the pairs were counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from selftrain.report.charts.plot import Chart

SHADES = 8
MOST_NAMED = 25
"""classes whose names fit beside the rows and above the columns"""


def matrix_chart(label: str, run: int, names: Sequence[str], cells: Sequence[tuple[int, int, int]]) -> Chart:
    """Draw (true, predicted, count); the darker a square, the larger its share of the true class."""
    K = len(names)
    support = [0] * K
    for t, _, n in cells:
        support[t] += n
    paths: dict[str, list[str]] = {f"{kind} q{q}": [] for kind in ("right", "wrong") for q in range(SHADES)}
    for t, p, n in cells:
        shade = min(SHADES - 1, int(math.sqrt(n / support[t]) * SHADES))
        paths[f"{'right' if t == p else 'wrong'} q{shade}"].append(f"M{p} {t}h1v1h-1z")
    shapes = Markup("").join(
        Markup('<path class="{}" d="{}"/>').format(kind, "".join(squares)) for kind, squares in paths.items() if squares
    )
    rows = columns = Markup()
    if K <= MOST_NAMED:
        spans = Markup("").join(Markup("<span><bdi>{}</bdi></span>").format(name) for name in names)
        columns = Markup('<div class="columns" aria-hidden="true">{}</div>').format(spans)
        rows = Markup('<div class="rows" aria-hidden="true">{}</div>').format(spans)
    markup = Markup(
        '<div class="scroll"><div class="matrix{}" style="--k:{}" tabindex="0" role="img" aria-label="{}">'
        '{}{}<div class="square"><svg viewBox="0 0 {} {}" aria-hidden="true" focusable="false" shape-rendering="{}">{}'
        '</svg><i class="cell"></i></div></div></div>'
    ).format(
        " named" if K <= MOST_NAMED else "", K, label, columns, rows, K, K, "crispEdges" if K > 60 else "auto", shapes
    )
    flat = [value for cell in sorted(cells) for value in cell]
    return Chart(markup, {"run": run, "cells": flat, "size": K, "names": list(names)})
