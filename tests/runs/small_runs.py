"""Runs of a few steps on tiny images, for tests of what a run does and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import selftrain
from tests.tiny import saved_model

SMALL = {"train.batch": 6, "train.unlabeled_batch": 8, "data.workers": 0, "train.eval_every": 4}


def train_small(data: Any, out: Path, **options: Any) -> selftrain.Run:
    """Train a tiny network for eight steps."""
    settings = {**SMALL, **options.pop("settings", {})}
    options = {"backbone": "wrn-tiny", "steps": 8, "quiet": True, **options}
    return selftrain.train(data, out=out, settings=settings, **options)


def weights(run: selftrain.Run) -> dict[str, torch.Tensor]:
    return saved_model(run.model).state_dict()


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())
