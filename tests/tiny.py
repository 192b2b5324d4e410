"""Networks small enough to reason about, batches for them, and short runs on handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.config.resolve import make_settings
from selftrain.config.settings import TrainSettings
from selftrain.data.features.views import FeatureSpaceViews
from selftrain.data.images import ArrayImages
from selftrain.data.views.image_views import ImageViews, ViewMaker
from selftrain.data.views.stream import Stream
from selftrain.engine.loop import Loop, add_average
from selftrain.engine.observers import LossMeter
from selftrain.engine.optim import make_optimizers
from selftrain.engine.runtime import make_fabric
from selftrain.engine.sharding import shard_backbones
from selftrain.methods import Method, make_method
from selftrain.nn.layers import Classifier, Encoder, OnFeatures, Tempered, UnitFeatures
from selftrain.nn.network import Network, Task
from selftrain.runs.model import load_model

K, DIM, INPUT = 4, 6, 5


class TinyBackbone(nn.Module):
    """Vectors of length 5 -> features of length 6, with a norm layer so that buffers matter."""

    dim = DIM

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(INPUT, DIM), nn.BatchNorm1d(DIM), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def tiny_net(method: Method, *, classes: int = K, unlabeled: int = 50, steps: int = 100, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    psi = Encoder(TinyBackbone(), mean=(0.0,), std=(1.0,))
    net = Network(Classifier(psi, nn.Linear(psi.dim, classes)), Task(classes, unlabeled, steps, (INPUT,)))
    method.setup(net)
    return net


VIEWS = (("weak", 0.5), ("weak_2", 0.5), ("strong", 1.0), ("strong_2", 1.0))


def tiny_batch(labeled: int = 8, unlabeled: int = 12, *, classes: int = K, seed: int = 1) -> tuple[Labeled, Unlabeled]:
    """Return samples around one centre per class; strong views lie further from it than weak ones."""
    centres = 2 * torch.eye(INPUT)
    g = torch.Generator().manual_seed(seed)

    def views(y: Tensor) -> dict[str, Tensor]:
        return {name: centres[y] + spread * torch.randn(len(y), INPUT, generator=g) for name, spread in VIEWS}

    y = torch.arange(labeled) % classes
    hidden = torch.randint(classes, (unlabeled,), generator=g)
    return (
        Labeled(y, **views(y)),
        Unlabeled(torch.randperm(50, generator=g)[:unlabeled], **views(hidden)),
    )


def gradients(net: Network, loss: Tensor) -> dict[str, float]:
    """Return the size of the gradient in each trained part: psi, h, ..., and twin.psi, ... of a second network."""
    net.zero_grad(set_to_none=True)
    if loss.requires_grad:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    sizes: dict[str, float] = {}
    for prefix, one in zip(("", "twin."), net.members, strict=False):
        parts: dict[str, nn.Module] = {"psi": one.psi, "h": one.h, **one.parts}
        for name, part in parts.items():
            trained = [p for p in part.parameters() if p.requires_grad]
            if trained and not isinstance(part, Network):
                sizes[prefix + name] = sum(float(p.grad.abs().sum()) for p in trained if p.grad is not None)
    return sizes


class DigitsBackbone(nn.Module):
    """Images of 8 x 8 -> features of length 32."""

    dim = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.BatchNorm1d(32), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@cache
def digits_of(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of the first classes in a fixed random order. Reading them from disk takes a while."""
    digits = load_digits(n_class=classes)
    order = np.random.default_rng(0).permutation(len(digits.images))
    return np.rint(digits.images * (255 / 16)).astype(np.uint8)[order, None], digits.target[order]


@cache
def _fabric(train: TrainSettings, unused: bool) -> Fabric:
    return make_fabric(train, unused=unused)


def fabric_of(train: TrainSettings, unused: bool) -> Fabric:
    """The fabric of these settings, made once: each new one looks for plugins in every installed package."""
    return _fabric(replace(train, steps=1, batch=2, unlabeled_batch=2, eval_every=None), unused)


class KeptBatches(Stream):
    """A stream that keeps its batches: other methods ask for the same views of the same samples."""

    kept: ClassVar[dict[Any, tuple[Labeled, Unlabeled]]] = {}
    problem: tuple[Any, ...]
    """all that the batches depend on, apart from the step"""

    def __getitem__(self, step: int) -> tuple[Labeled, Unlabeled]:
        key = (*self.problem, step)
        if key not in self.kept:
            self.kept[key] = super().__getitem__(step)
        return self.kept[key]


