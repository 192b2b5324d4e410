"""One round of training on the labels so far, in seconds: self-training on stored features, and how good it is.

The final model is never one of these: it is trained from scratch, as 'selftrain train' does. Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.features.rows import FeatureRows
from selftrain.data.source import ARRAYS
from selftrain.methods.folds import out_of_fold
from selftrain.runs.in_memory import fit_in_memory
from selftrain.suggest.choose import LEFT_OUT, UNLABELED
from selftrain.suggest.pool import Pool
from selftrain.suggest.quick import Answers
from selftrain.suggest.trained import trained_answers

Array = NDArray[Any]
STEPS = 150
"""steps of a round: suggestions and guesses need no more, and the final model gets all of them"""
Z = 1.645  # 90%, two-sided
LEAST = 8
"""labels that were held out in turn, below which no accuracy is estimated"""


def train_round(
    pool: Pool,
    labels: Array,
    classes: Sequence[str],
    quick: Answers,
    seed: int,
    steps: int | None,
    reporter: Reporter,
) -> Answers:
    """Return the answers of DST(FixMatch) after a short training on stored features, averaged with the quick model."""
    kept = np.flatnonzero(labels != LEFT_OUT)
    known = np.where(labels[kept] >= 0, labels[kept], UNLABELED)
    if not (known == UNLABELED).any():
        return quick
    features = pool.features if len(kept) == len(pool) else pool.features[kept]
    corpus = Corpus(ARRAYS, tuple(classes), FeatureRows(features, checked=True), known, known)
    given = {
        "data.path": ARRAYS, "network.backbone": "features", "regime": "frozen", "seed": seed,
        "train.steps": steps or STEPS, "train.guard": "none",
    }  # fmt: skip
    fitted = fit_in_memory(corpus, given, None, reporter)
    answers = trained_answers(fitted, pool.features, quick)
    novelty = None
    if answers.novelty is not None:
        novelty = np.zeros(len(pool))
        novelty[kept] = answers.novelty
    return Answers((answers.p + quick.p) / 2, answers.disagree, novelty)


def estimate_accuracy(pool: Pool, labels: Array, p: Array) -> tuple[dict[str, Any] | None, Array]:
    """Return the estimated accuracy on the pile with a 90% interval, and the accuracy of each class (NaN if unknown).

    Labels are held out in turn. Each class counts as often as the model predicts it in the pile, because suggested
    images are not a random sample of it.
    """
    known, classes = np.flatnonzero(labels >= 0), p.shape[1]
    y = labels[known]
    held_out, fold = out_of_fold(pool.unit(known), y, classes)
    tested = fold >= 0
    per_class = np.full(classes, np.nan)
    n = int(tested.sum())
    if n < LEAST:
        return None, per_class
    right = held_out[tested].argmax(axis=1) == y[tested]
    count = np.bincount(y[tested], minlength=classes)
    seen = count > 0
    per_class[seen] = np.bincount(y[tested], right, minlength=classes)[seen] / count[seen]
    free = labels == UNLABELED
    share = np.bincount(p[free].argmax(axis=1), minlength=classes)[seen] + 1.0
    share /= share.sum()
    smooth = (np.bincount(y[tested], right, minlength=classes)[seen] + right.mean()) / (count[seen] + 1)
    accuracy = float((share * smooth).sum())
    spread = Z * float(np.sqrt((share**2 * smooth * (1 - smooth) / count[seen]).sum() + 0.25 / n**2))
    low, high = max(0.0, accuracy - spread), min(1.0, accuracy + spread)
    return {"accuracy": accuracy, "low": low, "high": high, "labels": n}, per_class


def weakest_classes(classes: Sequence[str], labels: Array, per_class: Array, most: int = 5) -> list[str]:
    """Return the classes with the lowest estimated accuracy; those with a single label first."""
    count = np.bincount(labels[labels >= 0], minlength=len(classes))
    value = np.where(np.isnan(per_class), -1.0, per_class)
    order = np.lexsort((count, value))
    return [classes[k] for k in order.tolist() if value[k] < 1][:most]
