"""One page of results per question, made from finished runs: tables, paired comparisons, and their origin.

Trains nothing. Knows nothing of how a run is computed: a bench whose runs are missing is named as missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.bench.catalogue import find_bench
from selftrain.bench.cells import Cell, cells_of
from selftrain.bench.significance import compare
from selftrain.bench.spec import Bench
from selftrain.bench.table import markdown
from selftrain.errors import UserError
from selftrain.files import write_text
from selftrain.runs.environment import environment
from selftrain.runs.layout import RunLayout

Results = dict[Cell, Mapping[str, Any]]
MOST_SEEDS = 20
"""seeds that are looked for"""


@dataclass(frozen=True)
class Question:
    title: str
    benches: tuple[str, ...]


QUESTIONS: dict[str, Question] = {
    "methods": Question("Which method is best on frozen features?", ("cpu/methods", "cpu/baselines")),
    "add-on": Question(
        "Does DST improve the methods it wraps?", ("cpu/addon", "cpu/addon-10", "pile/addon", "pile/rivals")
    ),
    "piles": Question("What happens on pools that are uneven or hold junk?", ("pile/all",)),
    "fine-tuning": Question("Does DST help when a whole pretrained network is trained?", ("cpu/finetune",)),
    "scratch": Question("Does DST help from random weights?", ("cpu/scratch", "cpu/digits")),
    "backbones": Question("What do stronger backbones change?", ("backbone/levels", "backbone/gain")),
    "labels": Question("How many labels are enough?", ("cpu/labels",)),
    "parts": Question("Which parts of DST matter?", ("cpu/ablation", "cpu/main-head", "cpu/quality")),
}
"""pages by the name of their file; each bench answers one question"""


@dataclass(frozen=True)
class Found:
    """The finished runs of a bench, for as many seeds as every cell has."""

    bench: Bench
    seeds: int
    runs: Results
    newest: float
    """when the last of them ended, in seconds since 1970"""


def find_runs(name: str, out: Path) -> Found | None:
    """Return the runs of a bench below ``out``; None unless all its cells are finished for at least one seed."""
    bench = find_bench(name)
    runs: Results = {}
    newest, seeds = 0.0, 0
    for seed in range(MOST_SEEDS):
        cells = [cell for cell in cells_of(bench, seed + 1) if cell.seed == seed]
        layouts = {cell: RunLayout(cell.folder(out)) for cell in cells}
        if not all(layout.finished for layout in layouts.values()):
            break
        runs |= {cell: dict(layout.read_results()) for cell, layout in layouts.items()}
        newest = max([newest, *(layout.results.stat().st_mtime for layout in layouts.values())])
        seeds = seed + 1
    return Found(bench, seeds, runs, newest) if seeds else None


def publish(folder: Path, out: Path) -> tuple[list[Path], list[str]]:
    """Write a page for each question that has results; return the pages, and the benches without."""
    pages: list[Path] = []
    missing: list[str] = []
    for name, question in QUESTIONS.items():
        found = {bench: find_runs(bench, out) for bench in question.benches}
        missing += [bench for bench, runs in found.items() if runs is None]
        sections = [section(bench, runs) for bench, runs in found.items() if runs is not None]
        if sections:
            pages.append(folder / f"{name}.md")
            lacking = [f"`{bench}`" for bench, runs in found.items() if runs is None]
            note = [f"Not finished, and left out: {', '.join(lacking)}."] if lacking else []
            write_text(pages[-1], "\n\n".join([f"# {question.title}", *note, *sections]) + "\n")
    if not pages:
        raise UserError(f"`out` {out}: holds no finished bench. Run one first, such as 'selftrain bench cpu/scratch'.")
    return pages, missing


def section(name: str, found: Found) -> str:
    """Return the stamp, the table and the comparisons of one bench."""
    parts = [f"## {name}", f"{found.bench.about[0].upper()}{found.bench.about[1:]}.", stamp(name, found)]
    parts.append(markdown(found.bench, found.runs))
    if compared := comparisons(found.bench, found.runs):
        parts.append(compared)
    return "\n\n".join(parts)


def stamp(name: str, found: Found) -> str:
    """Return the sentence that every table of numbers needs: command, revision and date."""
    environments = [run.get("environment", {}) for run in found.runs.values()]
    revisions = sorted({str(one.get("revision") or "unknown") for one in environments})
    date = time.strftime("%Y-%m-%d", time.gmtime(found.newest))
    now = str(environment()["revision"] or "unknown")
    several = "" if len(revisions) == 1 else " **These runs come from several revisions.**"
    return (
        f"`selftrain bench {name} --seeds {found.seeds}`, revision {', '.join(revisions)}, {date}; "
        f"page made by `selftrain bench --publish` at revision {now}.{several}"
    )


def comparisons(bench: Bench, runs: Results) -> str:
    """Return a table of all rows that are compared with another one, wins and losses alike; empty without any."""
    lines = []
    for row in bench.rows:
        baseline = bench.baseline(row)
        paired = compare(runs, row.name, baseline) if baseline else None
        if paired is not None:
            counts = f"{paired.wins} | {paired.losses} | {len(paired.differences)}"
            lines.append(f"| {row.name} | {baseline} | {paired.mean:+.1f} | {counts} | {paired.p:.3f} |")
    if not lines:
        return ""
    head = "| | compared with | mean difference | better | worse | pairs | p |\n|---|---|---|---|---|---|---|\n"
    note = (
        "A pair is the same dataset, variant and seed, and, where each seed draws its own labels, the same labels. p "
        "is that of a two-sided sign-flip test over all pairs, not corrected for the number of rows."
    )
    return head + "\n".join(lines) + f"\n\n{note}"
