"""The guard: is the self-trained model better than one that learned from the labels alone?

Compares both without test data and chooses the safer one. Knows nothing of equations or files.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.methods.fitted import FittedPredictor
from selftrain.methods.functional import probabilities
from selftrain.methods.prototypes import left_out_probabilities
from selftrain.nn.contexts import evaluating, using_threads
from selftrain.nn.layers import Blend, Classifier, Committee
from selftrain.runs.image_outputs import sampled
from selftrain.runs.survey import PILE, SPREAD, Pile, guards, not_labeled, spread_answers
from selftrain.runs.training import Training

GROWTH, ENOUGH = 5.0, 10
"""a class raises an alarm if it is predicted so many times as often as by the labels alone, and at least so often"""
SMALL = 10
"""unlabeled images per label below which a pool says little, and the labels alone get a vote in the blend"""
FLOOR = 0.05
"""disagreement on the surest half of the pool that never raises an alarm"""
Z = 1.645  # one-sided 95%

Choice = Literal["blend", "labels_only"]


@dataclass(frozen=True)
class Evidence:
    """What is known without test data about a self-trained model and one that was trained on the labels alone."""

    disagreement: float
    """share of the surest half of the pool that the two classify differently"""
    limit: float
    """upper 95% limit of the error on images of which the labels are as sure, from labels that are left out in turn"""
    growth: float
    """largest factor by which a class is predicted more often than by the labels alone"""
    grown: str | None
    """that class"""
    left_out_accuracy: float | None
    """accuracy of class means on labels that are left out in turn: about that of the labels alone, or below"""
    labels: int
    """number of labels that were left out in turn"""

    @property
    def alarm(self) -> str:
        """Return why the self-trained model is not to be trusted; empty if there is no reason."""
        if self.disagreement > max(self.limit, FLOOR):
            return (
                f"it contradicts the labels-only model on {100 * self.disagreement:.0f}% of the images where that is "
                f"surest, which is wrong on at most {100 * self.limit:.0f}% of them"
            )
        if self.growth > GROWTH:
            return f"it predicts {self.grown!r} {self.growth:.0f} times as often as the labels-only model"
        return ""


@dataclass(frozen=True)
class Verdict:
    """The chosen model, and why."""

    choice: Choice
    reason: str
    evidence: Evidence
    model: nn.Module
    probabilities: Tensor
    """of the model on the sampled unlabeled images"""
    neighbours: Tensor
    """of the model of its neighbours on the same images"""
    rows: np.ndarray
    """places of these images among the unlabeled ones"""

    def record(self) -> dict[str, Any]:
        """Return the verdict as plain numbers and words for ``results.json``."""
        return {"choice": self.choice, "reason": self.reason, **asdict(self.evidence)}


def judge(training: Training, trained: nn.Module) -> Verdict | None:
    """Compare a self-trained model, blended with its neighbours, with the labels alone; None if there is no guard."""
    if not guards(training.settings, training.method):
        return None
    pile = training.net.part(PILE, Pile)
    split = training.problem.split
    small = float(pile.weight.sum()) < SMALL * len(split.labeled)
    reference = [pile.reference] if small else []
    rows = sampled(len(split.unlabeled))
    pool = training.clean(split.unlabeled[rows]).to(training.fabric.device)
    weight = pile.weight[torch.from_numpy(rows).to(pile.weight.device)]
    members = not_labeled(split, rows).to(pool.device) & (weight > 0.5)
    answers: list[list[Tensor]] = []
    features: list[Tensor] = []  # of psi
    with torch.no_grad(), evaluating(pile), evaluating(trained), training.fabric.autocast():
        for x in torch.split(pool, training.settings.train.eval_batch):
            if isinstance(trained, Classifier):
                features.append(_features(trained.psi, x))
                logits = trained.h(features[-1])
            else:
                logits = trained(x)
            answers.append([probabilities(z) for z in (pile.reference(x), logits)])
        alone, own = (torch.cat(parts) for parts in zip(*answers, strict=True))
        near = spread_answers(pile.neighbours, pool, members)
        votes = [own, near, *([alone] if small else [])]
        blend: nn.Module = Committee(trained, pile.neighbours, *reference)
        if isinstance(trained, Classifier):
            inner, said = _inner_neighbours(training, trained.psi, torch.cat(features).float(), members)
            blend = Blend(trained, inner, pile.neighbours, *reference)
            votes.append(said)
    blended = torch.stack(votes).mean(dim=0)  # as a committee does
    sure, ours = alone[weight > 0.5], blended[weight > 0.5]
    evidence = weigh(sure, ours, training.clean(split.labeled), split.labels, training.problem.corpus.classes)
    if evidence.alarm:
        return Verdict("labels_only", evidence.alarm, evidence, pile.reference, alone, near, rows)
    why = "nothing speaks against it" + (
        ", but the pile is small, so the labels-only model votes as well" if small else ""
    )
    return Verdict("blend", why, evidence, blend, blended, near, rows)


def _inner_neighbours(
    training: Training, psi: nn.Module, pool: Tensor, members: Tensor
) -> tuple[FittedPredictor, Tensor]:
    """Spread the labels along a graph of neighbours in the features of psi, where training has drawn classes together.

    Returns the model and its answers on the pool.
    """
    split, device = training.problem.split, training.fabric.device
    x = _features(psi, training.clean(split.labeled).to(device)).float()
    y = torch.from_numpy(split.labels).to(device)
    predictor = SPREAD.empty_predictor().to(device)
    SPREAD.fit_predictor(predictor, x, y, pool[members], training.net.task.classes)
    return predictor, spread_answers(predictor, pool, members)


def _features(psi: nn.Module, x: Tensor) -> Tensor:
    """Return the features of psi, which become part of a model: the same last digits whatever the number of threads."""
    with using_threads(1):
        z: Tensor = psi(x)
    return z


def weigh(sup: Tensor, ours: Tensor, x: Tensor, y: np.ndarray, classes: tuple[str, ...]) -> Evidence:
    """Return the evidence from probabilities on the pool (labels alone, ours) and from the labels' features."""
    confidence, by_labels = sup.max(dim=1)
    predicted = ours.argmax(dim=1)
    half = confidence.argsort(descending=True, stable=True)[: max(1, len(confidence) // 2)]
    disagreement = float((by_labels != predicted)[half].float().mean()) if len(confidence) else 0.0
    K = len(classes)
    before, now = (torch.bincount(c, minlength=K) for c in (by_labels, predicted))
    growth = torch.where(now >= ENOUGH, now / before.clamp(min=1), 0.0)
    errors, held_out, accuracy = _left_out_errors(x, torch.from_numpy(y), K)
    return Evidence(
        disagreement=disagreement,
        limit=upper_limit(errors, held_out // 2),
        growth=float(growth.max()),
        grown=classes[int(growth.argmax())] if float(growth.max()) > 0 else None,
        left_out_accuracy=accuracy,
        labels=held_out,
    )


def _left_out_errors(x: Tensor, y: Tensor, classes: int) -> tuple[int, int, float | None]:
    """Return errors on the surest half of left-out labels, the number of left-out labels, and their accuracy."""
    known = torch.bincount(y, minlength=classes)[y] > 1
    unit = F.normalize(x.float(), dim=1)
    p = left_out_probabilities(F.normalize(unit - unit.mean(dim=0), dim=1), y, classes)[known]
    if not len(p):
        return 0, 0, None
    wrong = p.argmax(dim=1) != y[known]
    half = p.amax(dim=1).argsort(descending=True, stable=True)[: len(p) // 2]
    return int(wrong[half].sum()), len(p), float(1 - wrong.float().mean())


def upper_limit(errors: int, n: int) -> float:
    """Return the upper 95% limit of a share of which ``errors`` of n were seen (Wilson); 1 without any."""
    if n == 0:
        return 1.0
    p = errors / n
    spread = Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return min(1.0, (p + Z**2 / (2 * n) + spread) / (1 + Z**2 / n))
