"""Section: the accuracy of each class, and how self-training changed it.

Knows nothing of where the errors come from; see ``bias``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selftrain.report.charts import change_chart, points
from selftrain.report.reference import Baseline, baseline_of
from selftrain.report.run_data import PerClass, RunData
from selftrain.report.section import ClassTable, Section, by_classes
from selftrain.text import plural


def classes(runs: Sequence[RunData]) -> Section:
    section = Section("classes", "Classes", "Accuracy of each class", two_columns=True)
    findings = []
    for names, members in by_classes(runs).items():
        scored = [(i, run) for i, run in members if run.per_class is not None]
        if not scored:
            continue
        baselines = {i: baseline_of(run, runs) for i, run in scored}
        for i, run in scored:
            baseline = baselines[i]
            if baseline is not None and not (run.labels_only and baseline.per_class == run.per_class):
                findings.append(_change(section, i, run, baseline))
        shared = next((baseline for baseline in baselines.values() if baseline), None)
        section.blocks.append(_class_table(names, scored, shared))
    if len(findings) == 1:
        section.title = findings[0].removesuffix(".")
    elif findings:
        section.title = "Which classes gain from self-training, and which fall behind"
        section.text = " ".join(findings)
    elif section.blocks and all(run.fell_back for run in runs):
        section.note("The final model is the one that was trained on the labels alone, so there is no change to show.")
    elif section.blocks:
        section.note(
            "There is no labels-only accuracy to compare with. Run “selftrain report --reference”, or add a run of the "
            "method “supervised” on the same split to this report."
        )
    return section


def _change(section: Section, i: int, run: RunData, baseline: Baseline) -> str:
    """Add a figure of the changes, and return a sentence that says how many classes changed."""
    before, after = baseline.per_class, run.per_class or []
    order = _ascending(before)
    pairs = [(before[k], after[k]) for k in order]
    gained = sum(1 for a, b in pairs if a is not None and b is not None and b > a)
    lost = sum(1 for a, b in pairs if a is not None and b is not None and b < a)
    half = max(1, len(pairs) // 2)
    weak = [b - a for a, b in pairs[:half] if a is not None and b is not None]
    strong = [b - a for a, b in pairs[half:] if a is not None and b is not None]
    finding = f"{run.name} improved {plural(gained, 'class', 'classes')} and worsened {lost or 'none'}."
    caption = f"One bar per class, from its accuracy with {baseline.source} (dark tick) to its accuracy in this run."
    if weak and strong:
        caption += (
            f" The weaker half of the classes changed by {points(float(np.mean(weak)))} points on average, "
            f"the stronger half by {points(float(np.mean(strong)))} points."
        )
    chart = change_chart(
        f"{finding} {caption}",
        i,
        [run.classes[k] for k in order],
        [a for a, _ in pairs],
        [b for _, b in pairs],
        words=("labels only", "this run"),
        ends=("weak with labels only", "strong"),
    )
    section.figure(f"change{i}", run.name, caption, chart, run=i, legend="accuracy")
    return finding


def _class_table(names: Sequence[str], members: list[tuple[int, RunData]], baseline: Baseline | None) -> ClassTable:
    before = baseline.per_class if baseline else None
    others = [(i, run) for i, run in members if before is None or run.per_class != before]
    columns = [(i, run.name, run.per_class or []) for i, run in others or members]
    return ClassTable(names, before, columns, _ascending(before if before is not None else columns[0][2]))


def _ascending(values: PerClass) -> list[int]:
    """Return the classes from the weakest to the strongest, those without a value last."""
    return sorted(range(len(values)), key=lambda k: (values[k] is None, values[k] or 0, k))
