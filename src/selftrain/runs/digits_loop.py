"""A short run on handwritten digits in memory, with the library's own loop, streams and views.

Knows nothing of run folders: it is what a method is checked on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.config.resolve import make_settings
from selftrain.data.features.views import FeatureSpaceViews
from selftrain.data.images import ArrayImages
from selftrain.data.views.image_views import ImageViews, ViewMaker
from selftrain.data.views.stream import Stream
from selftrain.engine.loop import Loop
from selftrain.engine.optim import make_optimizers
from selftrain.engine.runtime import make_fabric
from selftrain.methods import Method
from selftrain.nn.layers import Classifier, Encoder, UnitFeatures
from selftrain.nn.network import Network, Task


class SmallBackbone(nn.Module):
    """Images of 8 x 8 -> features of length 32."""

    dim = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@dataclass(frozen=True)
class DigitsRun:
    """A loop, its batches, and the labeled images with their classes."""

    loop: Loop
    stream: Stream
    x: Tensor
    y: Tensor

    def go_on(self, steps: int) -> None:
        """Take further steps."""
        for _ in range(steps):
            self.loop.take_step(*self.stream[self.loop.step])


@cache
def _digits(classes: int) -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    digits = load_digits(n_class=classes)
    order = np.random.default_rng(0).permutation(len(digits.images))
    return np.rint(digits.images * (255 / 16)).astype(np.uint8)[order, None], digits.target[order]


def digits_run(
    method: Method,
    *,
    regime: str = "scratch",
    labels: Sequence[int] = (4,) * 10,
    steps: int = 20,
    batch: int = 16,
    unlabeled_batch: int | None = None,
) -> DigitsRun:
    """Return a run with ``labels[k]`` labels of class k, before its first step.

    In the frozen regime, pixels are features.
    """
    pixels, target = _digits(len(labels))
    per_step = unlabeled_batch or 2 * batch
    known = np.concatenate([np.flatnonzero(target == k)[:n] for k, n in enumerate(labels)])
    others = np.arange(200)
    settings = make_settings(
        regime,
        {
            "train.steps": steps, "train.batch": batch, "train.unlabeled_batch": per_step, "optim.lr": 0.03,
            "train.accelerator": "cpu", "optim.ema": 0.0,
        },
    )  # fmt: skip
    fabric = make_fabric(settings.train, unused=len(method.turns) > 1)
    torch.manual_seed(0)
    views: tuple[ViewMaker, ...]
    if regime == "frozen":
        flat = pixels.reshape(len(pixels), 64).astype(np.float32)
        inputs = torch.from_numpy(flat)
        psi = Encoder(UnitFeatures(64), mean=(0.0,), std=(1.0,), bottleneck=32, dropout=0.1)
        views = tuple(
            FeatureSpaceViews.compute(flat, rows, noise=0.1, dropout=0.1, mixup=0.3) for rows in (known, others)
        )
    else:
        inputs = torch.from_numpy(pixels)
        psi = Encoder(SmallBackbone(), mean=(0.5,), std=(0.5,))
        views = tuple(
            ImageViews(
                ArrayImages(pixels[rows]), settings.data, side=8, channels=1, interpolation="bilinear", flip=False
            )
            for rows in (known, others)
        )
    task = Task(len(labels), len(others), steps, tuple(inputs.shape[1:]))
    net = Network(Classifier(psi, nn.Linear(psi.dim, len(labels))), task)
    method.setup(net)
    stream = Stream(
        views[0], target[known], views[1], method.views, batch=batch, unlabeled_batch=per_step, seed=0,
        rank=fabric.global_rank, ranks=fabric.world_size,
    )  # fmt: skip
    loop = Loop(
        fabric=fabric, settings=settings, method=method, net=net,
        optimizers=make_optimizers(net, settings.optim, method), observers=[], evaluate=lambda model: {},
        pool=stream.pool,
    )  # fmt: skip
    loop.prepare()
    loop.objective.train()
    return DigitsRun(loop, stream, inputs[known], torch.from_numpy(target[known]))
