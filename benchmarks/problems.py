"""Runs to time: the real engine on synthetic images or features, and the floor of a step.

Knows nothing of clocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2.functional import resize

from selftrain.batch import Labeled, Unlabeled
from selftrain.config.resolve import make_settings
from selftrain.config.settings import Settings
from selftrain.data.features.views import FeatureViews
from selftrain.data.images import ArrayImages
from selftrain.data.views.image_views import ImageViews, ViewMaker
from selftrain.data.views.stream import Stream
from selftrain.engine.loop import Loop
from selftrain.engine.observers import make_observers
from selftrain.engine.optim import make_optimizers
from selftrain.engine.runtime import make_fabric
from selftrain.methods import make_method
from selftrain.nn.backbones import build_backbone
from selftrain.nn.layers import Encoder, UnitFeatures
from selftrain.nn.network import Network, Task
from selftrain.runs.model import make_card, make_classifier


def synthetic_images(n: int, side: int, seed: int = 0) -> np.ndarray:
    """Return random images (n, 3, side, side), smooth as photographs are."""
    noise = np.random.default_rng(seed).integers(0, 256, (n, 3, max(side // 4, 1), max(side // 4, 1)), dtype=np.uint8)
    images: np.ndarray = resize(torch.from_numpy(noise), [side, side]).numpy()
    return images


@dataclass
class Problem:
    """A run whose steps can be taken one by one, including making their batches in memory."""

    loop: Loop
    stream: Stream

    def step(self) -> None:
        self.loop.take_step(*self.stream[self.loop.step])

    @property
    def net(self) -> Network:
        return self.loop.net


def image_problem(
    spelling: str, *, batch: int = 16, unlabeled_batch: int = 112, pool: int = 2000, classes: int = 10, **given: Any
) -> Problem:
    """Return a run from random weights, WRN-28-2 at 32 px by default."""
    regime = given.pop("regime", "scratch")
    backbone = given.pop("network.backbone", "wrn-28-2")
    side = given.pop("data.size", 32)
    settings = make_settings(
        regime, {"train.batch": batch, "train.unlabeled_batch": unlabeled_batch, "train.steps": 10_000, **given}
    )
    torch.manual_seed(0)
    network = build_backbone(backbone, weights="none", size=side, channels=3)
    card = make_card(settings.network, network, tuple(map(str, range(classes))), side)
    classifier = make_classifier(card, network, channels_last=settings.train.channels_last)
    like = card.preprocessing
    pixels = synthetic_images(pool, side)

    def views(rows: np.ndarray) -> ImageViews:
        kept = ArrayImages(pixels[rows])
        return ImageViews(kept, settings.data, side=side, channels=3, interpolation=like.interpolation, flip=True)

    labeled = np.arange(4 * classes)
    return _problem(spelling, settings, classifier, views(labeled), labeled % classes, views(np.arange(pool)),
                    Task(classes, pool, 10_000, (3, side, side)))  # fmt: skip


def frozen_problem(
    spelling: str, *, batch: int = 32, unlabeled_batch: int = 64, rows: int = 10_000, classes: int = 100, **given: Any
) -> Problem:
    """Return a run on features of 1,280 numbers: psi 1280 -> 512, heads 1,024 wide."""
    usual = {"train.batch": batch, "train.unlabeled_batch": unlabeled_batch, "train.steps": 10_000}
    settings = make_settings("frozen", {**usual, "network.bottleneck": 512, **given})
    names = ("clean", "weak_1", "weak_2", "strong_1", "strong_2")
    features = np.random.default_rng(0).standard_normal((rows, 1, 1280), np.float32).astype(np.float16)
    kept = np.broadcast_to(features, (rows, len(names), 1280))
    torch.manual_seed(0)
    card = make_card(settings.network, None, tuple(map(str, range(classes))), 0, frozen=True, features=1280)
    classifier = make_classifier(card, UnitFeatures(1280))
    labeled = np.arange(4 * classes)
    return _problem(
        spelling, settings, classifier, FeatureViews(kept, names, labeled), labeled % classes,
        FeatureViews(kept, names, np.arange(rows)), Task(classes, rows, 10_000, (1280,)),
    )  # fmt: skip


def _problem(
    spelling: str, settings: Settings, classifier: Any, labeled: ViewMaker, labels: np.ndarray, unlabeled: ViewMaker,
    task: Task,
) -> Problem:  # fmt: skip
    method = make_method(spelling, settings.regime)
    net = Network(classifier, task)
    method.setup(net)
    if settings.train.channels_last:
        net = net.to(memory_format=torch.channels_last)
    fabric = make_fabric(settings.train)
    train = settings.train
    stream = Stream(
        labeled, labels, unlabeled, method.views, batch=train.batch, unlabeled_batch=train.unlabeled_batch,
        seed=0, rank=fabric.global_rank, ranks=fabric.world_size,
    )  # fmt: skip
    truth = torch.arange(task.unlabeled) % task.classes
    loop = Loop(
        fabric=fabric,
        settings=settings,
        method=method,
        net=net,
        optimizers=make_optimizers(net, settings.optim, method),
        observers=make_observers(truth, task.classes, fabric.device),
        evaluate=lambda model: {},
        pool=stream.pool,
    )
    loop.prepare()
    loop.objective.train()
    return Problem(loop, stream)


@dataclass(frozen=True)
class Pass:
    """One forward pass of a step through a backbone."""

    backbone: nn.Module
    x: Tensor
    gradient: bool
    of_input: bool
    """gradient is computed for the input instead of the weights"""
    training: bool


def passes_of(problem: Problem) -> list[Pass]:
    """Take a step and return its passes through any backbone, in order."""
    found: list[Pass] = []

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        gradient, x = torch.is_grad_enabled(), args[0]
        found.append(Pass(module, x.detach().clone(), gradient, gradient and x.requires_grad, module.training))

    backbones = {id(one.backbone): one.backbone for one in problem.net.modules() if isinstance(one, Encoder)}
    handles = [backbone.register_forward_pre_hook(record) for backbone in backbones.values()]
    problem.step()
    for handle in handles:
        handle.remove()
    return found


def floor_of(passes: list[Pass]) -> Callable[[], None]:
    """Return forward and backward passes of these tensors and nothing else, channels-last as they were."""

    def run() -> None:
        outputs = []
        for one in passes:
            one.backbone.train(one.training)
            with torch.set_grad_enabled(one.gradient):
                out = one.backbone(one.x.requires_grad_(one.of_input))
            if one.of_input:
                torch.autograd.grad(out.sum(), one.x)
            elif one.gradient:
                outputs.append(out.square().mean())
        torch.stack(outputs).sum().backward()  # type: ignore[no-untyped-call]
        for one in passes:
            one.backbone.zero_grad(set_to_none=True)

    return run


def contiguous(passes: list[Pass]) -> list[Pass]:
    """Return the same passes in the contiguous memory layout, through copies of the backbones."""
    copies = {one.backbone: copy.deepcopy(one.backbone).to(memory_format=torch.contiguous_format) for one in passes}
    return [replace(one, backbone=copies[one.backbone], x=one.x.contiguous()) for one in passes]


def batch_of(problem: Problem, step: int = 0) -> tuple[Labeled, Unlabeled]:
    """Return a batch for the reference steps: normalised, in memory, contiguous."""
    normalise = problem.net.psi.normalise
    labeled, unlabeled = problem.stream[step]
    return labeled.map(lambda x: normalise(x).contiguous()), unlabeled.map(lambda x: normalise(x).contiguous())
