"""One run in memory: trained on a corpus and kept as an object, with a run folder only if one is asked for.

Knows nothing of equations, and nothing of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.engine.runtime import make_fabric
from selftrain.methods import Method
from selftrain.methods.prior import PART as PRIOR
from selftrain.methods.prior import Prior
from selftrain.runs.finish import Outcome, final_card, screened
from selftrain.runs.fit import Begun, begin, complete
from selftrain.runs.folder import check_free
from selftrain.runs.image_outputs import sampled
from selftrain.runs.layout import RunLayout
from selftrain.runs.model import ModelCard
from selftrain.runs.pile_results import in_words
from selftrain.runs.problem import Problem, choose_split
from selftrain.runs.process import restored_afterwards
from selftrain.runs.resolve import resolve
from selftrain.runs.warm_start import Weights, trained_weights


@dataclass(frozen=True)
class Fitted:
    """What is left of a run: the final model on the CPU, and what the run found out."""

    model: nn.Module
    """from inputs to calibrated logits, in evaluation mode"""
    card: ModelCard
    steps: int
    guard: dict[str, Any] | None
    """the verdict of the guard as plain values; None if there was none"""
    prior: NDArray[np.float32] | None
    """(K,) class frequencies of the pool"""
    novelty: NDArray[np.float32] | None
    """(n,) of each image of the corpus: 0 for a member of a class, 1 for an image of none; None if not looked for"""
    weights: Weights
    """of psi and all heads, for another run to start from"""
    rows: NDArray[np.int64]
    """images of the corpus whose probabilities were computed on the way"""
    probabilities: NDArray[np.float32]
    """(len(rows), K)"""
    estimated: dict[str, Any] | None
    """the accuracy as it is estimated without a test set; None if it cannot be"""


def fit_in_memory(
    corpus: Corpus,
    given: Mapping[str, Any],
    method: Method | None,
    reporter: Reporter,
    *,
    folder: Path | None = None,
    start: Weights | None = None,
) -> Fitted:
    """Train on a corpus with the settings that are given by their dotted names; start from the weights of another run.

    A ``method`` that is given as an object is taken as it is.
    """
    layout = None if folder is None else RunLayout(folder)
    if layout is not None:
        check_free(layout)
    settings, method = resolve(given, method)
    with restored_afterwards(threads=settings.train.threads):
        fabric = make_fabric(settings.train, unused=len(method.turns) > 1)
        split = choose_split(settings, corpus, reporter, hashed=layout is not None)
        begun = begin(settings, method, Problem(corpus, split), fabric, reporter, weights=start)
        outcome = complete(begun, reporter, layout)
        if layout is None and outcome.verdict is not None:
            reporter.say(in_words(outcome.verdict, None, None))
        return _fitted(begun, outcome)


def _fitted(begun: Begun, outcome: Outcome) -> Fitted:
    training, verdict = begun.training, outcome.verdict
    net, pile = training.net, screened(training)
    novelty = None
    if pile is not None:
        novelty = np.zeros(len(training.problem.corpus.images), np.float32)
        novelty[training.problem.split.unlabeled] = 1 - pile.weight.cpu().numpy()
    rows, p = np.empty(0, np.int64), np.empty((0, net.task.classes), np.float32)
    if verdict is not None:
        pool = training.problem.split.unlabeled
        rows, p = pool[sampled(len(pool))], verdict.probabilities.float().cpu().numpy()
        if outcome.trust is not None:
            p = outcome.trust.calibrated(p).astype(np.float32)
    return Fitted(
        model=outcome.calibrated.cpu().eval().requires_grad_(False),
        card=final_card(training, outcome),
        steps=begun.loop.step,
        guard=None if verdict is None else verdict.record(),
        prior=net.part(PRIOR, Prior).pool.cpu().numpy().copy() if PRIOR in net.parts else None,
        novelty=novelty,
        weights=trained_weights(net),
        rows=rows,
        probabilities=p,
        estimated=None if outcome.trust is None else outcome.trust.estimated,
    )
