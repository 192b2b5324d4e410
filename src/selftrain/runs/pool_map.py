"""A map of the pile: images that look alike to the network lie near each other on a plane.

t-SNE (van der Maaten and Hinton, JMLR 2008) of a sample of the images, computed exactly. It starts from principal
components, and nothing is drawn at random. Knows nothing of pages.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from selftrain.methods.fitted import unit_centred
from selftrain.nn.contexts import evaluating, using_threads
from selftrain.runs.image_outputs import sampled
from selftrain.runs.layout import Arrays
from selftrain.runs.training import Training

MOST, MOST_LABELED = 500, 200
"""images on the map, and labeled ones among them"""
COMPONENTS = 50
PERPLEXITY = 30.0
"""about how many neighbours of an image count"""
STEPS, EXAGGERATED, EXAGGERATION = 180, 60, 12.0


def pool_map(training: Training, outputs: Arrays) -> Arrays:
    """Return the arrays ``map_*`` of ``outputs.npz`` for labeled and unlabeled images, given the arrays ``pool_*``."""
    split, names = training.problem.split, training.problem.corpus.images.names
    if "pool_predicted" not in outputs:
        return {}
    labeled = _some(np.arange(len(split.labeled)), MOST_LABELED)
    rows = split.unlabeled[sampled(len(split.unlabeled))]
    free = _some(np.flatnonzero(~np.isin(rows, split.labeled)), MOST - len(labeled))
    chosen = np.concatenate([split.labeled[labeled], rows[free]])
    if len(chosen) < 3:
        return {}
    with using_threads(1):  # sums depend on the number of threads, and small differences grow
        x, y = plane(_features(training, chosen)).T.numpy().astype(np.float16)
    K = len(labeled)
    found = {
        "names": np.array([names[i] for i in chosen], np.str_),
        "label": np.concatenate([split.labels[labeled], np.full(len(free), -1)]).astype(np.int32),
        "predicted": np.concatenate([split.labels[labeled], outputs["pool_predicted"][free]]).astype(np.int32),
        "confidence": np.concatenate([np.ones(K), outputs["pool_confidence"][free]]).astype(np.float16),
        "x": x,
        "y": y,
    }
    if "pool_novelty" in outputs:
        found["novelty"] = np.concatenate([np.zeros(K), outputs["pool_novelty"][free]]).astype(np.float16)
    return {f"map_{name}": values for name, values in found.items()}


def _some(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many of the rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _features(training: Training, rows: np.ndarray) -> Tensor:
    """Return the features (n, d) of rows of the pool: those of the frozen backbone, or else those of psi."""
    batches = training.inputs.clean_pool(rows, training.settings.train.eval_batch)
    if training.inputs.card.frozen:
        return torch.cat([batch.float().cpu() for batch in batches])
    psi, parts = training.net.psi, []
    for batch in batches:
        with torch.inference_mode(), evaluating(psi), training.fabric.autocast():
            parts.append(psi(batch.to(training.fabric.device)).float().cpu())
    return torch.cat(parts)


def plane(features: Tensor) -> Tensor:
    """Return positions (n, 2) between 0 and 1."""
    x = features.float()
    x = unit_centred(x, torch.nn.functional.normalize(x, dim=1).mean(dim=0)).double()
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    x = u[:, :COMPONENTS] * s[:COMPONENTS]
    y = x[:, :2] if x.shape[1] > 1 else torch.cat([x, torch.zeros_like(x)], dim=1)
    y = 1e-2 * y / y.std(dim=0).clamp(min=1e-12)
    y = _descend(_joint(x).float(), y.float())
    low, high = y.amin(dim=0), y.amax(dim=0)
    return (y - low) / (high - low).clamp(min=1e-12)


def _joint(x: Tensor) -> Tensor:
    """Return p (n, n): how likely two images are neighbours, each image with the same perplexity."""
    n = len(x)
    d = torch.cdist(x, x).square()
    wanted = math.log(min(PERPLEXITY, max(1.5, (n - 1) / 3)))
    low, high = torch.zeros(n, 1, dtype=x.dtype), torch.full((n, 1), torch.inf, dtype=x.dtype)
    beta = torch.full((n, 1), 1.0, dtype=x.dtype)
    diagonal = torch.eye(n, dtype=torch.bool)
    for _ in range(25):  # a binary search for the precision that gives the perplexity
        p = torch.softmax((-d * beta).masked_fill(diagonal, -torch.inf), dim=1)
        entropy = -(p * p.clamp(min=1e-300).log()).sum(dim=1, keepdim=True)
        wide = entropy > wanted
        low, high = torch.where(wide, beta, low), torch.where(wide, high, beta)
        beta = torch.where(high.isinf(), 2 * beta, (low + high) / 2)
    return (p + p.T) / (2 * n)


def _descend(p: Tensor, y: Tensor) -> Tensor:
    """Return positions at which neighbours in p are neighbours on the plane: gradient descent with momentum."""
    n = len(y)
    rate = max(n / EXAGGERATION, 50.0)
    velocity, gains = torch.zeros_like(y), torch.ones_like(y)
    for step in range(STEPS):
        early = step < EXAGGERATED
        q = 1 / (1 + torch.cdist(y, y, compute_mode="use_mm_for_euclid_dist").square())
        q.fill_diagonal_(0)
        force = (p * (EXAGGERATION if early else 1.0) - q / q.sum()) * q
        gradient = 4 * (force.sum(dim=1, keepdim=True) * y - force @ y)
        turned = gradient.sign() != velocity.sign()
        gains = torch.where(turned, gains + 0.2, gains * 0.8).clamp(min=0.01)
        velocity = (0.5 if early else 0.8) * velocity - rate * gains * gradient
        y = y + velocity
        y = y - y.mean(dim=0)
    return y
