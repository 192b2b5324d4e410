"""What to do next, in plain words, from the numbers of a run.

Knows nothing of pages. Each rule looks at one thing, says what it saw, and what would help; none looks at what the
folder does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selftrain.report.charts import percent, points, ratio
from selftrain.report.reading import RunData, reference_of

MANY_LOST = 0.05
"""a class has lost by self-training if its accuracy fell by more than this"""


@dataclass(frozen=True)
class Advice:
    weight: int
    """3: something is wrong; 2: something could be better; 1: good to know"""
    title: str
    text: str
    command: str = ""


def listed(names: Sequence[str], most: int = 4) -> str:
    """``a, b, c and 9 more``"""
    shown = [f"“{name}”" for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def classes_word(count: int) -> str:
    return "1 class" if count == 1 else f"{count} classes"


def advise(run: RunData, others: Sequence[RunData]) -> list[Advice]:
    """The most pressing first."""
    rules = (_unfinished, _dying, _matthew, _falling, _few_pseudo, _noisy_pseudo, _unsettled, _overconfident, _heads,
             _few_labels, _unmeasured)  # fmt: skip
    found = sorted((a for rule in rules for a in rule(run, others)), key=lambda advice: -advice.weight)
    remedy, _ = _remedy(run)
    for i, advice in enumerate(found):  # what helps against several things is said once
        if remedy in advice.text and any(remedy in before.text for before in found[:i]):
            found[i] = replace(advice, text=advice.text.replace(remedy, "The same helps."), command="")
    return found


def debiased(run: RunData) -> str | None:
    """The DST version of a run's method, where there is one."""
    from selftrain.errors import UserError
    from selftrain.methods import make_method

    if run.method.startswith("dst"):
        return None
    try:
        base = run.method.partition("(")[0]
        make_method(f"dst({base})")
    except UserError:
        return None
    return f"dst({base})"


def _remedy(run: RunData) -> tuple[str, str]:
    better = debiased(run)
    if better:
        return (
            "Debiased self-training keeps the head that makes pseudo labels away from them.",
            f'selftrain train … --method "{better}"',
        )
    return "Label a few more pictures of these classes; those under “likely mistakes” are good ones to start with.", ""


