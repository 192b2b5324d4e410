"""What the final model says of each picture, as ``outputs.npz`` in the run folder, and what that adds up to.

Knows nothing of training; of sets larger than 20,000 pictures it keeps a sample, the same one every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from selftrain.data.corpus import Corpus
from selftrain.data.images import Images
from selftrain.data.split import Split
from selftrain.engine.evaluate import answers, heads_answers
from selftrain.engine.metrics import triples
from selftrain.files import replacing
from selftrain.nn.network import Network
from selftrain.runs.network_inputs import Inputs

CAP, SEED = 20_000, 0
OTHER_HEADS = {"worst": "h_worst", "pseudo": "h_pseudo"}

Arrays = dict[str, np.ndarray]


def drawn(n: int) -> np.ndarray:
    """Rows of the sample of n pictures, in order; all of them where there are few enough."""
    if n <= CAP:
        return np.arange(n)
    return np.sort(np.random.default_rng(SEED).choice(n, CAP, replace=False))


def pool_outputs(
    model: nn.Module, net: Network, inputs: Inputs, corpus: Corpus, split: Split, batch: int, device: torch.device
) -> tuple[Arrays, dict[str, Any]]:
    """What the model, h' and h_pseudo say of unlabeled pictures; and how often each class is predicted.

    The truth of a picture is that which was hidden: -1 for one whose label was trained on.
    """
    rows = split.unlabeled[drawn(len(split.unlabeled))]
    if not len(rows):
        return {}, {"pool_predicted": None}
    said = answers(model, inputs.clean_pool(rows, batch), device)
    heads = {name: net.parts[part] for name, part in OTHER_HEADS.items() if part in net.parts}
    if heads:
        said |= heads_answers(net.psi, heads, inputs.clean_pool(rows, batch), device)
    counts = np.bincount(said["predicted"], minlength=len(corpus.classes))
    truth = np.where(np.isin(rows, split.labeled), -1, corpus.truth[rows])
    arrays = _named("pool", [corpus.images.names[i] for i in rows], truth, said)
    return arrays, {"pool_predicted": counts.tolist()}


def evaluated_outputs(said: Arrays, images: Images, truth: np.ndarray, K: int) -> tuple[Arrays, dict[str, Any]]:
    """What the model says of the evaluated set; and its whole confusion matrix."""
    confusion = np.zeros((K, K), np.int64)
    np.add.at(confusion, (truth, said["predicted"]), 1)
    rows = drawn(len(images))
    some = {name: values[rows] for name, values in said.items()}
    return _named("eval", [images.names[i] for i in rows], truth[rows], some), {"confusion": triples(confusion)}


def _named(prefix: str, names: list[str], truth: np.ndarray, said: Mapping[str, np.ndarray]) -> Arrays:
    arrays = {"names": np.array(names, dtype=np.str_), "truth": truth.astype(np.int32), **said}
    return {f"{prefix}_{name}": values for name, values in arrays.items()}


def never_predicted(figures: Mapping[str, Any]) -> list[int]:
    """Classes that the model never predicts: of those in the evaluated set; without one, on the unlabeled pictures."""
    if figures["confusion"] is not None:
        present, predicted = ({cell[i] for cell in figures["confusion"]} for i in (0, 1))
        return sorted(present - predicted)
    return [k for k, n in enumerate(figures["pool_predicted"] or ()) if n == 0]


def save_outputs(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
