"""The results of a bench as a table beside the paper's: Markdown to read, LaTeX to print, CSV to process.

Knows nothing of how the results were computed.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from selftrain.bench.cells import Cell
from selftrain.bench.spec import Bench, Row, Variant
from selftrain.runs.layout import AMOUNTS

Runs = Mapping[Cell, Mapping[str, Any]]

DOWN = "↓"
NAMES = {
    "worst20_percent": "worst fifth",
    "pseudo_label_quantity": "kept",
    "pseudo_label_quality": "correct",
    "mean_per_class": "mean per class",
}


def mean_and_deviation(values: list[float], digits: int = 1) -> str:
    """Return ``mean ± standard deviation``; the mean alone if there is one value."""
    if float("inf") in values:
        return "infinite"
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


@dataclass(frozen=True)
class Section:
    """One table of a bench; a bench on several datasets has one per variant."""

    title: str
    header: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class _Column:
    variant: str
    dataset: str
    title: str


def metric_of(run: Mapping[str, Any]) -> str:
    """Return the measure that the paper reports for the run's dataset."""
    return run.get("metric") or "accuracy"


class _Layout:
    def __init__(self, bench: Bench, runs: Runs):
        self.bench = bench
        self.runs: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for cell, run in runs.items():
            self.runs.setdefault((cell.row.name, cell.variant, cell.dataset), []).append(run)

    def sections(self) -> Iterator[Section]:
        bench, variants = self.bench, self.bench.variants
        if len(bench.datasets) == 1:
            dataset = bench.datasets[0]
            columns = [_Column(variant.name, dataset, variant.name or dataset) for variant in variants]
            title = dataset if variants[0].name else ""
            yield Section(title, *self._lines(columns, variants))
            return
        for variant in variants:
            columns = [_Column(variant.name, dataset, dataset) for dataset in bench.datasets]
            yield Section(variant.name, *self._lines(columns, (variant,)))

    def _lines(self, columns: list[_Column], variants: tuple[Variant, ...]) -> tuple[list[str], list[list[str]]]:
        bench = self.bench
        beside = [bool(bench.paper.get((column.variant, column.dataset))) for column in columns]
        names = {variant.name for variant in variants}
        elsewhere = [key for key in bench.paper if key[0] in names and key[1] not in bench.datasets]
        header = [""]
        for column, known in zip(columns, beside, strict=True):
            header += [column.title, *(["paper"] if known else []), *(NAMES.get(m, m) for m in bench.measures)]
        over_datasets = len(bench.datasets) > 1
        header += ["mean", *(["paper"] if all(beside) else [])] if over_datasets else []
        header += [f"paper: {dataset}" for _, dataset in elsewhere]
        lines = []
        for row in {row.name: row for row in bench.rows}.values():
            words = [row.name]
            for column, known in zip(columns, beside, strict=True):
                ours = self._values(row.name, column)
                words.append(mean_and_deviation(ours) + self._down(row, column) if ours else "-")
                words += [self._printed(row, (column.variant, column.dataset))] if known else []
                words += [self._measured(row.name, column, measure) for measure in bench.measures]
            if over_datasets:
                words.append(self._mean([self._values(row.name, column) for column in columns]))
                words += [self._paper_mean(row.name, columns)] if all(beside) else []
            lines.append(words + [self._printed(row, key) for key in elsewhere])
        return header, lines

    def _values(self, name: str, column: _Column, measure: str | None = None) -> list[float]:
        runs = self.runs.get((name, column.variant, column.dataset), [])
        found = [run.get(measure or metric_of(run)) for run in runs]
        scale = 1 if measure in AMOUNTS else 100
        return [scale * float(value) for value in found if value is not None]

    def _measured(self, name: str, column: _Column, measure: str) -> str:
        values = self._values(name, column, measure)
        return f"{mean(values):.1f}" if values else "-"

    def _down(self, row: Row, column: _Column) -> str:
        baseline = self.bench.baseline(row)
        ours, theirs = self._values(row.name, column), self._values(baseline, column)
        return f" {DOWN}" if ours and theirs and mean(ours) < mean(theirs) else ""

    def _printed(self, row: Row, key: tuple[str, str]) -> str:
        results = self.bench.paper[key]
        if row.name not in results:
            return "-"
        baseline = results.get(self.bench.baseline(row), 0.0)
        return f"{results[row.name]:.1f}" + (f" {DOWN}" if results[row.name] < baseline else "")

    @staticmethod
    def _mean(columns: list[list[float]]) -> str:
        return f"{mean(mean(values) for values in columns):.1f}" if all(columns) else "-"

    def _paper_mean(self, name: str, columns: list[_Column]) -> str:
        found = [self.bench.paper[c.variant, c.dataset].get(name) for c in columns]
        results = [result for result in found if result is not None]
        return f"{mean(results):.1f}" if len(results) == len(found) else "-"

    def notes(self, sections: list[Section]) -> list[str]:
        """Explain the signs, and name the datasets that are not measured by accuracy."""
        notes = self._arrows(sections)
        other: dict[str, set[str]] = {}
        for (_, _, dataset), runs in self.runs.items():
            for run in runs:
                if metric_of(run) != "accuracy":
                    other.setdefault(metric_of(run), set()).add(dataset)
        notes += [f"{', '.join(sorted(names))}: {NAMES.get(m, m)}." for m, names in other.items()]
        if "pseudo_label_quality" in self.bench.measures:
            notes.append(
                "kept: share of unlabeled images with a pseudo label; correct: share of those labels that are correct."
            )
        return notes

    def _arrows(self, sections: list[Section]) -> list[str]:
        """Explain the arrow, if there is one: which rows are below which."""
        marked = {line[0] for section in sections for line in section.lines if any(DOWN in word for word in line)}
        against: dict[str, list[str]] = {}
        for row in self.bench.rows:
            if row.name in marked:
                against.setdefault(self.bench.baseline(row), []).append(row.name)
        if len(against) > 1:
            each = "; ".join(f"{', '.join(rows)}: below {base}" for base, rows in against.items())
            return [f"{DOWN} below the row that it is compared with ({each})."]
        return [f"{DOWN} below {base}." for base in against]


