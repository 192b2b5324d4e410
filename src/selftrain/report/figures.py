"""The paper's figures, by name, drawn from runs: PNG and SVG.

Knows nothing of training: a figure's runs come from the bench ``figure/<name>``, and are found again by their settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selftrain.config.settings import changes_results
from selftrain.errors import UserError, nearest
from selftrain.files import replacing
from selftrain.report.reading import Array, RunData, read_run
from selftrain.runs.run import CONFIG, METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Sheet

    from selftrain.bench.catalogue import Bench, Row

Group = Mapping[str, list[RunData]]
"""runs that differ in their seed only, by what their line is called"""
Groups = Mapping[str, Group]
"""the same for each dataset"""

INK, SOFT, LINES = "#1d1f23", "#5b6068", "#e2dfd8"
COLOURS = ("#5b6068", "#0b62c4", "#b84e08", "#7a3fd6", "#00786a", "#b0286e", "#6b5b00", "#00718f")
MARKS = ("o", "s", "^", "D", "v", "P", "h", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), "-", (0, (2, 1.4)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5)), "-", (0, (1, 1)))
OF_METHOD = {"labels only": 0, "FixMatch": 1, "DST(FixMatch)": 2, "DST without worst case": 3, "FlexMatch": 4,
             "DST(FlexMatch)": 5, "Dash": 6, "Co-training": 4, "Tri-training": 6}  # fmt: skip
"""so that a method looks the same in every figure"""
FEW = 7
"""categories that the paper picks at random where there are many"""


@dataclass(frozen=True)
class PaperFigure:
    about: str
    paper: str
    """its caption there, in short"""
    draw: Callable[..., Sheet]
    """from the runs of each dataset; from nothing where it needs none"""
    needs: str = "per_class"
    """a field of metrics.jsonl without which nothing can be drawn; empty: no runs are needed"""
    seeds: int = 1
    """of its example in the documentation"""


def bench_command(name: str) -> str:
    """What makes the runs of a figure at CPU scale; empty where it needs none."""
    figure = FIGURES[name]
    return f"selftrain bench figure/{name} --root DATA --seeds {figure.seeds} --out RUNS" if figure.needs else ""


def figure_command(name: str) -> str:
    return f"selftrain report {'RUNS ' if FIGURES[name].needs else ''}--figure {name} -o {name}"


def find_figure(name: str) -> PaperFigure:
    if name not in FIGURES:
        raise UserError(f"--figure {name}: there is none of that name.{nearest(name, FIGURES)} "
                        "See 'selftrain list figures'.")  # fmt: skip
    return FIGURES[name]


def draw_figures(names: Sequence[str], folders: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Write each figure as PNG and SVG; the folders are runs, or hold runs (as the folder of a bench does)."""
    chosen = [(name, find_figure(name)) for name in names]
    for name, figure in chosen:
        if figure.needs and not folders:
            raise UserError(f"--figure {name}: name its runs. Make them with: {bench_command(name)}")
    runs = [read_run(folder) for folder in _run_folders(folders)]
    written = []
    for name, figure in chosen:
        stem = _stem(name, out, len(names))
        sheet = figure.draw(pick(name, figure, runs)) if figure.needs else figure.draw()
        for suffix in (".png", ".svg"):
            path = stem.with_name(stem.name + suffix)
            _save(sheet, path)
            written.append(path)
    return written


def _stem(name: str, out: Path | None, count: int) -> Path:
    if out is None:
        return Path(name)
    if out.is_dir() or count > 1:
        return out / name
    return out.with_suffix("") if out.suffix in (".png", ".svg") else out


