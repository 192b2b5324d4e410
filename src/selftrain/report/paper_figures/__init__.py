"""The paper's figures by name: the catalogue, and the function that draws them.

Knows nothing of the report page. ``catalogue`` lists the figures, ``pick`` finds their runs, ``style`` has what all of
them share, and each other module draws one kind of figure.
"""

from selftrain.report.paper_figures.catalogue import FIGURES, PaperFigure, bench_command, figure_command, find_figure
from selftrain.report.paper_figures.draw import draw_figures

__all__ = ["FIGURES", "PaperFigure", "bench_command", "draw_figures", "figure_command", "find_figure"]