def digits_loop(
    method: Method,
    *,
    regime: str = "scratch",
    labels: Sequence[int] = (4,) * 10,
    steps: int = 20,
    batch: int = 16,
    unlabeled: int = 200,
    seed: int = 0,
    **given: Any,
) -> tuple[Loop, Stream, Tensor, Tensor]:
    """Return a loop over digits with ``labels[k]`` labels of class k, its batches, labeled inputs and labels."""
    pixels, target = digits_of(len(labels))
    known = np.concatenate([np.flatnonzero(target == k)[:n] for k, n in enumerate(labels)])
    others = np.arange(unlabeled)
    settings = make_settings(
        regime,
        {
            "train.steps": steps, "train.batch": batch, "train.unlabeled_batch": 2 * batch, "optim.lr": 0.03,
            "train.accelerator": "cpu", "optim.ema": 0.0, "seed": seed, **given,
        },
    )  # fmt: skip
    fabric = fabric_of(settings.train, unused=len(method.turns) > 1)
    torch.manual_seed(seed)
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
        psi = Encoder(DigitsBackbone(), mean=(0.5,), std=(0.5,))
        views = tuple(
            ImageViews(
                ArrayImages(pixels[rows]), settings.data, side=8, channels=1, interpolation="bilinear", flip=False
            )
            for rows in (known, others)
        )
    task = Task(len(labels), unlabeled, steps, tuple(inputs.shape[1:]))
    net = Network(Classifier(psi, nn.Linear(psi.dim, len(labels))), task)
    method.setup(net)
    if settings.train.strategy == "fsdp" and fabric.world_size > 1:
        add_average(net, method, settings.optim)
        shard_backbones(net, fabric.device)
    stream = KeptBatches(
        views[0], target[known], views[1], method.views, batch=batch, unlabeled_batch=2 * batch, seed=seed,
        rank=fabric.global_rank, ranks=fabric.world_size,
    )  # fmt: skip
    stream.problem = (regime, tuple(labels), batch, unlabeled, seed, settings.data, method.views, fabric.world_size)
    loop = Loop(
        fabric=fabric,
        settings=replace(settings),
        method=method,
        net=net,
        optimizers=make_optimizers(net, settings.optim, method),
        observers=[],
        evaluate=lambda model: {},
        pool=stream.pool,
    )
    loop.prepare()
    loop.objective.train()
    return loop, stream, inputs[known], torch.from_numpy(target[known])


def go_on(loop: Loop, stream: Stream, steps: int) -> None:
    """Take further steps."""
    for _ in range(steps):
        loop.take_step(*stream[loop.step])


# Each rank draws dropout masks for its share of a batch. Without dropout, results do not depend on the number of ranks.
SAME_ON_ANY_RANKS = (
    "supervised", "fixmatch(tau=0.5)", "flexmatch(tau=0.5)", "dst(fixmatch(tau=0.5), dropout=0.0, warmup=0)",
    "dst(flexmatch(tau=0.5), dropout=0.0, warmup=0, worst_layers=3)",
    "dst(fixmatch(tau=0.5), dropout=0.0, preset=paper, ce_cap=5.0)",
)  # fmt: skip


AVERAGED: dict[str, Any] = {"optim.ema": 0.9}


def trajectory(text: str, steps: int = 12, **given: Any) -> tuple[list[float], Loop, Stream]:
    """Return the loss of every step of a short run, over all ranks, and the run."""
    loop, stream, *_ = digits_loop(make_method(text), steps=steps, **{"optim.lr": 0.01, **given})
    meter = LossMeter(loop.fabric.device)
    loop.observers = [meter]
    losses = []
    for _ in range(steps):
        go_on(loop, stream, 1)
        losses.append(meter.read()["loss"])
    return losses, loop, stream


def saved_model(folder: Path) -> nn.Module:
    """Return the model of a ``model`` folder without its calibration, which only changes how sure it is."""
    model, _ = load_model(folder)
    if isinstance(model, OnFeatures) and isinstance(model.predictor, Tempered):
        return OnFeatures(model.encoder, model.predictor.inner, model.zoom)
    return model.inner if isinstance(model, Tempered) else model