def _run_folders(folders: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        if (folder / CONFIG).exists():
            found.append(folder)
            continue
        inside = _runs_below(folder)
        if not inside:
            reason = "there is no run folder in it" if folder.is_dir() else "no such folder"
            raise UserError(f"{folder}: not a run folder, nor a folder of runs ({reason}).")
        found += sorted(inside)
    return list(dict.fromkeys(found))


def _runs_below(folder: Path) -> list[Path]:
    """Runs in a folder that have been evaluated; what lies inside a run (its reference) belongs to it."""
    found = []
    for path, below, files in os.walk(folder):
        if CONFIG in files:
            below.clear()
            rows = Path(path, METRICS)
            if rows.exists() and rows.stat().st_size:
                found.append(Path(path))
    return found


# --- whose runs they are


def pick(name: str, figure: PaperFigure, runs: Sequence[RunData]) -> dict[str, dict[str, list[RunData]]]:
    """The runs of a figure by dataset and row.

    Those of its bench are equal to a row's cell in all settings. Where there are none (other data, another backbone),
    runs count whose method, and whatever else the row is about, agree.
    """
    from selftrain.bench.catalogue import BENCHES

    bench = BENCHES[f"figure/{name}"]
    known = [run for run in runs if any(row.get(figure.needs) is not None for row in run.rows)]
    for alike in (_cells, _rows):
        groups: dict[str, dict[str, list[RunData]]] = {}
        for row in bench.rows:
            for run in alike(bench, row, known):
                groups.setdefault(run.dataset, {}).setdefault(row.name, []).append(run)
        if groups:
            return groups
    wanted = ", ".join(row.name for row in bench.rows)
    raise UserError(
        f"--figure {name}: none of the {len(runs)} runs is one of its own ({wanted}) with '{figure.needs}' in "
        f"metrics.jsonl. Make them with: {bench_command(name)}"
    )


def _settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    from selftrain.config.options import flatten
    from selftrain.runs.trainer import settle

    return flatten(asdict(settle(settings)[0]))


def _cells(bench: Bench, row: Row, runs: Sequence[RunData]) -> list[RunData]:
    wanted = _settled({"method": row.method, **bench.settings, **row.settings})
    fixed = {key: value for key, value in wanted.items() if key != "seed" and changes_results(key)}
    return [
        run
        for run in runs
        if run.dataset in bench.datasets and all(run.config.get(key, value) == value for key, value in fixed.items())
    ]


def _rows(bench: Bench, row: Row, runs: Sequence[RunData]) -> list[RunData]:
    own = {key: value for key, value in row.settings.items() if key.startswith("method.")}
    others = {key: value for key, value in row.settings.items() if key not in own}
    regimes = {run.config["regime"] for run in runs}
    methods = {regime: _settled({"method": row.method, "regime": regime, **own})["method"] for regime in regimes}
    return [
        run
        for run in runs
        if run.config.get("method") == methods[run.config["regime"]]
        and all(run.config.get(key) == value for key, value in others.items())
    ]


# --- drawing


def _sheet(columns: int, width: float = 3.4, height: float = 2.9) -> tuple[Sheet, list[Axes]]:
    from matplotlib.figure import Figure as Sheet
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    sheet = Sheet(figsize=(width * columns, height), layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09))
    sheet.patch.set_facecolor("white")
    axes = np.atleast_1d(np.asarray(sheet.subplots(1, columns), dtype=object)).ravel().tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(SOFT)
        ax.tick_params(colors=SOFT, labelsize=8)
        ax.grid(axis="y", color=LINES, linewidth=0.8)
        ax.set_axisbelow(True)
    return sheet, axes


def _save(sheet: Sheet, path: Path) -> None:
    import matplotlib

    with (
        matplotlib.rc_context({"svg.hashsalt": "selftrain", "svg.fonttype": "path", "font.family": "DejaVu Sans"}),
        replacing(path) as temporary,
    ):
        kind = path.suffix.removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        sheet.savefig(temporary, format=kind, dpi=110, metadata=metadata)


def _look(label: str, k: int) -> int:
    """The place of a line's colour, dash and mark."""
    return OF_METHOD.get(label.rpartition(", ")[0] or label, OF_METHOD.get(label, k % 8))


def _title(ax: Axes, words: str) -> None:
    ax.set_title(words, loc="left", fontsize=9.5, color=INK, fontweight="bold")


def _legend(sheet: Sheet, ax: Axes, columns: int = 4) -> None:
    handles, labels = ax.get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=8.5, frameon=False
    )


def _data_word(dataset: str, group: Group) -> str:
    run = next(iter(group.values()))[0]
    labels = run.labels_per_class
    return f"{dataset}, {labels:.3g} labels a class" if labels else dataset


def _mean_curve(
    runs: Sequence[RunData], of: Callable[[RunData], list[tuple[int, float]]]
) -> tuple[Array, Array, Array]:
    """Steps, mean and standard deviation over the seeds; an infinite value makes an infinite mean."""
    tables = [dict(of(run)) for run in runs]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    values = np.array([[table[step] for table in tables] for step in steps])
    with np.errstate(invalid="ignore"):
        spread = np.nan_to_num(values.std(axis=1), nan=0.0) if len(values) else np.zeros(0)
    return np.array(steps), values.mean(axis=1) if len(values) else np.zeros(0), spread