def layout(bench: Bench, runs: Runs) -> tuple[list[Section], list[str]]:
    """Return the tables of a bench, cell by cell, and the notes below them."""
    made = _Layout(bench, runs)
    sections = list(made.sections())
    return sections, made.notes(sections)


def markdown(bench: Bench, runs: Runs) -> str:
    """Return the tables with the metric on each dataset, further measures, the paper's results and the mean."""
    sections, notes = layout(bench, runs)
    parts = []
    for section in sections:
        rows = [section.header, *section.lines]
        head, *body = ["|" + "|".join(f" {word} " if word else " " for word in words) + "|" for words in rows]
        title = [f"**{section.title}**", ""] if section.title else []
        parts.append("\n".join([*title, head, "|---" * len(section.header) + "|", *body]))
    return "\n\n".join([*parts, *notes])


_TEX = {
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", DOWN: r"$\downarrow$",
}  # fmt: skip


def _tex(text: str) -> str:
    return re.sub("|".join(map(re.escape, _TEX)), lambda match: _TEX[match[0]], text)


def latex(bench: Bench, runs: Runs) -> str:
    r"""Return the same tables for ``\input``; they need the package booktabs."""
    sections, notes = layout(bench, runs)
    lines = [f"% {bench.about}"]
    for section in sections:
        lines += [r"\begin{tabular}{@{}l" + "c" * (len(section.header) - 1) + r"@{}}", r"\toprule"]
        if section.title:
            lines += [rf"\multicolumn{{{len(section.header)}}}{{@{{}}l}}{{{_tex(section.title)}}} \\ \midrule"]
        lines += [" & ".join(map(_tex, section.header)) + r" \\ \midrule"]
        lines += [" & ".join(map(_tex, words)) + r" \\" for words in section.lines]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    lines += [rf"\par\smallskip {_tex(note)}" for note in notes]
    return "\n".join(lines).rstrip() + "\n"


MEASURES = ("accuracy", "mean_per_class", "worst20_percent", "imbalance_ratio", "pseudo_label_quantity",
            "pseudo_label_quality")  # fmt: skip
HASHES = ("split_hash", "settings_hash")


def as_csv(runs: Runs) -> str:
    """Return one line per run, with all that is needed to repeat it: settings, hashes, versions and machine."""
    known = dict.fromkeys(name for run in runs.values() for name in run.get("environment", {}))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", "variant", "method", "dataset", "seed", "evaluated_on", "metric", *MEASURES, "seconds",
                     "steps", *HASHES, *known, "settings"])  # fmt: skip
    for cell, run in sorted(runs.items(), key=lambda pair: str(pair[0])):
        environment = run.get("environment", {})
        writer.writerow([
            cell.row.name, cell.variant, run["method"], cell.dataset, cell.seed, run["evaluated_on"], metric_of(run),
            *(run.get(name) for name in (*MEASURES, "seconds", "steps", *HASHES)),
            *(environment.get(name) for name in known),
            json.dumps({"method": cell.row.method, **cell.settings}, sort_keys=True),
        ])  # fmt: skip
    return file.getvalue()