def _unfinished(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    if not run.finished:
        yield Advice(
            2,
            "Let it finish",
            f"The run stopped at step {run.last['step']:,}.",
            f"selftrain train --resume --out {run.folder}",
        )


def dying_classes(run: RunData) -> list[str]:
    """Classes that are not predicted any more: the alarms of training, or none of the predictions."""
    names = list(run.alarms)
    for share in (run.pool_share, run.by_class("predicted")):
        if share is not None:
            names += [run.classes[k] for k in np.flatnonzero(share == 0)]
    return list(dict.fromkeys(names))


def _dying(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    gone = dying_classes(run)
    if gone:
        text, command = _remedy(run)
        verb = "is" if len(gone) == 1 else "are"
        yield Advice(
            3,
            f"{classes_word(len(gone))} {verb} dying",
            f"{listed(gone)} {verb} hardly or never predicted any more. {text}",
            command,
        )
    elif (imbalance := run.value("imbalance_ratio")) is not None and imbalance >= 3:
        text, command = _remedy(run)
        yield Advice(
            2,
            "Predictions lean to some classes",
            f"The favourite class is predicted {ratio(imbalance)} times as often as the least favourite one, although "
            f"each counts the same. {text}",
            command,
        )


def _matthew(run: RunData, others: Sequence[RunData]) -> Iterator[Advice]:
    reference = reference_of(run, others)
    if reference is None or run.per_class is None or run.method.startswith("supervised"):
        return
    lost = [
        (b - a, name)
        for name, a, b in zip(run.classes, reference[0], run.per_class, strict=True)
        if a is not None and b is not None and b - a < -MANY_LOST
    ]
    if lost:
        lost.sort()
        text, command = _remedy(run)
        yield Advice(
            3 if lost[0][0] < -0.15 else 2,
            f"Self-training took from {classes_word(len(lost))}",
            f"Compared with labels only, {listed([name for _, name in lost])} lost accuracy, "
            f"{points(lost[0][0])} points at worst: the rich get richer. {text}",
            command,
        )


def _falling(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    """In the second half: before, it falls of itself, because more and harder pictures come in."""
    curve = [value for _, value in run.curve("pseudo_label_quality")]
    late = curve[len(curve) // 2 :]
    if len(late) >= 3 and max(late) - late[-1] > 0.03:
        text, command = _remedy(run) if debiased(run) else ("Raise the threshold, or stop earlier.", "")
        yield Advice(
            2,
            "Pseudo labels get worse",
            f"Half-way, {percent(max(late))} of those in use were right; at the end {percent(late[-1])}: the run "
            f"learns from its own mistakes. {text}",
            command,
        )


def _few_pseudo(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    quantity = run.value("pseudo_label_quantity")
    if quantity is not None and quantity < 0.3:
        yield Advice(
            2,
            "Few pseudo labels are used",
            f"Only {percent(quantity)} of the unlabeled pictures pass the threshold. Lower it, or train longer.",
            "selftrain train … --set method.base.tau=0.6" if run.method.startswith("dst") else "",
        )


def _noisy_pseudo(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    quantity, quality = run.value("pseudo_label_quantity"), run.value("pseudo_label_quality")
    if quantity is not None and quality is not None and quantity > 0.7 and quality < 0.6:
        yield Advice(
            2,
            "Many pseudo labels are wrong",
            f"{percent(quantity)} of the unlabeled pictures are learned from, and {percent(1 - quality)} of those "
            "labels are wrong. A higher threshold (tau) keeps fewer and better ones; more labels help more.",
        )


def _unsettled(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    steps = int(run.config.get("train.steps") or 0)
    longer = f"selftrain train … --steps {2 * steps}" if steps else ""
    curve = [value for _, value in run.curve("accuracy")]
    if len(curve) >= 8 and np.mean(curve[-2:]) - np.mean(curve[-len(curve) // 4 - 2 : -2]) > 0.01:
        yield Advice(
            2, "It is still learning", "Accuracy still rises at the end. More steps will probably help.", longer
        )
    elif (churn := run.last.get("pseudo_churn")) is not None and churn > 0.1:
        yield Advice(
            2,
            "Pseudo labels have not settled",
            f"{percent(churn)} of them changed since the evaluation before. More steps will probably help.",
            longer,
        )


def _overconfident(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    ece = run.value("ece")
    if ece is not None and ece > 0.1:
        bins = run.value("calibration") or []
        said = sum(n * c for n, c, _ in bins if n)
        right = sum(n * a for n, _, a in bins if n)
        way = "too sure of itself" if said > right else "not sure enough" if bins else "off"
        yield Advice(
            2,
            "Its confidence is not to be trusted",
            f"It is {way}: confidence and accuracy differ by {percent(ece)} on average. Rank pictures by confidence, "
            "but do not read it as a probability.",
        )


def _heads(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    agreement = run.last.get("head_agreement")
    if agreement is not None and agreement < 0.6:
        yield Advice(
            1,
            "The heads disagree",
            f"The pseudo head shares only {percent(agreement)} of the labels that it is taught. Where the heads "
            "differ, a label would tell the model most: see “likely mistakes”.",
        )


def _few_labels(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    labels, accuracy = run.labels_per_class, run.value("accuracy")
    if labels is not None and labels < 10 and (accuracy is None or accuracy < 0.9):
        yield Advice(
            1,
            "A few more labels go a long way",
            f"There are {labels:.3g} labels a class. Label some of the pictures under “likely mistakes”, the weakest "
            "classes first, and train again.",
        )


def _unmeasured(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    if run.per_class is None:
        yield Advice(
            2,
            "Nobody knows yet how good it is",
            "There is no test set. Hold out some labels, or give a folder of pictures whose class you know.",
            "selftrain train … --test checked/",
        )
