"""What the paper's figures share: sheets, colours, titles and legends, and files that are the same every time.

Knows nothing of which figure is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.layout_engine import ConstrainedLayoutEngine

from selftrain.files import replacing
from selftrain.report.run_data import RunData

Group = Mapping[str, list[RunData]]
"""runs that differ in their seed only, by the label of their line"""
Groups = Mapping[str, Group]
"""the same for each dataset"""

INK, SOFT, LINES = "#1d1f23", "#5b6068", "#e2dfd8"
COLOURS = ("#5b6068", "#0b62c4", "#b84e08", "#7a3fd6", "#00786a", "#b0286e", "#6b5b00", "#00718f")
MARKS = ("o", "s", "^", "D", "v", "P", "h", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), "-", (0, (2, 1.4)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5)), "-", (0, (1, 1)))
LOOKS = {"labels only": 0, "FixMatch": 1, "DST(FixMatch)": 2, "DST without worst case": 3, "FlexMatch": 4,
         "DST(FlexMatch)": 5, "Dash": 6, "Co-training": 4, "Tri-training": 6}  # fmt: skip
"""so that a method looks the same in every figure"""


def look(label: str, k: int) -> int:
    """Return the index of a line's colour, dash and mark: that of its method, or k for any other label."""
    return LOOKS.get(label.rpartition(", ")[0] or label, LOOKS.get(label, k % 8))


def make_sheet(columns: int, width: float = 3.4, height: float = 2.9) -> tuple[Sheet, list[Axes]]:
    """Return an empty sheet of panels side by side; the size is that of one panel, in inches."""
    sheet = Sheet(figsize=(width * columns, height), layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09))
    sheet.patch.set_facecolor("white")
    axes: list[Axes] = np.atleast_1d(np.asarray(sheet.subplots(1, columns), dtype=object)).ravel().tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(SOFT)
        ax.tick_params(colors=SOFT, labelsize=8)
        ax.grid(axis="y", color=LINES, linewidth=0.8)
        ax.set_axisbelow(True)
    return sheet, axes


def save(sheet: Sheet, path: Path) -> None:
    """Write a PNG or SVG file without a date, so that the same figure gives the same bytes."""
    with (
        matplotlib.rc_context({"svg.hashsalt": "selftrain", "svg.fonttype": "path", "font.family": "DejaVu Sans"}),
        replacing(path) as temporary,
    ):
        kind = path.suffix.removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        sheet.savefig(temporary, format=kind, dpi=110, metadata=metadata)


def set_title(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="left", fontsize=9.5, color=INK, fontweight="bold")


def add_legend(sheet: Sheet, ax: Axes, columns: int = 4) -> None:
    """Put the legend of one panel below all of them."""
    handles, labels = ax.get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=8.5, frameon=False
    )


def describe_data(dataset: str, group: Group) -> str:
    """Return the dataset and its number of labels, for a title."""
    labels = next(iter(group.values()))[0].labels_per_class
    return f"{dataset}, {labels:.3g} label{'' if labels == 1 else 's'} per class" if labels else dataset
