"""A classifier over a set of pictures: probabilities, or a confusion matrix.

Knows nothing of training or of where the pictures come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.network import evaluating


def probabilities(model: nn.Module, batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """softmax of the model's logits, batch by batch."""
    for batch in batches:
        with torch.inference_mode(), evaluating(model):
            p = torch.softmax(model(batch.to(device, non_blocking=True)).float(), dim=1)
        yield p


def confusion_matrix(
    model: nn.Module, batches: Iterable[Tensor], labels: np.ndarray, classes: int, device: torch.device
) -> np.ndarray:
    """Counts of (true, predicted) classes, added up on the device; labels of -1 are passed over."""
    truth = torch.from_numpy(labels).to(device)
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=device)
    start = 0
    for p in probabilities(model, batches, device):
        y = truth[start : start + len(p)]
        start += len(p)
        known = y >= 0
        counts += torch.bincount(y[known] * classes + p.argmax(dim=1)[known], minlength=classes * classes)
    return counts.view(classes, classes).cpu().numpy()
