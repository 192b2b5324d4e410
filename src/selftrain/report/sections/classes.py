"""Section: the accuracy of each class, and how self-training changed it.

Knows nothing of where the errors come from; see ``bias``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selftrain.report.chance import Change, class_changes
from selftrain.report.charts import change_chart, points
from selftrain.report.reference import Baseline, baseline_of
from selftrain.report.run_data import PerClass, RunData
from selftrain.report.section import ClassColumn, ClassTable, Section, by_classes, headed
from selftrain.runs.model_readme import interval
from selftrain.text import plural


def classes(runs: Sequence[RunData]) -> Section:
    section = Section("classes", "Classes", "Accuracy of each class", two_columns=True)
    findings = []
    for names, members in by_classes(runs).items():
        scored = [(i, run) for i, run in members if run.per_class is not None]
        if not scored:
            section.blocks += [table for i, run in members if (table := _estimates(i, run)) is not None]
            continue
        baselines = {i: baseline_of(run, runs) for i, run in scored}
        for i, run in scored:
            baseline, changes = baselines[i], class_changes(run, runs)
            if baseline is not None and changes is not None:
                findings.append(_change(section, runs, i, run, baseline, changes))
        shared = next((baseline for baseline in baselines.values() if baseline), None)
        section.blocks.append(_class_table(names, scored, shared, runs))
    if len(findings) == 1:
        section.title = findings[0]
    elif findings:
        section.title = "Which classes gain from self-training, and which fall behind"
        section.text = ". ".join(findings) + "."
    elif section.blocks and all(run.fell_back for run in runs):
        section.note("The final model is the one that was trained on the labels alone, so there is no change to show.")
    elif any(run.per_class is not None for run in runs):
        section.note(
            "There is no labels-only accuracy to compare with. Run “selftrain report --reference”, or add a run of the "
            "method “supervised” on the same split to this report."
        )
    elif section.blocks:
        section.title = "Estimated accuracy of each class"
        section.text = (
            "There is no test set, so these are estimates from your labels, and much less certain than the estimate "
            "for all classes together. The weakest classes come first."
        )
    return section


def finding_of(run: RunData, runs: Sequence[RunData], changes: Sequence[Change]) -> str:
    """Return a sentence, without its full stop, that says how many classes changed more than chance explains."""
    better, worse = sum(c.better for c in changes), sum(c.worse for c in changes)
    who = "Self-training" if len(runs) == 1 else run.name
    rest = len(changes) - better - worse
    text = f"{who} clearly improved {plural(better, 'class', 'classes')} and clearly worsened {worse or 'none'}"
    return (
        f"{text}; {'the other ' if better + worse else ''}{rest} changed no more than chance explains" if rest else text
    )


def _change(
    section: Section, runs: Sequence[RunData], i: int, run: RunData, baseline: Baseline, changes: Sequence[Change]
) -> str:
    """Add a figure of the changes, and return a sentence that says how many classes changed."""
    order = _ascending(baseline.per_class)
    sorted_changes = [changes[k] for k in order]
    half = max(1, len(order) // 2)
    weak = [c.gain for c in sorted_changes[:half] if c.gain is not None]
    strong = [c.gain for c in sorted_changes[half:] if c.gain is not None]
    finding = finding_of(run, runs, changes)
    caption = (
        f"One bar per class, from its accuracy with {baseline.source} (dark tick) to its accuracy in this run. Pale "
        "bars can be chance (90% level)."
    )
    if weak and strong:
        caption += (
            f" The weaker half of the classes changed by {points(float(np.mean(weak)))} points on average, "
            f"the stronger half by {points(float(np.mean(strong)))} points."
        )
    chart = change_chart(
        f"{finding}. {caption}",
        i,
        [run.classes[k] for k in order],
        [c.before for c in sorted_changes],
        [c.after for c in sorted_changes],
        words=("labels only", "this run"),
        ends=("weak with labels only", "strong"),
        clear=[c.clear for c in sorted_changes],
        notes=[counted(c, run.noun) for c in sorted_changes],
    )
    title = headed(runs, i, "Change of each class")
    section.figure(f"change{i}", title, caption, chart, run=i, legend="accuracy")
    return finding


def counted(change: Change, noun: str) -> str:
    """Return a change as a number of images: ``2 of 30 images``; nothing if they were not counted."""
    return "" if change.images is None else f"{abs(change.images)} of {change.n} {noun}"


def _class_table(
    names: Sequence[str], members: list[tuple[int, RunData]], baseline: Baseline | None, runs: Sequence[RunData]
) -> ClassTable:
    before = baseline.per_class if baseline else None
    shown = [(i, run) for i, run in members if before is None or run.per_class != before] or members
    columns = [
        ClassColumn(
            i, run.name if len(runs) > 1 else "This run", run.per_class or [], _intervals(run),
            class_changes(run, runs) if before is not None else None,
        )
        for i, run in shown
    ]  # fmt: skip
    run = members[0][1]
    order = _ascending(before if before is not None else columns[0].values)
    same = all(other.support == run.support for _, other in members)
    title = "All classes: accuracy in %, with 90% intervals" if run.support else "All classes: accuracy in %"
    return ClassTable(title, run.noun, names, run.support if same else None, before, columns, order)


def _intervals(run: RunData) -> list[tuple[float, float] | None]:
    values, support = run.per_class or [], run.support
    if support is None:
        return [None] * len(values)
    return [None if v is None or not n else interval(v * n, n) for v, n in zip(values, support, strict=True)]


def _estimates(i: int, run: RunData) -> ClassTable | None:
    """Return the accuracy of each class as it is estimated without a test set."""
    found = run.results.get("estimated")
    if found is None or len(found["per_class"]) != len(run.classes):
        return None
    ranges = list(zip(found["per_class_low"], found["per_class_high"], strict=True)) or [(None, None)] * len(
        run.classes
    )
    intervals = [None if low is None or high is None else (low, high) for low, high in ranges]
    column = ClassColumn(i, "Estimate", found["per_class"], intervals, None)
    title = "All classes: estimated accuracy in %, with 90% intervals"
    return ClassTable(title, run.noun, run.classes, None, None, [column], _ascending(found["per_class"]))


def _ascending(values: PerClass) -> list[int]:
    """Return the classes from the weakest to the strongest, those without a value last."""
    return sorted(range(len(values)), key=lambda k: (values[k] is None, values[k] or 0, k))
