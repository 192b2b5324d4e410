"""What a run reports about its pool and about the labels alone: the columns of ``results.json``, and a line of the log.

Knows nothing of how they were found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from selftrain.methods.junk import auroc
from selftrain.methods.prior import PART as PRIOR
from selftrain.methods.prior import Prior, total_variation
from selftrain.runs.guard import Verdict
from selftrain.runs.survey import PILE, Pile
from selftrain.runs.training import Training

COMPARED = ("accuracy", "mean_per_class", "worst20_percent", "per_class")


def pile_results(
    training: Training, truth: Sequence[int] | None, verdict: Verdict | None, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is known about the pool and about the labels alone; ``own`` has the measures of the method's model."""
    found: dict[str, Any] = {"prior": None, "screening": None, "guard": None}
    net, settings = training.net, training.settings
    if PILE not in net.parts:
        return found
    pile, prior = net.part(PILE, Pile), net.part(PRIOR, Prior)
    found["prior"] = _prior(prior, pile, settings.data.prior, truth)
    if settings.data.screen:
        junk = training.problem.corpus.junk[training.problem.split.unlabeled]
        found["screening"] = {
            "share": float(pile.junk_share),
            "drawn": float(pile.weight.mean()),
            "auroc": auroc(-pile.likeness.cpu().numpy(), junk),
        }
    if verdict is not None:
        alone = training.evaluate(pile.reference)
        found["guard"] = verdict.record() | {
            "labels_only": {name: alone.get(name) for name in COMPARED},
            "self_trained": {name: own.get(name) for name in COMPARED},
        }
    return found


def _prior(prior: Prior, pile: Pile, source: str, truth: Sequence[int] | None) -> dict[str, Any]:
    error = None
    if truth is not None and sum(truth):
        shares = torch.from_numpy(np.asarray(truth, np.float32) / sum(truth))
        error = float(total_variation(prior.pool.cpu(), shares))
    return {
        "source": source,
        "labels": prior.labels.tolist(),
        "pool": prior.pool.tolist(),
        "distance": float(prior.distance),
        "agreement": float(pile.agreement),
        "error": error,
    }


def in_words(verdict: Verdict, alone: float | None, ours: float | None) -> str:
    """Return the verdict as a line of the log."""
    scores = ""
    if alone is not None and ours is not None:
        scores = f" (accuracy {100 * ours:.1f}, labels alone {100 * alone:.1f})"
    if verdict.choice == "blend":
        return f"guard: the self-trained model, blended with its neighbours, is kept: {verdict.reason}{scores}"
    return f"guard: the model trained on the labels alone is kept, because the other is doubtful: {verdict.reason}{scores}"