def _lines(ax: Axes, group: Group, of: Callable[[RunData], list[tuple[int, float]]], scale: float = 100.0) -> None:
    for k, (label, runs) in enumerate(group.items()):
        steps, mean, spread = _mean_curve(runs, of)
        if not len(steps):
            continue
        finite = np.isfinite(mean)
        k = _look(label, k)
        style: dict[str, Any] = {"color": COLOURS[k], "linestyle": DASHES[k], "linewidth": 1.8}
        ax.plot(steps[finite], scale * mean[finite], label=label, marker=MARKS[k], markersize=3.5, **style)
        if len(runs) > 1:
            ax.fill_between(
                steps[finite], scale * (mean - spread)[finite], scale * (mean + spread)[finite],
                color=COLOURS[k], alpha=0.15, linewidth=0,
            )  # fmt: skip
        if (~finite).any():  # on a line of its own above all others
            ax.plot(
                steps[~finite], np.full((~finite).sum(), 0.98), MARKS[k], color=COLOURS[k], markersize=4,
                transform=ax.get_xaxis_transform(), clip_on=False, fillstyle="none",
            )  # fmt: skip
    ax.set_xlabel("step", fontsize=8.5, color=SOFT)


def _curve(name: str) -> Callable[[RunData], list[tuple[int, float]]]:
    return lambda run: run.curve(name)


def _categories(run: RunData) -> list[int]:
    """All classes of a small set, or a few drawn at random, always the same."""
    K = len(run.classes)
    if K <= 10:
        return list(range(K))
    return sorted(np.random.default_rng(0).choice(K, FEW, replace=False).tolist())


def _per_class(runs: Sequence[RunData]) -> Array:
    values = [[math.nan if v is None else float(v) for v in run.per_class or ()] for run in runs]
    return np.nanmean(np.array(values), axis=0)


