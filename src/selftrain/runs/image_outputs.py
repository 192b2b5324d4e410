"""Predictions of the final model image by image, the arrays of ``outputs.npz``, and their counts.

Knows nothing of training. Sets of more than 20,000 images are sampled, always in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.data.corpus import Corpus
from selftrain.data.images import Images
from selftrain.data.split import Split
from selftrain.engine.evaluate import answers, answers_of, heads_answers
from selftrain.engine.metrics import triples
from selftrain.nn.network import Network
from selftrain.runs.layout import Arrays
from selftrain.runs.network_inputs import Inputs

CAP, SEED = 20_000, 0
OTHER_HEADS = {"worst": "h_worst", "pseudo": "h_pseudo"}


def sampled(n: int) -> np.ndarray:
    """Return the rows of a sample of n images, in order; all rows if there are at most ``CAP``."""
    if n <= CAP:
        return np.arange(n)
    return np.sort(np.random.default_rng(SEED).choice(n, CAP, replace=False))


def pool_outputs(
    model: nn.Module, net: Network, inputs: Inputs, corpus: Corpus, split: Split, batch: int, device: torch.device,
    known: Tensor | None = None,
) -> tuple[Arrays, dict[str, Any]]:  # fmt: skip
    """Return the predictions of the model, h' and h_pseudo on unlabeled images, and how often each class is predicted.

    The truth is the hidden one: -1 for an image whose label was trained on, and for images of no class. ``known`` are
    the model's probabilities on the sampled images, if they were computed before.
    """
    rows = split.unlabeled[sampled(len(split.unlabeled))]
    if not len(rows):
        return {}, {"pool_predicted": None}
    said = answers(model, inputs.clean_pool(rows, batch), device) if known is None else answers_of([known])
    heads = {name: net.parts[part] for name, part in OTHER_HEADS.items() if part in net.parts}
    if heads:
        said |= heads_answers(net.psi, heads, inputs.clean_pool(rows, batch), device)
    counts = np.bincount(said["predicted"], minlength=len(corpus.classes))
    truth = np.where(np.isin(rows, split.labeled), -1, corpus.truth[rows])
    arrays = _named("pool", [corpus.images.names[i] for i in rows], truth, said)
    if corpus.junk.any():
        arrays["pool_junk"] = corpus.junk[rows]
    return arrays, {"pool_predicted": counts.tolist()}


def pool_counts(corpus: Corpus, split: Split) -> dict[str, Any]:
    """Return the images of each class in the unlabeled pool, and those of no class, as far as they are known."""
    junk = corpus.junk[split.unlabeled]
    truth = corpus.truth[split.unlabeled][~junk]
    known = bool((truth >= 0).all())
    counts = np.bincount(truth[truth >= 0], minlength=len(corpus.classes)).tolist()
    return {"pool_truth": counts if known else None, "junk": int(junk.sum()) if known or junk.any() else None}


def evaluated_outputs(said: Arrays, images: Images, truth: np.ndarray, K: int) -> tuple[Arrays, dict[str, Any]]:
    """Return the predictions on a sample of the evaluated set, and the confusion matrix of all of it."""
    confusion = np.zeros((K, K), np.int64)
    np.add.at(confusion, (truth, said["predicted"]), 1)
    rows = sampled(len(images))
    some = {name: values[rows] for name, values in said.items()}
    return _named("eval", [images.names[i] for i in rows], truth[rows], some), {"confusion": triples(confusion)}


def _named(prefix: str, names: list[str], truth: np.ndarray, said: Mapping[str, np.ndarray]) -> Arrays:
    arrays = {"names": np.array(names, dtype=np.str_), "truth": truth.astype(np.int32), **said}
    return {f"{prefix}_{name}": values for name, values in arrays.items()}


def never_predicted(figures: Mapping[str, Any]) -> list[int]:
    """Return the classes of the evaluated set that are never predicted; without one, those of the unlabeled images."""
    if figures["confusion"] is not None:
        present, predicted = ({cell[i] for cell in figures["confusion"]} for i in (0, 1))
        return sorted(present - predicted)
    return [k for k, n in enumerate(figures["pool_predicted"] or ()) if n == 0]
