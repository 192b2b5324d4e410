"""How far the final model of a run can be believed: calibrated probabilities, and its accuracy without a test set.

Both come from labels that a stand-in for the model has not seen, see ``methods/accuracy.py``. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.engine.evaluate import probabilities
from selftrain.methods.accuracy import (
    LEVEL,
    Estimate,
    class_interval,
    estimate_accuracy,
    per_class_accuracy,
    usual_temperature,
)
from selftrain.methods.confidence import matching_temperature, risk_coverage, tempered
from selftrain.methods.folds import choose_temperature
from selftrain.methods.prior import PART as PRIOR
from selftrain.methods.prior import Prior
from selftrain.methods.prototypes import left_out_probabilities
from selftrain.nn.layers import Tempered
from selftrain.runs.guard import Verdict
from selftrain.runs.image_outputs import sampled
from selftrain.runs.model import ModelCard
from selftrain.runs.survey import PILE, SPREAD, Pile
from selftrain.runs.training import Training

Array = NDArray[Any]
OPTIMISM = 0.01
"""how much surer a model is of unlabeled images that it was trained on than of new ones"""
DOUBT = 1.0
"""of a blend: the mean of several models is not sure enough of easy images, and too sure of hard ones"""
MOST = 4000
"""unlabeled images on which confidences are compared"""
MEANS_T = 0.07
"""temperature of the class means before it is fitted"""


@dataclass(frozen=True)
class Trust:
    """What is known about the final model without test data."""

    temperature: tuple[float, ...]
    """per predicted class"""
    prior: tuple[float, ...]
    """class frequencies that its probabilities assume: their mean over the unlabeled images"""
    labels: int
    """labels that were left out in turn, or held out of training"""
    estimated: dict[str, Any] | None
    """``estimated`` of ``results.json``"""
    doubt: float = 0.0
    """how much the temperature of an image depends on how sure the model is, see ``tempered``"""

    def calibrated(self, p: Array) -> Array:
        """Return calibrated probabilities."""
        return tempered(p, np.array(self.temperature), self.doubt)

    def applied(self, model: nn.Module) -> nn.Module:
        """Return the model with calibrated probabilities."""
        return Tempered(model, self.temperature, self.doubt)

    def noted(self, card: ModelCard) -> ModelCard:
        return replace(card, temperature=self.temperature, doubt=self.doubt, prior=self.prior)


class StandIn(NamedTuple):
    """Answers of a model that can be fitted without each label in turn."""

    left_out: Array
    """(n, K) of the labels; NaN where a label is the only one of its class"""
    pool: Array
    """(m, K) of unlabeled images"""
    rows: Array
    """(m,) places of these among the unlabeled images"""
    learned: bool
    """whether the stand-in learns from unlabeled images"""
    agreement: float | None = None
    """share of the unlabeled images on which it agrees with a model that was trained on the labels alone"""


@torch.no_grad()
def judge_trust(training: Training, model: nn.Module, verdict: Verdict | None) -> Trust | None:
    """Return how far a model can be believed; None if there are no labels to tell."""
    if training.settings.regime != "frozen":
        return _from_held_out(training, model)
    split, K = training.problem.split, training.net.task.classes
    rows = _pool_rows(training)
    found = _stand_in(training, verdict, rows)
    x = training.clean(split.unlabeled[found.rows]) if len(found.rows) else training.clean(split.labeled)
    p = _answers(training, model, x) if verdict is None or not len(found.rows) else _known(verdict, found.rows)
    weight = _weight(training, found.rows) if len(found.rows) else np.ones(len(x))
    labels = np.bincount(split.labels, minlength=K) / len(split.labels)
    shares = training.net.part(PRIOR, Prior).pool.cpu().numpy() if PRIOR in training.net.parts else labels
    label_weight = (shares / np.maximum(labels, 1e-9))[split.labels]
    stand_in = found.pool if len(found.rows) else found.left_out
    used = ~np.isnan(stand_in).any(axis=1)
    blend = verdict is not None and verdict.choice == "blend"
    sober = p if blend else (2 * p + stand_in) / 3  # a single model says too much of itself; such a blend does not
    estimate = estimate_accuracy(
        found.left_out, split.labels, stand_in[used], sober[used], weight=weight[used],
        label_weight=label_weight, gain=found.learned, agreement=found.agreement,
    )  # fmt: skip
    if estimate is None:
        return None
    optimism = OPTIMISM if len(found.rows) and training.method.views.unlabeled else 0.0
    most = min(0.995, 1 - 1 / (estimate.labels + 2))  # n labels that are all right do not prove more (Laplace)
    doubt = DOUBT if blend else 0.0
    T = matching_temperature(p, min(most, estimate.accuracy + optimism), weight, doubt)
    if blend:
        T = max(usual_temperature(estimate.accuracy, T), matching_temperature(p, most, weight, doubt))
    calibrated = tempered(p, T, doubt)
    if blend:  # its mean confidence is nearer to its accuracy than what it was matched with
        estimate = estimate.moved(float(np.average(calibrated.max(axis=1), weights=weight)) - optimism)
    record = _record(estimate, calibrated, weight, found.left_out, split.labels) if len(found.rows) else None
    prior = np.average(calibrated, axis=0, weights=weight)
    return Trust((T,) * K, tuple(np.round(prior, 6).tolist()), estimate.labels, record, doubt)


def _pool_rows(training: Training) -> Array:
    """Return some places of unlabeled images that have no label, in order."""
    split = training.problem.split
    rows = sampled(len(split.unlabeled))
    rows = rows[~np.isin(split.unlabeled[rows], split.labeled)]
    return rows if len(rows) <= MOST else np.sort(np.random.default_rng(0).choice(rows, MOST, replace=False))


def _stand_in(training: Training, verdict: Verdict | None, rows: Array) -> StandIn:
    """Return a graph of neighbours for a model that has learned from unlabeled images, and class means otherwise."""
    split, K = training.problem.split, training.net.task.classes
    x, y = training.clean(split.labeled), torch.from_numpy(split.labels)
    alone = (torch.bincount(y, minlength=K)[y] == 1).numpy()
    agreement: float | None = None
    self_trained = bool(training.method.views.unlabeled) and (verdict is None or verdict.choice == "blend")
    if self_trained and len(rows) and PILE in training.net.parts:
        pile = training.net.part(PILE, Pile)
        left_out, agreement = pile.left_out.cpu().double().numpy(), float(pile.agreement)
        if verdict is None:
            pool = _answers(training, pile.neighbours, training.clean(split.unlabeled[rows]))
        else:
            places = np.searchsorted(sampled(len(split.unlabeled)), rows)
            pool = verdict.neighbours.double().cpu().numpy()[places]
    elif self_trained and len(rows):
        predictor = SPREAD.empty_predictor()
        others = training.clean(split.unlabeled[rows])
        left_out = SPREAD.fit_and_leave_out(predictor, x, y, others, K)
        pool = predictor.get_buffer("answers")[len(x) :].double().numpy()
    else:
        self_trained = False
        left_out, pool = _class_means(x, y, training.clean(split.unlabeled[rows]), K)
    left_out = np.where(alone[:, None], np.nan, left_out)
    return StandIn(left_out, pool, rows, self_trained, agreement)


def _class_means(x: Tensor, y: Tensor, pool: Tensor, K: int) -> tuple[Array, Array]:
    x, pool = (F.normalize(part.float(), dim=1) for part in (x, pool))
    centre = torch.cat([x, pool]).mean(dim=0)
    x, pool = (F.normalize(part - centre, dim=1) for part in (x, pool))
    sums = x.new_zeros(K, x.shape[1]).index_add_(0, y, x)
    cos = (pool @ F.normalize(sums, dim=1).T).masked_fill(torch.bincount(y, minlength=K) == 0, -torch.inf)
    return left_out_probabilities(x, y, K, MEANS_T).double().numpy(), torch.softmax(cos / MEANS_T, 1).double().numpy()


def _known(verdict: Verdict, rows: Array) -> Array:
    """Return the probabilities of the chosen model, which the guard has computed."""
    places = np.searchsorted(verdict.rows, rows)
    return verdict.probabilities.double().cpu().numpy()[places]


def _answers(training: Training, model: nn.Module, x: Tensor) -> Array:
    with training.fabric.autocast():
        parts = probabilities(model, torch.split(x, training.settings.train.eval_batch), training.fabric.device)
        return torch.cat([p.double().cpu() for p in parts]).numpy()


def _weight(training: Training, rows: Array) -> Array:
    if PILE not in training.net.parts:
        return np.ones(len(rows))
    return training.net.part(PILE, Pile).weight.double().cpu().numpy()[rows]


def _record(estimate: Estimate, p: Array, weight: Array, left_out: Array, y: Array) -> dict[str, Any]:
    """Return ``estimated`` of ``results.json``."""
    per_class = per_class_accuracy(p, weight)
    known = ~np.isnan(left_out).any(axis=1)
    hits = np.bincount(y[known][left_out[known].argmax(axis=1) == y[known]], minlength=p.shape[1])
    labels = np.bincount(y[known], minlength=p.shape[1])
    bounds = [
        None if r is None else class_interval(r, int(h), int(n))
        for r, h, n in zip(per_class, hits, labels, strict=True)
    ]
    sure, weighted = p.max(axis=1), weight > 0.5
    return {
        "accuracy": estimate.accuracy,
        "low": estimate.low,
        "high": estimate.high,
        "level": LEVEL,
        "labels": estimate.labels,
        "left_out_accuracy": estimate.stand_in,
        "per_class": per_class,
        "per_class_low": [None if b is None else b[0] for b in bounds],
        "per_class_high": [None if b is None else b[1] for b in bounds],
        "risk_coverage": risk_coverage(sure[weighted], sure[weighted]),
    }


def _from_held_out(training: Training, model: nn.Module) -> Trust | None:
    """Calibrate on labels that were held out of training, unless the model is measured on them."""
    split, K = training.problem.split, training.net.task.classes
    if not len(split.validation) or training.evaluated.on == "validation":
        return None
    y = split.validation_labels
    batches = training.inputs.clean_pool(split.validation, training.settings.train.eval_batch)
    with training.fabric.autocast():
        p = torch.cat([part.double().cpu() for part in probabilities(model, batches, training.fabric.device)]).numpy()
    T = choose_temperature(p, y)
    return Trust((T,) * K, tuple(np.round(tempered(p, T).mean(axis=0), 6).tolist()), len(y), None)
