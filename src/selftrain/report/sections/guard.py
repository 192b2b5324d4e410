"""Section: the run beside a model that was trained on the labels alone, and which of the two was kept.

Knows nothing of how the guard decides; see ``selftrain.runs.guard``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selftrain.report.chance import margin
from selftrain.report.charts import Table, percent, ratio
from selftrain.report.run_data import RunData
from selftrain.report.section import Comparison, Section, headed
from selftrain.runs.guard import FLOOR, GROWTH
from selftrain.runs.layout import GuardRecord

MEASURES = (("accuracy", "accuracy"), ("mean_per_class", "mean over classes"), ("worst20_percent", "weakest fifth"))
LOOSE = 0.1
"""a limit from left-out labels above this shows nothing but collapses"""


def guard(runs: Sequence[RunData]) -> Section:
    section = Section("guard", "Labels alone", "How the final model was chosen")
    for i, run in enumerate(runs):
        if (found := run.guard) is not None:
            measured = run.value("accuracy") is not None and found["labels_only"]["accuracy"] is not None
            sentences = [_kept(run, found), _measured(run, found) if measured else _unmeasured(run, found)]
            table = _measures(run, found) if measured else _evidence(found)
            section.blocks.append(Comparison(headed(runs, i, "The labels alone"), " ".join(sentences), table, i))
    if section.blocks:
        section.text = (
            "Training on the labels alone is the least that self-training must improve on. Both models were trained, "
            "and the guard compared them without test data and kept the safer one. It prevents collapses; it cannot "
            "prove that self-training helped."
        )
    return section


def _kept(run: RunData, found: GuardRecord) -> str:
    """Return which model was kept, and why."""
    if found["choice"] == "labels_only":
        return (
            "The model that was trained on the labels alone was kept. The self-trained model, blended with its "
            f"neighbours, is doubtful: {found['reason']}."
        )
    text = (
        "The self-trained model was kept, blended with its neighbours. Nothing speaks against it: where the "
        f"labels-only model is surest, the two differ on {percent(found['disagreement'])} of the unlabeled {run.noun}"
    )
    if found["grown"] is None:
        return f"{text}."
    return f"{text}, and no class is predicted more than {ratio(found['growth'])} times as often."


def _measured(run: RunData, found: GuardRecord) -> str:
    """Return how much better the self-trained model is on the evaluated images, and whether that can be chance."""
    fell_back = found["choice"] == "labels_only"
    alone = found["labels_only"]["accuracy"]
    ours = found["self_trained"]["accuracy"] if fell_back else run.value("accuracy")
    if alone is None or ours is None:
        return ""
    n = sum(run.support or ())
    gain = 100 * (ours - alone)
    model = "the self-trained model" if fell_back else "the kept model"
    amount = f"{abs(gain):.1f} points {'more' if gain > 0 else 'less'}" if abs(gain) >= 0.05 else "exactly as"
    text = (
        f"On the {run.evaluated}, {model} is {amount} accurate {'than' if abs(gain) >= 0.05 else 'as'} the labels alone"
    )
    if not n:
        return f"{text}."
    limit = 100 * margin(alone, ours, n)
    if abs(gain) <= limit:
        return f"{text}. That can be chance: with {n:,} {run.noun}, differences of up to {limit:.1f} points can be."
    unseen = " The guard could not know this without test data." if (gain < 0) != fell_back else ""
    return f"{text}. With {n:,} {run.noun}, that is more than chance explains (about {limit:.1f} points).{unseen}"


def _unmeasured(run: RunData, found: GuardRecord) -> str:
    """Return how sure the verdict is without an evaluated set."""
    text = "There is no test set, so this is evidence and no proof."
    if not found["labels"]:
        return f"{text} No class has a second label to hold out, so the guard sees only classes that grow too much."
    if found["limit"] > LOOSE:
        return (
            f"{text} With only {found['labels']:,} labels, leaving them out in turn allows the labels-only model "
            f"an error of up to {percent(found['limit'])} on the {run.noun} where it is surest: the guard sees "
            "collapses, not small losses."
        )
    return f"{text} The guard sees collapses and clear losses on {run.noun} that the labels-only model is sure about."


def _measures(run: RunData, found: GuardRecord) -> Table:
    kept = {name: run.value(name) for name, _ in MEASURES}
    rows = [("labels alone", found["labels_only"]), ("self-trained", found["self_trained"]), ("kept model", kept)]
    return Table(["model", *(title for _, title in MEASURES)], [[name, *_cells(values)] for name, values in rows])


def _cells(values: Mapping[str, Any]) -> list[str]:
    return ["–" if values.get(name) is None else percent(values[name]) for name, _ in MEASURES]


def _evidence(found: GuardRecord) -> Table:
    limit = percent(max(found["limit"], FLOOR)) if found["labels"] else "–"
    rows = [["different predictions where the labels alone are surest", percent(found["disagreement"]), limit]]
    if found["grown"] is not None:
        grown = f"largest growth of a class: “{found['grown']}”"
        rows.append([grown, f"{ratio(found['growth'])} times", f"{ratio(GROWTH)} times"])
    if found["left_out_accuracy"] is not None:
        estimate = f"accuracy on {found['labels']:,} labels, held out in turn: a rough estimate for the labels alone"
        rows.append([estimate, percent(found["left_out_accuracy"]), "–"])
    return Table(["evidence", "value", "alarm above"], rows)
