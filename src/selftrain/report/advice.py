"""What to do next, in plain words, from the results of a run.

Knows nothing of pages. Each rule looks at one result, says what it found, and what would help. A rule whose result the
run folder does not hold stays silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selftrain.methods.prior import NEAR
from selftrain.report.chance import class_changes
from selftrain.report.charts import percent, ratio
from selftrain.report.examples import LABEL_NEXT
from selftrain.report.run_data import RunData
from selftrain.text import plural

LOST_MUCH = 0.15
"""a class that loses more accuracy than this is a problem"""
MUCH_JUNK = 0.2
"""share of images of no class from which they deserve a look"""
FEW_LABELS = 1.5
"""a class has few labels if its share of the pile is so many times its share of the labels"""
SAME_REMEDY = "The remedy is the same as above."


@dataclass(frozen=True)
class Advice:
    weight: int
    """3: something is wrong; 2: something could be better; 1: good to know"""
    title: str
    text: str
    command: str = ""


@dataclass(frozen=True)
class Remedy:
    text: str
    command: str = ""


def quoted(names: Sequence[str], most: int = 4) -> str:
    """Return ``“a”, “b” and “c”``, or ``“a”, “b” and 9 more``."""
    if len(names) <= most + 1:  # "1 more" would take as much room as the name
        most = len(names)
    shown = [f"“{name}”" for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def advise(run: RunData, others: Sequence[RunData]) -> list[Advice]:
    """Return the advice for a run among the other runs of the page, the most pressing first."""
    found = sorted((advice for rule in RULES for advice in rule(run, others)), key=lambda advice: -advice.weight)
    remedy = _remedy(run).text
    for i, advice in enumerate(found):
        if remedy in advice.text and any(remedy in before.text for before in found[:i]):
            found[i] = replace(advice, text=advice.text.replace(remedy, SAME_REMEDY), command="")
    return found


def next_steps(runs: Sequence[RunData]) -> list[tuple[int | None, str, list[Advice]]]:
    """Return (run, its name, its advice); advice that all of several runs share comes once, at the end."""
    advice = [advise(run, runs) for run in runs]
    shared = [a for a in advice[0] if all(a in other for other in advice)] if len(runs) > 1 else []
    steps: list[tuple[int | None, str, list[Advice]]] = [
        (i, run.name, [a for a in found if a not in shared])
        for i, (run, found) in enumerate(zip(runs, advice, strict=True))
    ]
    return steps + ([(None, "All runs", shared)] if shared else [])


def _remedy(run: RunData) -> Remedy:
    """Return the remedy for a run that learns from its own mistakes."""
    if run.info.can_be_base:
        return Remedy(
            "Debiased self-training (DST) keeps the part that makes the pseudo labels from learning from them.",
            f'selftrain train … --method "dst({run.method})"',
        )
    start = f" Start with those under “{LABEL_NEXT}”." if run.has_pool_predictions else ""
    return Remedy(f"Label a few more {run.noun} of these classes.{start}")


def _unfinished(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    if not run.finished:
        yield Advice(
            2,
            "Finish the run",
            f"The last evaluation is that of step {run.last['step']:,}. If the run was stopped, resume it.",
            f"selftrain train --resume --out {run.folder}",
        )


def _vanishing(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    gone = run.vanishing_classes()
    remedy = _remedy(run)
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        yield Advice(
            3,
            f"{plural(len(gone), 'class', 'classes')} {verb} vanishing",
            f"{quoted(gone)} {verb} now rarely or never predicted. {remedy.text}",
            remedy.command,
        )
    elif (imbalance := run.value("imbalance_ratio")) is not None and imbalance >= 3:
        yield Advice(
            2,
            "Predictions favour some classes",
            f"On a class-balanced set, the most predicted class is predicted {ratio(imbalance)} times as often as the "
            f"least predicted one. {remedy.text}",
            remedy.command,
        )


def _harmed(run: RunData, others: Sequence[RunData]) -> Iterator[Advice]:
    changes = class_changes(run, others) or ()
    lost = sorted((c.gain or 0.0, name, c) for name, c in zip(run.classes, changes, strict=False) if c.worse)
    if lost:
        gain, _, most = lost[0]
        remedy = _remedy(run)
        amount = f"{-100 * gain:.1f} points" + (
            "" if most.images is None else f", {-most.images} of {most.n} {run.noun}"
        )
        yield Advice(
            3 if -gain > LOST_MUCH else 2,
            f"Self-training harmed {plural(len(lost), 'class', 'classes')}",
            f"Compared with labels only, {quoted([name for _, name, _ in lost])} lost more accuracy than chance "
            f"explains, up to {amount}. {remedy.text}",
            remedy.command,
        )


def _fell_back(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    if run.guard is not None and run.fell_back:
        start = f", first those under “{LABEL_NEXT}”" if run.has_pool_predictions else ""
        yield Advice(
            3,
            "Self-training was not trusted",
            "The final model is the one that was trained on the labels alone. The self-trained model is doubtful: "
            f"{run.guard['reason']}. Label some more {run.noun}{start}, and check that the unlabeled {run.noun} "
            "show your classes and that no label is wrong. Then train again.",
        )


def _much_junk(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    screening = run.results.get("screening")
    if screening is not None and screening["share"] > MUCH_JUNK:
        yield Advice(
            2,
            f"Many {run.noun} look like none of the classes",
            f"These are about {100 * screening['share']:.0f}% of the unlabeled {run.noun}, and training used them "
            f"rarely or never. They come second under “{LABEL_NEXT}”. If they do belong to a class, label some of "
            "them; otherwise you can leave them out.",
        )


def _other_mix(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    prior = run.pool_prior
    if prior is None or prior["source"] != "auto" or prior["distance"] < NEAR:
        return
    pairs = zip(prior["pool"], prior["labels"], run.classes, strict=True)
    rare = sorted(((b - a, name) for a, b, name in pairs if a >= FEW_LABELS * b and a > 1 / len(run.classes)))[:3]
    text = "This is normal, and nothing is wrong: the mix of the labels is not taken for the truth."
    if rare:
        text += (
            f" A few more labels of {quoted([name for _, name in rare])} will probably help, because your pile seems "
            "to hold more of these than your labels suggest."
        )
    yield Advice(1, "Your pile has another mix of classes than your labels", text)


def _falling_quality(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    """Look at the second half only: earlier, quality falls because more and harder images come in."""
    curve = [value for _, value in run.curve("pseudo_label_quality")]
    late = curve[len(curve) // 2 :]
    if len(late) >= 3 and max(late) - late[-1] > 0.03:
        remedy = _remedy(run) if run.info.can_be_base else Remedy("Raise the threshold, or stop earlier.")
        yield Advice(
            2,
            "Pseudo labels get worse",
            f"In the second half of training, the share of correct pseudo labels fell from {percent(max(late))} to "
            f"{percent(late[-1])}: the run learns from its own mistakes. {remedy.text}",
            remedy.command,
        )


def _few_pseudo_labels(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    quantity = run.value("pseudo_label_quantity")
    if quantity is not None and quantity < 0.3:
        base = run.info.base
        yield Advice(
            2,
            "Few pseudo labels are used",
            f"Only {percent(quantity)} of the unlabeled {run.noun} pass the threshold. Lower it, or train longer.",
            "selftrain train … --set method.base.tau=0.6" if base and "tau" in base.grid else "",
        )


def _wrong_pseudo_labels(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    quantity, quality = run.value("pseudo_label_quantity"), run.value("pseudo_label_quality")
    if quantity is not None and quality is not None and quantity > 0.7 and quality < 0.6:
        yield Advice(
            2,
            "Many pseudo labels are wrong",
            f"The run learns from {percent(quantity)} of the unlabeled {run.noun}, and {percent(1 - quality)} of their "
            "pseudo labels are wrong. A higher threshold (tau) keeps fewer but better ones; more labels help most.",
        )


def _still_changing(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    steps = int(run.settings.get("train.steps") or 0)
    longer = f"selftrain train … --steps {2 * steps}" if steps else ""
    curve = [value for _, value in run.curve("accuracy")]
    if len(curve) >= 8 and np.mean(curve[-2:]) - np.mean(curve[-len(curve) // 4 - 2 : -2]) > 0.01:
        yield Advice(
            2,
            "The model is still improving",
            "Accuracy still rises at the end of training. More steps will probably help.",
            longer,
        )
    elif (churn := run.last.get("pseudo_churn")) is not None and churn > 0.1:
        yield Advice(
            2,
            "Pseudo labels have not settled",
            f"{percent(churn)} of them changed since the previous evaluation. More steps will probably help.",
            longer,
        )


def _miscalibrated(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    ece = run.value("ece")
    if ece is not None and ece > 0.1:
        bins = run.value("calibration") or []
        confidence = sum(n * c for n, c, _ in bins if n)
        correct = sum(n * a for n, _, a in bins if n)
        way = "overconfident" if confidence > correct else "underconfident" if bins else "miscalibrated"
        yield Advice(
            2,
            "Confidence does not match accuracy",
            f"The model is {way}: confidence and accuracy differ by {100 * ece:.1f} points on average. Use confidence "
            f"to rank {run.noun}, not as a probability.",
        )


def _heads_disagree(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    agreement = run.last.get("head_agreement")
    if agreement is not None and agreement < 0.6:
        yield Advice(
            1,
            "Two parts of the model disagree",
            "The part that learns from your labels alone and the part that learns from the model's own predictions "
            f"agree on only {percent(agreement)} of the unlabeled {run.noun}. Those on which they differ are the most "
            f"useful ones to label, and come first under “{LABEL_NEXT}”.",
        )


def _few_labels(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    labels, accuracy = run.labels_per_class, run.value("accuracy")
    if labels is not None and labels < 10 and (accuracy is None or accuracy < 0.9):
        which = f"some of those under “{LABEL_NEXT}”" if run.has_pool_predictions else f"some more {run.noun}"
        yield Advice(
            1,
            "A few more labels go a long way",
            f"There {'is 1 label' if labels == 1 else f'are {labels:.3g} labels'} per class. Label {which}, the "
            "weakest classes first, and train again.",
        )


def _no_test_set(run: RunData, _: Sequence[RunData]) -> Iterator[Advice]:
    if run.per_class is None:
        known = run.results.get("estimated") is not None
        yield Advice(
            1 if known else 2,
            "The accuracy is estimated, not measured" if known else "The accuracy is not known yet",
            f"There is no test set. Hold out some labels, or pass {run.noun} whose classes are known.",
            "selftrain train … --test checked/",
        )


RULES = (
    _unfinished, _fell_back, _vanishing, _harmed, _much_junk, _other_mix, _falling_quality, _few_pseudo_labels,
    _wrong_pseudo_labels, _still_changing, _miscalibrated, _heads_disagree, _few_labels, _no_test_set,
)  # fmt: skip
