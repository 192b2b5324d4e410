"""The training loop: one call of the objective a turn, and nothing that depends on the method's name.

Knows nothing of data files, run folders or consoles; what it needs is handed to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.engine.observers import Observer
from selftrain.engine.optim import lr_factor, set_lr
from selftrain.errors import UserError
from selftrain.methods.base import Losses, Method
from selftrain.network import Average, Network
from selftrain.settings import Settings


class Objective(nn.Module):
    """A method's objective over its network: the module that is wrapped for several devices, never the backbone."""

    def __init__(self, method: Method, net: Network):
        super().__init__()
        self.method, self.net = method, net

    def forward(self, labeled: Labeled, unlabeled: Unlabeled, turn: str) -> Losses:
        return self.method.objective(self.net, labeled, unlabeled, turn)


@dataclass
class Loop:
    """A run in memory. ``state_dict`` holds all of it, so that a killed run goes on as if nothing had happened."""

    fabric: Fabric
    settings: Settings
    method: Method
    net: Network
    optimizer: Any
    observers: Sequence[Observer]
    evaluate: Callable[[nn.Module], dict[str, Any]]
    on_row: Callable[[dict[str, Any]], None] = lambda row: None
    """called with each evaluation's row"""
    on_checkpoint: Callable[[dict[str, Any]], None] = lambda state: None
    on_progress: Callable[[int], None] = lambda step: None
    stopping: bool = False
    """set it to end the run after the current step, with a checkpoint"""
    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objective, self.optimizer = self.fabric.setup(Objective(self.method, self.net), self.optimizer)
        if self.settings.optim.ema and self.method.predictor(self.net) is self.net.classifier:
            average = Average(self.net.classifier, self.settings.optim.ema)
            self.net.parts["average"] = average.to(self.fabric.device)

    @property
    def predictor(self) -> nn.Module:
        """What is evaluated and saved."""
        parts = self.net.parts
        return parts["average"].module if "average" in parts else self.method.predictor(self.net)  # type: ignore[return-value]

    def run(self, batches: Iterator[tuple[Labeled, Unlabeled]]) -> None:
        """Train from the current step to the last."""
        train = self.settings.train
        eval_every = train.eval_every or max(1, train.steps // 10)
        checkpoint_every = train.checkpoint_every or eval_every
        started = time.monotonic() - self.seconds
        self.objective.train()
        for labeled, unlabeled in batches:
            self.take_step(labeled.to(self.fabric.device), unlabeled.to(self.fabric.device))
            self.on_progress(self.step)
            last = self.step == train.steps
            if self.step % eval_every == 0 or last:
                self.seconds = time.monotonic() - started
                self._row()
            if self.step % checkpoint_every == 0 or last or self.stopping:
                self.seconds = time.monotonic() - started
                self.on_checkpoint(self.state_dict())
            if self.stopping:
                break
        self.seconds = time.monotonic() - started

    def take_step(self, labeled: Labeled, unlabeled: Unlabeled) -> None:
        settings, net, t = self.settings, self.net, self.step
        seed_step(settings.seed, t, self.fabric.global_rank, self.fabric.device)
        set_lr(self.optimizer, lr_factor(settings.optim, t, settings.train.steps))
        for turn in self.method.turns:
            losses: Losses = self.objective(labeled, unlabeled, turn)
            self.fabric.backward(losses.total)
            if settings.optim.clip:
                self.fabric.clip_gradients(
                    self.objective, self.optimizer, max_norm=settings.optim.clip, error_if_nonfinite=False
                )
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        net.step += 1
        self.method.after_step(net, t)
        if "average" in net.parts:
            net.parts["average"].update(net.classifier, t)  # type: ignore[operator]
        for observer in self.observers:
            observer.on_step(losses, unlabeled)
        self.step += 1

    def _row(self) -> None:
        row: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 3)}
        row["lr"] = self.settings.optim.lr * lr_factor(self.settings.optim, self.step - 1, self.settings.train.steps)
        for observer in self.observers:
            row |= observer.read()
        if not math.isfinite(row.get("loss", 0.0)):
            raise UserError(
                f"the loss is not finite at step {self.step} ({row['loss']}): lower the learning rate "
                f"(--set optim.lr={self.settings.optim.lr / 3:.2g}) or clip gradients (--set optim.clip=5)"
                + (", or bound the worst case (--set method.ce_cap=20)." if "loss_worst" in row else ".")
            )
        row |= self.evaluate(self.predictor)
        self.rows.append(row)
        self.on_row(row)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "observers": [observer.state_dict() for observer in self.observers],
            "rows": self.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.seconds, self.rows = state["step"], state["seconds"], state["rows"]
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        for observer, saved in zip(self.observers, state["observers"], strict=True):
            observer.load_state_dict(saved)


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Dropout and its like depend on (seed, step, rank) alone: no generator state to save, none to lose."""
    mixed = ((seed * 1_000_003 + step) * 1_000_003 + rank) & 0x7FFF_FFFF_FFFF_FFFF
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)