def _bars(groups: Groups) -> Sheet:
    """Accuracy of some categories, a bar a run."""
    sheet, axes = _sheet(len(groups), 7.4 if len(groups) == 1 else 5.4, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        run = next(iter(group.values()))[0]
        chosen = _categories(run)
        width = 0.82 / len(group)
        for k, (label, runs) in enumerate(group.items()):
            places = [i + (k - (len(group) - 1) / 2) * width for i in range(len(chosen))]
            colour = COLOURS[_look(label, k)]
            ax.bar(places, 100 * _per_class(runs)[chosen], width * 0.92, label=label, color=colour)
        names = [run.classes[c] for c in chosen]
        turned = max(map(len, names)) > 7
        ax.set_xticks(range(len(chosen)), names, rotation=30 if turned else 0, ha="right" if turned else "center")
        ax.set_ylim(0, 100)
        ax.set_ylabel("accuracy, %", fontsize=8.5, color=SOFT)
        _title(ax, _data_word(dataset, group))
    _legend(sheet, axes[0], 5)
    return sheet


def _error_by_class(groups: Groups) -> Sheet:
    """Error of every class, the classes in the order of the first row: what self-training does to good and bad ones."""
    sheet, axes = _sheet(len(groups), 6.8 if len(groups) == 1 else 5.0, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        order = np.argsort(1 - _per_class(next(iter(group.values()))), kind="stable")
        for i, (label, runs) in enumerate(group.items()):
            k = _look(label, i)
            ax.plot(
                np.arange(1, len(order) + 1), 100 * (1 - _per_class(runs)[order]), label=label, color=COLOURS[k],
                linestyle=DASHES[k], marker=MARKS[k], markersize=4, linewidth=1.8, clip_on=False,
            )  # fmt: skip
        first = next(iter(group))
        ax.set_xlabel(f"classes, from the best to the worst of “{first}”", fontsize=8.5, color=SOFT)
        ax.set_ylabel("error, %", fontsize=8.5, color=SOFT)
        ax.set_ylim(0, 100)
        _title(ax, _data_word(dataset, group))
    _legend(sheet, axes[0])
    return sheet


def _each_category(groups: Groups) -> Sheet:
    """A panel a row: accuracy of every category, sorted within the panel."""
    group = next(iter(groups.values()))
    sheet, axes = _sheet(len(group), 3.1, 2.7)
    for k, (ax, (label, runs)) in enumerate(zip(axes, group.items(), strict=True)):
        values = 100 * np.sort(_per_class(runs))
        ax.bar(np.arange(1, len(values) + 1), values, 0.9, color=COLOURS[_look(label, k + 1)])
        ax.axhline(values.mean(), color=INK, linewidth=1, linestyle=(0, (3, 2)))
        ax.text(1, values.mean() + 2, f"mean {values.mean():.1f}", fontsize=8, color=INK)
        ax.set_ylim(0, 104)
        ax.set_xlabel("classes, sorted", fontsize=8.5, color=SOFT)
        _title(ax, label)
    axes[0].set_ylabel(f"accuracy, %  ({next(iter(groups))})", fontsize=8.5, color=SOFT)
    return sheet


def _over_training(groups: Groups, measure: str = "accuracy", word: str = "accuracy, %") -> Sheet:
    """A panel a dataset: one measure over the steps."""
    sheet, axes = _sheet(len(groups), 5.6 if len(groups) == 1 else 4.2, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        _lines(ax, group, _curve(measure))
        ax.set_ylabel(word, fontsize=8.5, color=SOFT)
        _title(ax, _data_word(dataset, group))
    _legend(sheet, axes[0])
    return sheet


def _worst_mean(run: RunData) -> list[tuple[int, float]]:
    return run.curve("worst20_percent")


def _pseudo_imbalance(run: RunData) -> list[tuple[int, float]]:
    """I of the pseudo labels in use; of the predictions, in runs that did not count them."""
    found: list[tuple[int, float]] = []
    for at, row in enumerate(run.rows):
        kept = run.by_class("pseudo_kept", at)
        if kept is not None and kept.sum() > 0:
            found.append((int(row["step"]), float(kept.max() / kept.min()) if kept.min() > 0 else math.inf))
    return found or run.curve("imbalance_ratio")


def _pseudo_panels(groups: Groups, worst: bool) -> Sheet:
    dataset, group = next(iter(groups.items()))
    sheet, axes = _sheet(4 if worst else 3, 3.0, 2.9)
    _lines(axes[0], group, _curve("pseudo_label_quantity"))
    _title(axes[0], "(a) quantity, %")
    _lines(axes[1], group, _curve("pseudo_label_quality"))
    _title(axes[1], "(b) quality, %")
    _lines(axes[2], group, _pseudo_imbalance, scale=1.0)
    axes[2].set_yscale("log")
    for which in (axes[2].yaxis.set_major_formatter, axes[2].yaxis.set_minor_formatter):
        which(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "125" else "")
    axes[2].tick_params(axis="y", which="minor", labelsize=8, colors=SOFT)
    _title(axes[2], "(c) imbalance ratio I")
    if any(math.isinf(v) for runs in group.values() for run in runs for _, v in _pseudo_imbalance(run)):
        axes[2].text(1.0, 1.0, "hollow marks: ∞", transform=axes[2].transAxes, ha="right", va="bottom", fontsize=7.5)
    if worst:
        _lines(axes[3], group, _worst_mean)
        _title(axes[3], "(d) accuracy, worst fifth, %")
    sheet.suptitle(_data_word(dataset, group), fontsize=9, color=SOFT, x=0.01, ha="left")
    _legend(sheet, axes[0])
    return sheet


def _worst_case(groups: Groups) -> Sheet:
    sheet, axes = _sheet(2, 4.0, 2.9)
    dataset, group = next(iter(groups.items()))
    _lines(axes[0], group, _curve("worst_error"))
    _title(axes[0], "error of h' on pseudo labels, %")
    _lines(axes[1], group, _curve("worst_loss"), scale=1.0)
    _title(axes[1], "worst-case loss")
    sheet.suptitle(_data_word(dataset, group), fontsize=9, color=SOFT, x=0.01, ha="left")
    _legend(sheet, axes[0])
    return sheet


def _label_amount(groups: Groups) -> Sheet:
    """Accuracy over labels a class; rows are called "method, N"."""
    sheet, axes = _sheet(len(groups), 4.8 if len(groups) == 1 else 4.0, 3.2)
    for ax, (dataset, group) in zip(axes, groups.items(), strict=True):
        methods: dict[str, list[tuple[float, float]]] = {}
        for label, runs in group.items():
            method = label.rpartition(", ")[0]
            accuracy = float(np.mean([run.value("accuracy") for run in runs]))
            methods.setdefault(method, []).append((runs[0].labels_per_class or 0, accuracy))
        for i, (method, found) in enumerate(methods.items(), 1):
            k = _look(method, i)
            x, y = np.array(sorted(found)).T
            ax.plot(x, 100 * y, label=method, color=COLOURS[k], linestyle=DASHES[k], marker=MARKS[k], linewidth=1.8)
        ax.set_xscale("log")
        ticks = sorted({x for found in methods.values() for x, _ in found})
        ax.set_xticks(ticks, [f"{x:.3g}" for x in ticks])
        ax.minorticks_off()
        ax.set_xlabel("labels a class", fontsize=8.5, color=SOFT)
        ax.set_ylabel("accuracy, %", fontsize=8.5, color=SOFT)
        _title(ax, dataset)
    _legend(sheet, axes[0])
    return sheet


def _hyperplanes() -> Sheet:
    """What the worst case is, on points in the plane."""
    from selftrain.report.concept import three_panels

    sheet, axes = _sheet(3, 3.3, 3.5)
    three_panels(axes, classes=(COLOURS[1], COLOURS[2]), ink=INK, worst=COLOURS[3], soft=SOFT)
    _legend(sheet, axes[0])
    return sheet


def _quality(groups: Groups) -> Sheet:
    return _over_training(groups, "pseudo_label_quality", "pseudo labels right, %")


FIGURES: dict[str, PaperFigure] = {
    "data-sampling": PaperFigure(
        "effect of data sampling: accuracy of some categories, learned from different labeled draws",
        "Effect of data sampling",
        _bars,
    ),
    "pretrained": PaperFigure(
        "effect of pre-trained representations: accuracy of some categories on different features",
        "Effect of pre-trained representations",
        _bars,
    ),
    "algorithm": PaperFigure(
        "effect of the self-training algorithm: FixMatch takes from poor categories, DST does not",
        "Effect of self-training algorithm",
        _bars,
    ),
    "per-class-error": PaperFigure(
        "error rate in every class: labels only, FixMatch, DST",
        "Error rate of pseudo labels in any classes",
        _error_by_class,
    ),
    "hyperplanes": PaperFigure(
        "what the worst case is, on points in the plane: hyperplanes of few labels, the worst one, features that move",
        "Concept explanations",
        _hyperplanes,
        "",
    ),
    "accuracy": PaperFigure(
        "accuracy over training", "Top-1 accuracy, train from scratch", _over_training, "accuracy", seeds=3
    ),
    "pseudo-labels": PaperFigure(
        "quantity and quality of pseudo labels, over all and on the worst classes",
        "The quantity and quality of pseudo labels",
        lambda groups: _pseudo_panels(groups, True),
        "pseudo_label_quantity",
    ),
    "worst-case": PaperFigure(
        "convergence of the worst case: error rate and loss of h'",
        "Empirical error rate and loss",
        _worst_case,
        "worst_error",
    ),
    "stability": PaperFigure(
        "training stability: accuracy over training on several datasets",
        "Failure cases of FixMatch",
        _over_training,
        "accuracy",
    ),
    "per-category": PaperFigure(
        "accuracy of each category: FixMatch, DST without the worst case, DST",
        "Top-1 accuracy of each category",
        _each_category,
    ),
    "label-amount": PaperFigure(
        "accuracy over the number of labels a class",
        "Ablation on the amount of labeled data",
        _label_amount,
        "accuracy",
    ),
    "pseudo-labels-other": PaperFigure(
        "quantity, quality and imbalance of pseudo labels elsewhere: there on other weights, here on other data",
        "Analysis on the behavior of pseudo labels",
        lambda groups: _pseudo_panels(groups, False),
        "pseudo_label_quantity",
    ),
    "dynamic-thresholds": PaperFigure(
        "quality of pseudo labels against methods with dynamic thresholds",
        "Quality of pseudo labels: dynamic threshold",
        _quality,
        "pseudo_label_quality",
        seeds=3,
    ),
    "multi-head": PaperFigure(
        "quality of pseudo labels against methods with several heads or views",
        "Quality of pseudo labels: multi-view training",
        _quality,
        "pseudo_label_quality",
        seeds=3,
    ),
}
"""In the order of the paper. What is left are drawings of architectures: docs/draw_methods.py makes those."""
