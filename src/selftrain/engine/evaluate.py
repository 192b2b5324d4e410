"""Run a classifier over a set of images: probabilities, counts of correct predictions, or predictions per image.

Knows nothing of training or of where the images come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.engine.metrics import BINS
from selftrain.nn.contexts import evaluating


def probabilities(model: nn.Module, batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the softmax of the model's logits, batch by batch."""
    for batch in batches:
        with torch.inference_mode(), evaluating(model):
            p = torch.softmax(model(batch.to(device, non_blocking=True)).float(), dim=1)
        yield p


class Tally(NamedTuple):
    """Counts of a classifier's predictions on labeled images."""

    confusion: np.ndarray
    """(K, K): true classes by row, predicted classes by column"""
    bins: np.ndarray
    """(15, 3): number of images, sum of confidences, number correct, per bin of confidence: 0 to 1/15, to 2/15, ..."""


def tally(model: nn.Module, batches: Iterable[Tensor], labels: np.ndarray, classes: int, device: torch.device) -> Tally:
    """Count predictions over a set, on the device; images with label -1 are skipped."""
    truth = torch.from_numpy(labels).to(device)
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=device)
    bins = torch.zeros(3, BINS, dtype=torch.float64, device=device if device.type != "mps" else "cpu")
    start = 0
    for p in probabilities(model, batches, device):
        y = truth[start : start + len(p)]
        start += len(p)
        known = y >= 0
        confidence, predicted = p.amax(dim=1), p.argmax(dim=1)
        counts += torch.bincount(y[known] * classes + predicted[known], minlength=classes * classes)
        values = torch.stack([torch.ones_like(confidence), confidence, (predicted == y).float()])[:, known]
        place = (torch.ceil(confidence[known] * BINS).long() - 1).clamp(0, BINS - 1)
        bins.index_add_(1, place.to(bins.device), values.to(bins))
    return Tally(counts.view(classes, classes).cpu().numpy(), bins.T.cpu().numpy())


def confusion_matrix(
    model: nn.Module, batches: Iterable[Tensor], labels: np.ndarray, classes: int, device: torch.device
) -> np.ndarray:
    """Count (true, predicted) classes; images with label -1 are skipped."""
    return tally(model, batches, labels, classes, device).confusion


def answers(model: nn.Module, batches: Iterable[Tensor], device: torch.device) -> dict[str, np.ndarray]:
    """Return what ``answers_of`` does, of a model on images."""
    return answers_of(probabilities(model, batches, device))


def answers_of(probabilities: Iterable[Tensor]) -> dict[str, np.ndarray]:
    """Return the ``predicted`` class per image, the ``confidence`` in it (float16), and the ``runner_up``."""
    parts: dict[str, list[np.ndarray]] = {"predicted": [], "confidence": [], "runner_up": []}
    for p in probabilities:
        first = p.argmax(dim=1)
        second = p.scatter(1, first[:, None], -1.0).argmax(dim=1)
        for part, value in zip(parts.values(), (first.int(), p.amax(dim=1).half(), second.int()), strict=True):
            part.append(value.cpu().numpy())
    return {name: np.concatenate(part) for name, part in parts.items() if part}


def heads_answers(
    psi: nn.Module, heads: Mapping[str, nn.Module], batches: Iterable[Tensor], device: torch.device
) -> dict[str, np.ndarray]:
    """Return the class that each of several heads on one psi predicts per image."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in heads}
    everything = nn.ModuleList([psi, *heads.values()])
    for batch in batches:
        with torch.inference_mode(), evaluating(everything):
            z = psi(batch.to(device, non_blocking=True))
            for name, head in heads.items():
                parts[name].append(head(z).argmax(dim=1).int().cpu().numpy())
    return {name: np.concatenate(part) for name, part in parts.items() if part}
