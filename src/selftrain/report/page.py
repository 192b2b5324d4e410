"""The HTML page: a self-contained file from one run or several.

Knows nothing of what the sections show. Sections that a run cannot fill are left out, and the page says why.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from selftrain.report.advice import next_steps
from selftrain.report.run_data import RunData, noun_of
from selftrain.report.section import ConfusionMatrix, Figure, Map, Note, Section
from selftrain.report.sections import SCIENCE, SECTIONS
from selftrain.report.summary import standfirst, summary, title
from selftrain.report.verdict import helped, how_good
from selftrain.version import __version__


def render(runs: Sequence[RunData]) -> str:
    """Return the page as text."""
    sections = _with_missing_parts([section(runs) for section in SECTIONS])
    style, script = _read("page.css"), _read("page.js")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("selftrain.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title(runs),
        standfirst=standfirst(runs),
        runs=runs,
        good=[(how_good(run), helped(run, runs)) for run in runs],
        noun=noun_of(runs),
        summary=summary(runs),
        science={section.id for section in sections} & SCIENCE,
        next_steps=next_steps(runs),
        sections=sections,
        data=_script_data(sections, noun_of(runs)),
        style=Markup(style),
        script=Markup(script),
        script_hash=_hash(script),
        style_hash=_hash(style),
        version=__version__,
    )


def _with_missing_parts(sections: Sequence[Section]) -> list[Section]:
    """Return the sections that have something to show; the notes of all others become one section before the last."""
    missing = Section("missing", "Not shown", "What cannot be shown")
    shown = []
    for section in sections:
        if section.empty:
            missing.blocks += [Note(block.text, section.kicker) for block in section.blocks if isinstance(block, Note)]
        else:
            section.blocks.sort(key=lambda block: isinstance(block, Note))
            shown.append(section)
    return [*shown[:-1], missing, shown[-1]] if missing.blocks else shown


def _script_data(sections: Sequence[Section], noun: str) -> dict[str, Any]:
    """Return the data of the page's tooltips. Matrices and maps of the same classes share one list of names."""
    charts: dict[str, Any] = {}
    names: list[list[str]] = []
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Figure):
                charts[block.id] = block.chart.data
            elif isinstance(block, (ConfusionMatrix, Map)):
                own = block.chart.data["names"]
                if own not in names:
                    names.append(own)
                charts[block.id] = {**block.chart.data, "names": names.index(own)}
    return {"charts": charts, "classes": names, "noun": noun}


def _read(name: str) -> str:
    return resources.files("selftrain.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
