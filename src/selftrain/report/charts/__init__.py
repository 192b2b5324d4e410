"""Charts as HTML and SVG: numbers in, markup out.

Knows nothing of runs. The SVG stretches while its labels are HTML, so that they stay readable at any width. Colours are
classes of the page's stylesheet, and ``Chart.data`` holds everything that the page's script needs for tooltips.
"""

from selftrain.report.charts.bars import change_chart, stacked_chart
from selftrain.report.charts.formats import count, number, percent, points, ratio
from selftrain.report.charts.lines import Series, line_chart
from selftrain.report.charts.matrix import matrix_chart
from selftrain.report.charts.plot import Chart, Table
from selftrain.report.charts.scale import Axis
from selftrain.report.charts.scatter import MapPoint, map_chart

__all__ = [
    "Axis", "Chart", "MapPoint", "Series", "Table", "change_chart", "count", "line_chart", "map_chart", "matrix_chart",
    "number", "percent", "points", "ratio", "stacked_chart",
]  # fmt: skip
