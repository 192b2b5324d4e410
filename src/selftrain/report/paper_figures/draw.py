"""Draw figures by name: find their runs, draw them, and write PNG and SVG files.

Knows nothing of what a figure looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selftrain.errors import UserError
from selftrain.report.paper_figures.catalogue import bench_command, find_figure
from selftrain.report.paper_figures.pick import find_run_folders, pick
from selftrain.report.paper_figures.style import save
from selftrain.report.run_data import read_run


def draw_figures(names: Sequence[str], folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Write each figure as PNG and SVG and return the files.

    Parameters
    ----------
    names
        Names of ``FIGURES``.
    folders
        Run folders, or folders that contain runs, such as that of a bench.
    out
        The file, with or without a suffix, or a folder; a folder for several figures. By default, files with the
        figures' names in the current folder.
    """
    figures = {name: find_figure(name) for name in names}
    for name, figure in figures.items():
        if figure.needs and not folders:
            raise UserError(f"The figure {name!r} needs runs. Make them with: {bench_command(name)}")
    runs = [read_run(folder) for folder in find_run_folders(folders)]
    written = []
    for name, figure in figures.items():
        sheet = figure.draw(pick(name, figure, runs) if figure.needs else {})
        stem = _stem(name, out, len(names))
        for suffix in (".png", ".svg"):
            path = stem.with_name(stem.name + suffix)
            save(sheet, path)
            written.append(path)
    return written


def _stem(name: str, out: Path | None, count: int) -> Path:
    """Return the path of a figure's files without their suffix."""
    if out is None:
        return Path(name)
    if out.is_dir() or count > 1:
        return out / name
    return out.with_suffix("") if out.suffix in (".png", ".svg") else out
