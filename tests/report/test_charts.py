"""Charts: where lines, bars and squares are, and how numbers are written."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from selftrain.report.charts import Axis, Series, change_chart, line_chart, matrix_chart, stacked_chart
from selftrain.report.charts.formats import brief
from selftrain.report.charts.lines import spread_apart


def test_infinite_values_lie_above_all_others() -> None:
    chart = line_chart("x", [Series(0, "a", [(0, 2.0), (1, float("inf")), (2, 50.0)])], Axis(form=str, log=True))
    (series,) = chart.data["series"]
    assert series["y"][1] < min(series["y"][0], series["y"][2]) - 5
    assert "∞" in chart.markup
    assert "nan" not in chart.markup
    assert "inf" not in chart.markup.replace("infinite", "")


def test_bars_reach_from_the_value_before_to_the_value_after() -> None:
    chart = change_chart("x", 0, ["a", "b", "c"], [0.5, 0.5, None], [0.75, 0.25, 0.1], words=("then", "now"))
    (gain,) = re.findall(r'class="gain" d="([^"]+)"', chart.markup)
    (loss,) = re.findall(r'class="loss" d="([^"]+)"', chart.markup)
    assert "25h" in gain.replace("M4.67 ", "")  # from 75% accuracy ...
    assert "V50" in gain  # ... down to 50%
    assert "V75" in loss
    assert chart.data["series"][2]["text"] == ["+25.0", "\u221225.0", None]


def test_the_parts_of_the_error_add_up() -> None:
    chart = stacked_chart("x", 0, ["a", "b"], [0.1, 0.1], [0.2, 0.4], [0.3, -0.2])
    assert chart.data["series"][1]["y"] == [40.0, 70.0]  # 60% and 30% of error
    assert chart.markup.count("part-added") == 1
    assert chart.markup.count("part-removed") == 1


def test_a_matrix_shows_every_cell_once() -> None:
    chart = matrix_chart("x", 0, ["a", "b"], [(0, 0, 3), (0, 1, 1), (1, 1, 4)])
    assert chart.markup.count("h1v1h-1z") == 3
    assert 'class="right q7" d="M1 1' in chart.markup
    assert chart.data["cells"] == [0, 0, 3, 0, 1, 1, 1, 1, 4]


def test_labels_at_the_ends_of_lines_do_not_overlap() -> None:
    for places in ([50.0, 50.0, 50.0], [99.0, 98.0, 97.0], [1.0, 90.0], [5.0]):
        moved = spread_apart(places, 9.0)
        ordered = sorted(moved)
        assert all(b - a >= 8.99 for a, b in pairwise(ordered))
        assert np.argsort(moved).tolist() == np.argsort(places, kind="stable").tolist()
        assert max(moved) <= 99


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.00719, "0.0072"), (0.0000719, "7e-05"), (12.5, "12.5"), (-0.1234, "-0.12"), (1234567.0, "1e+06")],
)
def test_numbers_at_the_ends_of_curves_are_short(value: float, words: str) -> None:
    assert brief(value, lambda x: f"{x:.10g}") == words
