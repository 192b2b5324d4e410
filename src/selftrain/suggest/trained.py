"""What a model that was trained in memory says about every image of its pool.

Knows nothing of how it was trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.runs.in_memory import Fitted
from selftrain.suggest.quick import Answers

Array = NDArray[Any]
BATCH = 1024


def probabilities_of(fitted: Fitted, features: Array) -> Array:
    """Return the probabilities (n, K) of clean features (n, d)."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(features), BATCH):
            x = torch.from_numpy(np.asarray(features[start : start + BATCH], np.float32))
            parts.append(torch.softmax(fitted.model(x).float(), dim=1).numpy())
    return np.concatenate(parts)


def trained_answers(fitted: Fitted, features: Array, quick: Answers) -> Answers:
    """Return the answers of a trained model; it disagrees where the quick model of the same labels does."""
    p = probabilities_of(fitted, features)
    return Answers(p, (p.argmax(axis=1) != quick.p.argmax(axis=1)).astype(np.float64), fitted.novelty)
