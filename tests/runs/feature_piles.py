"""Small piles of features for runs in the frozen regime: an uneven pool, a few labels, and images of no class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import selftrain
from selftrain.engine.checkpoint import load_checkpoint

DIM, K = 12, 3
QUICK = {
    "train.steps": 30, "train.batch": 6, "train.unlabeled_batch": 8, "train.eval_every": 10,
    "train.checkpoint_every": 5, "network.bottleneck": 16,
}  # fmt: skip
PLAIN = {"train.guard": "none", "data.screen": False, "data.prior": "labels"}
"""the method by itself"""


def features(*counts: int, seed: int = 0, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return so many images of each class in random order, around one point per class, and their classes."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return (3 * np.eye(DIM)[first + y] + 0.7 * rng.normal(size=(len(y), DIM))).astype(np.float32), y


def uneven(*, junk: int = 0, small: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return features, and labels of four images per class; the pool has 100, 40 and 15 others, or few if ``small``."""
    x, y = features(*((14, 8, 6) if small else (104, 44, 19)))
    known = np.full(len(y), -1)
    for k in range(K):
        known[np.flatnonzero(y == k)[:4]] = k
    others = features(junk, seed=5, first=8)[0]
    return np.concatenate([x, others]), np.concatenate([known, np.full(junk, -1)])


def unseen() -> tuple[np.ndarray, np.ndarray]:
    return features(20, 20, 20, seed=9)


def train_pile(out: Path, method: str = "dst(fixmatch)", *, data: Any = None, **options: Any) -> selftrain.Run:
    settings = {**QUICK, **options.pop("settings", {})}
    options = {"test": unseen(), "backbone": "features", "quiet": True, **options}
    return selftrain.train(uneven() if data is None else data, out=out, method=method, settings=settings, **options)


def last_state(run: Path) -> dict[str, torch.Tensor]:
    """Return the network in the last checkpoint of a run."""
    state = load_checkpoint(run / "checkpoints")
    assert state is not None
    return dict(state["net"])


def part_of(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
