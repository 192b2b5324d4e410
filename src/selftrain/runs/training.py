"""The parts of one run, put together: problem, network and its inputs, and how they are evaluated.

Knows nothing of the training loop, of files or of consoles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.config.settings import Settings
from selftrain.data.views.stream import Stream
from selftrain.engine.evaluate import tally
from selftrain.engine.metrics import calibration, summarise
from selftrain.methods import Method, spell_method
from selftrain.nn.collectives import all_sum, my_share
from selftrain.nn.network import Network
from selftrain.runs.network_inputs import Inputs
from selftrain.runs.problem import Evaluated, Problem


@dataclass(frozen=True)
class Training:
    """The parts of one run, put together."""

    settings: Settings
    method: Method
    problem: Problem
    evaluated: Evaluated
    inputs: Inputs
    net: Network
    fabric: Fabric

    @property
    def name(self) -> str:
        """The method as a string, without options that have their default values."""
        return spell_method(self.method, self.settings.regime)

    def stream(self, method: Method | None = None, weights: np.ndarray | None = None) -> Stream:
        """Return the batches of every step, this rank's share of them: those of the run's method, or of another one.

        ``weights`` are those with which unlabeled images are drawn.
        """
        split, train = self.problem.split, self.settings.train
        return Stream(
            self.inputs.views(split.labeled),
            split.labels,
            self.inputs.views(split.unlabeled),
            (method or self.method).views,
            batch=train.batch,
            unlabeled_batch=train.unlabeled_batch,
            seed=self.settings.seed,
            rank=self.fabric.global_rank,
            ranks=self.fabric.world_size,
            weights=weights,
        )

    def all_images(self) -> tuple[Labeled, Unlabeled]:
        """Return each image once, without augmentation, for a method that is fitted to all of them."""
        split = self.problem.split
        index = np.flatnonzero(~np.isin(split.unlabeled, split.labeled))  # labeled images may be in the pool as well
        return (
            Labeled(torch.from_numpy(split.labels), clean=self.clean(split.labeled)),
            Unlabeled(torch.from_numpy(index), clean=self.clean(split.unlabeled[index])),
        )

    def clean(self, rows: np.ndarray) -> torch.Tensor:
        """Return the inputs of these rows of the training pool, without augmentation."""
        found, place = torch.empty(len(rows), *self.net.task.shape), 0
        for part in self.inputs.clean_pool(rows, self.settings.train.eval_batch):
            found[place : place + len(part)] = part
            place += len(part)
        return found

    def hidden_truth(self) -> torch.Tensor:
        """Return the true classes of the unlabeled images where known, but -1 for those the method trains on."""
        truth = self.problem.corpus.truth.copy()
        truth[self.problem.split.labeled] = -1
        return torch.from_numpy(truth[self.problem.split.unlabeled])

    def evaluated_batches(self, rows: slice = slice(None)) -> Iterable[torch.Tensor]:
        """Return the evaluated images, or some rows of them. Features of held-out images are those of the pool."""
        assert self.evaluated.images is not None
        batch = self.settings.train.eval_batch
        if self.inputs.card.frozen and self.evaluated.on == "validation":
            return self.inputs.clean_pool(self.problem.split.validation[rows], batch)
        return self.inputs.clean(self.evaluated.images, batch, rows)

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Return the measures of a model on the evaluated images; None for each if there are no such images."""
        if self.evaluated.images is None:
            return {**summarise(np.zeros((1, 1))), "predicted": None, **calibration(np.zeros((1, 3)))}
        mine, device = my_share(len(self.evaluated.images)), self.fabric.device
        with self.fabric.autocast():
            images, truth = self.evaluated_batches(mine), self.evaluated.labels[mine]
            counts = tally(model, images, truth, len(self.problem.corpus.classes), device)
        confusion, bins = (all_sum(torch.from_numpy(count).to(device)).cpu().numpy() for count in counts)
        return {**summarise(confusion), "predicted": confusion.sum(axis=0).tolist(), **calibration(bins)}
