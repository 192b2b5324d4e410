"""An endless stream of paired batches: the batches of a step are a pure function of the seed and the step.

Knows nothing of how views are made or how a method uses them. Because a batch depends on its step alone, the position
in the stream *is* the step: a run resumes exactly, with any number of loader workers.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.data.views.image_views import ViewMaker
from selftrain.errors import UserError

LABELED, UNLABELED, POOL = 1, 2, 3  # separate random sequences of one seed


class Shuffle:
    """Rows 0..n-1 in endless reshuffled passes, split into batches; a batch may span several passes."""

    def __init__(self, n: int, batch: int, seed: int, tag: int):
        self.n, self.batch, self.seed, self.tag = n, batch, seed, tag
        self.length = n
        """rows of a pass"""
        self._last: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def rows(self, step: int) -> np.ndarray:
        first, last = step * self.batch, (step + 1) * self.batch
        parts = []
        while first < last:
            number, offset = divmod(first, self.length)
            part = self._pass(number)[offset : offset + last - first]
            parts.append(part)
            first += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _pass(self, number: int) -> np.ndarray:
        if self._last[0] != number:
            self._last = (number, self._draw(np.random.default_rng([self.seed, self.tag, number])))
        return self._last[1]

    def _draw(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(self.n)


class WeightedShuffle(Shuffle):
    """Rows in endless passes, each drawn with a probability proportional to its weight; a row of weight 0 never is.

    The length of a pass is the sum of the weights, rounded down. It is the same for all passes, so that the pass of any
    step is known without drawing the earlier ones. A pass takes the rows in a random order and picks some by systematic
    sampling: each row covers its weight on a line, and the row below each of ``length`` equally distant points, with a
    random start, is drawn. Probabilities are thus exactly weight * length / sum of the weights. A pass is at least as
    long as a batch, so that a step draws at most two; only if that exceeds the sum is a row drawn twice in a pass.
    """

    def __init__(self, weights: np.ndarray, batch: int, seed: int, tag: int):
        if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or (weights > 1).any():
            raise ValueError("expected one weight from 0 to 1 for each unlabeled image")
        if not (weights > 0).any():
            raise ValueError("at least one unlabeled image needs a positive weight")
        super().__init__(len(weights), batch, seed, tag)
        self.positive = np.flatnonzero(weights > 0)
        self.weights = weights[self.positive].astype(np.float64)
        self.length = max(int(self.weights.sum() + 1e-6), batch)

    def _draw(self, rng: np.random.Generator) -> np.ndarray:
        order = rng.permutation(len(self.positive))
        covered = np.cumsum(self.weights[order])
        points = (np.arange(self.length) + rng.random()) * (covered[-1] / self.length)
        places = np.searchsorted(covered, points, side="right")
        drawn: np.ndarray = self.positive[order[np.minimum(places, len(order) - 1)]]
        return drawn


class Stream(Dataset[tuple[Labeled, Unlabeled]]):
    """``stream[step]`` is the pair of batches of that step (this rank's share of it)."""

    def __init__(
        self,
        labeled: ViewMaker,
        labels: np.ndarray,
        unlabeled: ViewMaker,
        views: Views,
        *,
        batch: int,
        unlabeled_batch: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        weights: np.ndarray | None = None,
    ):
        """``weights`` (0 to 1): how often each unlabeled image is drawn; on average its loss then has that weight."""
        if weights is not None and len(weights) != len(unlabeled):
            raise ValueError(f"{len(weights)} weights for {len(unlabeled)} unlabeled images")
        self.labeled, self.labels, self.unlabeled, self.views = labeled, labels, unlabeled, views
        self.seed, self.rank, self.ranks = seed, rank, ranks
        self.shuffles = (
            Shuffle(len(labeled), batch, seed, LABELED),
            Shuffle(max(len(unlabeled), 1), unlabeled_batch, seed, UNLABELED)
            if weights is None or (weights == 1).all()
            else WeightedShuffle(weights, unlabeled_batch, seed, UNLABELED),
        )
        self.shares = tuple(slice(rank * n // ranks, (rank + 1) * n // ranks) for n in (batch, unlabeled_batch))

    def __getitem__(self, step: int) -> tuple[Labeled, Unlabeled]:
        mine_l, mine_u = self.shares
        rows_l = self.shuffles[0].rows(step)
        views_l = self.labeled.make(rows_l, self.views.labeled, self._rng(LABELED, step), mine_l)
        labeled = Labeled(torch.from_numpy(self.labels[rows_l[mine_l]]), **views_l)
        if not self.views.unlabeled:
            return labeled, Unlabeled(torch.empty(0, dtype=torch.int64))
        rows_u = self.shuffles[1].rows(step)
        views_u = self.unlabeled.make(rows_u, self.views.unlabeled, self._rng(UNLABELED, step), mine_u)
        return labeled, Unlabeled(torch.from_numpy(rows_u[mine_u]), **views_u)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the labeled and of the unlabeled set that all ranks together see at a step."""
        labeled, unlabeled = (shuffle.rows(step) for shuffle in self.shuffles)
        return labeled, unlabeled if self.views.unlabeled else unlabeled[:0]

    def pool(self, step: int, batch: int = 256) -> Iterator[Unlabeled]:
        """Yield a weak view of every unlabeled sample (of this rank's share of them), in order."""
        rng = np.random.default_rng([self.seed, POOL, 1 << 40, step, 0])
        rows = np.arange(len(self.unlabeled))
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            mine = slice(self.rank * len(part) // self.ranks, (self.rank + 1) * len(part) // self.ranks)
            views = self.unlabeled.make(part, ("weak",), rng, mine)
            if len(part[mine]):
                yield Unlabeled(torch.from_numpy(part[mine]), **views)

    def _rng(self, tag: int, step: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, tag, 1 << 40, step])


class _ErrorsAsValues(Dataset[tuple[Labeled, Unlabeled] | UserError]):
    """Returns a ``UserError`` as a value: an exception raised in a worker process loses its type."""

    def __init__(self, stream: Stream):
        self.stream = stream

    def __getitem__(self, step: int) -> tuple[Labeled, Unlabeled] | UserError:
        try:
            return self.stream[step]
        except UserError as error:
            return error


def _leave_signals_to_the_main_process(worker: int) -> None:
    """Ignore signals: Ctrl-C, schedulers and ``timeout`` signal the whole group, but the main process ends the run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def batches(
    stream: Stream, start: int, stop: int, *, workers: int = 0, pin: bool = False
) -> Iterator[tuple[Labeled, Unlabeled]]:
    """Yield the batches of steps start..stop-1 in order, prepared ahead by ``workers`` processes."""
    if not workers and not pin:
        yield from (stream[step] for step in range(start, stop))
        return
    loader = DataLoader(
        _ErrorsAsValues(stream),
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        pin_memory=pin,
        generator=torch.Generator(),  # else the loader uses the global generator, and a resumed run differs
        prefetch_factor=2 if workers else None,
        worker_init_fn=_leave_signals_to_the_main_process,
    )
    for item in loader:
        if isinstance(item, UserError):
            raise item
        yield item
