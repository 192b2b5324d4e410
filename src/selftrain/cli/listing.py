"""Tables of methods with their options, datasets, backbones, benches, figures and settings.

Knows nothing of what the choices do; names, defaults and help texts come from where they are declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from selftrain.config.options import describe, field_help, field_kinds, spell
from selftrain.errors import UserError, nearest


def tables(what: str, pattern: str | None) -> Iterator[Table]:
    """Yield the tables of one kind, with only the names that match a pattern if there is one."""
    known = {
        "methods": _methods, "datasets": _datasets, "backbones": _backbones, "settings": _settings, "benches": _benches,
        "figures": _figures,
    }  # fmt: skip
    yield from known[what](pattern)


def _matching(names: list[str], pattern: str | None, what: str) -> list[str]:
    chosen = [name for name in names if pattern is None or fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*")]
    if not chosen:
        raise UserError(f"list {what}: no name matches {pattern!r}.{nearest(pattern or '', names)}")
    return chosen


def _methods(pattern: str | None) -> Iterator[Table]:
    from selftrain.config.regimes import REGIMES
    from selftrain.methods import METHODS, method_info
    from selftrain.methods.spelling import usual_values

    for name in _matching(list(METHODS), pattern, "methods"):
        method, info = METHODS[name], method_info(name)
        table = Table(title=f"{name}  ({method.reference})", title_justify="left", title_style="bold", expand=True)
        table.add_column("option")
        for regime in REGIMES:
            table.add_column(regime)
        table.add_column("meaning", ratio=1)
        values = {regime: usual_values(method, regime) for regime in REGIMES}
        for option, text in field_help(method).items():
            defaults = [spell(values[r].get(option)) if r in method.regimes else "-" for r in REGIMES]
            table.add_row(option, *(["(a method)"] * len(REGIMES) if option == "base" else defaults), escape(text))
        remarks = [f"{regime}: {text}" for regime, text in method.remarks.items()]
        if not info.can_be_base and not info.is_wrapper:
            remarks.append(f"DST cannot wrap it: {method.why_no_base}")
        table.caption = escape(". ".join(remarks)) or None
        yield table


def _datasets(pattern: str | None) -> Iterator[Table]:
    from selftrain.data.sources.download import size_in_words
    from selftrain.data.sources.named import DATASETS

    specs = [DATASETS[name] for name in _matching(list(DATASETS), pattern, "datasets")]
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)  # fits into 80 columns
    table.add_column("name", no_wrap=True)
    for heading in ("classes", "train", "unlabeled", "test", "px", "download"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    table.add_column("regime", no_wrap=True)
    for spec in specs:
        counts = (str(spec.classes), f"{spec.train:,}", f"{spec.unlabeled:,}" if spec.unlabeled else "")
        fetched = size_in_words(spec.bytes) if spec.bytes else "by hand" if spec.by_hand else ""
        others = (f"{spec.test:,}", str(spec.size), fetched, METRICS[spec.metric], spec.regime)
        table.add_row(spec.name, *counts, *others)
    table.caption = "details: selftrain list datasets stl10; any dataset on Hugging Face: hf:NAME"
    yield table
    if pattern is not None:
        yield from map(_dataset, specs)


METRICS = {"accuracy": "top-1", "mean_per_class": "per class"}


def _dataset(spec: Any) -> Table:
    """Return the details of one dataset, and which file to put where if there is no network."""
    from selftrain.data.sources.download import size_in_words

    table = Table(title=spec.title, title_justify="left", title_style="bold", show_header=False, expand=True)
    table.add_column("property")
    table.add_column("value", ratio=1, overflow="fold")
    if spec.split:
        table.add_row("split", spec.split)
    if spec.backbone:
        table.add_row("backbone", f"{spec.backbone} in the paper")
    table.add_row("random flips", "yes" if spec.flip else "no")
    for regime, values in spec.defaults.items():
        table.add_row(f"in {regime}", ", ".join(f"{name}={spell(value)}" for name, value in values.items()))
    for file in spec.files:
        table.add_row("downloaded from", f"{file.url} ({size_in_words(file.bytes)})")
        table.add_row(file.checksum.partition(":")[0], file.checksum.partition(":")[2])
        table.add_row("without network, put at", f"ROOT/{f'{file.into}/' if file.into else ''}{file.name}")
    if spec.by_hand:
        table.add_row("by hand", f"{', '.join(f'ROOT/{path}' for path in spec.by_hand)}: {spec.how}")
    return table


def _backbones(pattern: str | None) -> Iterator[Table]:
    from selftrain.nn.backbones import list_backbones

    table = Table("name", "pretrained", "note")
    found = list_backbones(pattern)
    if not found:
        raise UserError(f"list backbones {pattern}: neither selftrain nor timm has a backbone of that name.")
    for info in found:
        table.add_row(info.name, "yes" if info.pretrained else "no", escape(info.note))
    if pattern is None:
        table.caption = "and every timm model: selftrain list backbones 'resnet*'"
    yield table


def _benches(pattern: str | None) -> Iterator[Table]:
    from selftrain.bench.catalogue import BENCHES

    table = Table("name", "datasets", "rows", "content")
    for name in _matching(list(BENCHES), pattern, "benches"):
        bench = BENCHES[name]
        table.add_row(name, ", ".join(bench.datasets), str(len(bench.rows)), escape(bench.about))
    yield table


def _figures(pattern: str | None) -> Iterator[Table]:
    from selftrain.report.paper_figures import FIGURES, bench_command, figure_command

    table = Table("name", "what it shows", "commands for its runs and for the figure", show_lines=True)
    for name in _matching(list(FIGURES), pattern, "figures"):
        figure = FIGURES[name]
        about = f"{figure.about} (the paper's “{figure.paper}”)"
        table.add_row(name, escape(about), escape(f"{bench_command(name)}\n{figure_command(name)}".strip()))
    table.caption = "DATA: folder that holds the datasets; RUNS: folder for run folders, shared by all figures"
    yield table


def _settings(pattern: str | None) -> Iterator[Table]:
    from selftrain.config.regimes import REGIMES
    from selftrain.config.settings import known_settings

    table = Table("--set", *REGIMES, "meaning")
    for name in _matching(known_settings(), pattern, "settings"):
        *defaults, meaning, kind = setting_row(name)
        table.add_row(name, *defaults, escape(f"{meaning} ({kind})"))
    yield table


def setting_row(name: str) -> list[str]:
    """Return the default of a setting in each regime, its meaning, and the values it takes."""
    from selftrain.config.regimes import REGIMES
    from selftrain.config.settings import SECTIONS, Settings

    section, _, key = name.rpartition(".")
    cls: Any = SECTIONS[section] if section else Settings
    default = cls.__dataclass_fields__[key].default
    values = [spell(REGIMES[regime].get(name, default)) or '""' for regime in REGIMES]
    return [*values, field_help(cls)[key], describe(field_kinds(cls)[key])]
