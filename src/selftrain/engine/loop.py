"""The training loop: one call of the objective per turn, and nothing that depends on the method's name.

Knows nothing of data files, run folders or consoles; its caller passes in what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.config.settings import OptimSettings, Settings
from selftrain.engine.checkpoint import state_not_finite
from selftrain.engine.distributed import Vote
from selftrain.engine.finite import FiniteWatch
from selftrain.engine.observers import Observer
from selftrain.engine.optim import lr_factor, set_lr
from selftrain.engine.sharding import optimizer_sharded_like, sharded_like, sharded_names, whole
from selftrain.engine.threads import step_threads
from selftrain.errors import DivergedError
from selftrain.methods.base import Losses, Method
from selftrain.nn.average import Average
from selftrain.nn.collectives import average_in_place
from selftrain.nn.contexts import using_threads
from selftrain.nn.network import Network
from selftrain.nn.norms import SharedBatchNorm, running_statistics


class Objective(nn.Module):
    """A method's objective with its network: the module that DDP wraps, so that the backbone stays unwrapped."""

    def __init__(self, method: Method, net: Network):
        super().__init__()
        self.method, self.net = method, net
        # DDP reads this attribute and leaves these parameters to FSDP.
        self._ddp_params_and_buffers_to_ignore: Any = sharded_names(self)

    def forward(self, labeled: Labeled, unlabeled: Unlabeled, turn: str) -> Losses:
        return self.method.objective(self.net, labeled, unlabeled, turn)


@dataclass
class Loop:
    """A run in memory; call ``prepare`` once before anything else.

    ``state_dict`` holds all of the run, so that a killed run resumes as if it had not been interrupted.
    """

    fabric: Fabric
    settings: Settings
    method: Method
    net: Network
    optimizers: Sequence[Any]
    observers: Sequence[Observer]
    evaluate: Callable[[nn.Module], dict[str, Any]]
    pool: Callable[[int], Iterable[Unlabeled]] = lambda t: ()
    """returns the unlabeled set in order, batch by batch, for methods that survey it before step t"""
    on_row: Callable[[dict[str, Any]], None] = lambda row: None
    """called with the row of each evaluation"""
    on_checkpoint: Callable[[dict[str, Any]], None] = lambda state: None
    on_progress: Callable[[int], None] = lambda step: None
    about_step: Callable[[int], str] = lambda step: ""
    """returns a sentence about the images of a step, counted from 0, and about what was saved before it"""
    stopping: bool = False
    """set it to write a checkpoint and stop after the current step"""
    step: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    objective: nn.Module = field(init=False)
    _watch: FiniteWatch = field(init=False)
    _plain: bool = field(init=False)
    _source: nn.Module = field(init=False)
    _shares_norm: bool = field(init=False)

    def prepare(self) -> None:
        """Move the network and the optimisers to the device, and add the weight average to the network."""
        self.objective, *self.optimizers = self.fabric.setup(Objective(self.method, self.net), *self.optimizers)
        self._watch = FiniteWatch(p for o in self.optimizers for group in o.param_groups for p in group["params"])
        # One process at full precision needs none of what Fabric adds to a step, which costs half a millisecond.
        self._plain = self.fabric.world_size == 1 and self.settings.train.precision == "32"
        self._source = self.method.predictor(self.net)
        add_average(self.net, self.method, self.settings.optim)
        if self.method.rounds > 1:
            self.net.remember()
        self._shares_norm = self.fabric.world_size > 1 and self.settings.network.sync_bn

    @property
    def predictor(self) -> nn.Module:
        """The module that is evaluated and saved."""
        return self.net.part("average", Average).module if "average" in self.net.parts else self._source

    @property
    def steps(self) -> int:
        """The number of steps of all rounds; a method that is fitted takes one."""
        return 1 if self.method.fitted else self.settings.train.steps * self.method.rounds

    def run(self, batches: Iterator[tuple[Labeled, Unlabeled]]) -> None:
        """Train from the current step to the last."""
        with using_threads(step_threads(self.settings, self.net, self.method)):
            self._run(batches)

    def _run(self, batches: Iterator[tuple[Labeled, Unlabeled]]) -> None:
        train = self.settings.train
        eval_every = train.eval_every or max(1, self.steps // 10)
        checkpoint_every = train.checkpoint_every or eval_every
        started = time.monotonic() - self.seconds
        vote = Vote(self.fabric.device)
        self.objective.train()
        for labeled, unlabeled in batches:
            self.take_step(labeled.to(self.fabric.device), unlabeled.to(self.fabric.device))
            self.on_progress(self.step)
            last, stopping = self.step == self.steps, vote.any(self.stopping)
            evaluating = self.step % eval_every == 0 or last
            saving = self.step % checkpoint_every == 0 or last or stopping
            if evaluating or saving:
                self._check_steps()
            if evaluating:
                self.seconds = time.monotonic() - started
                self._evaluate()
            if saving:
                self.seconds = time.monotonic() - started
                self.on_checkpoint(self._checked(self.state_dict()))
            if stopping:
                break
        self.seconds = time.monotonic() - started

    def take_step(self, labeled: Labeled, unlabeled: Unlabeled) -> None:
        """Train on one batch: survey or restart when due, then each turn's loss, backward pass and update."""
        if self.method.fitted:
            self._fit(labeled, unlabeled)
            return
        settings, net, method, steps = self.settings, self.net, self.method, self.settings.train.steps
        round_, t = divmod(self.step, steps)
        seed_step(settings.seed, self.step, self.fabric.global_rank, self.fabric.device)
        if method.survey_due(self.step, steps):
            with self.fabric.autocast():
                method.survey(net, self.predictor, (u.to(self.fabric.device) for u in self.pool(self.step)))
        if round_ and t == 0:
            net.restart(method.lasting)
            for optimizer in self.optimizers:
                optimizer.optimizer.state.clear()
        set_lr(self.optimizers, lr_factor(settings.optim, t, steps))
        terms: dict[str, Tensor] = {}
        for turn in method.turns:
            with SharedBatchNorm() if self._shares_norm else nullcontext():
                losses = self._losses(labeled, unlabeled, turn)
            terms |= losses.terms
            if self._plain:
                losses.backward()
            else:
                self.fabric.backward(losses.total)
            self._watch.note(self.step, losses.terms, turn if len(method.turns) > 1 else "")
            for optimizer in self.optimizers:
                if settings.optim.clip:
                    self.fabric.clip_gradients(
                        self.objective, optimizer, max_norm=settings.optim.clip, error_if_nonfinite=False
                    )
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        average_in_place(running_statistics(net))
        net.advance()
        method.after_step(net, t)
        if "average" in net.parts:
            net.part("average", Average).update(self._source, t)
        for observer in self.observers:
            observer.on_step(losses._replace(terms=terms), unlabeled)
        self.step += 1
        if self._watch.due(self.step):
            self._check_steps()

    def _losses(self, labeled: Labeled, unlabeled: Unlabeled, turn: str) -> Losses:
        if self._plain:
            return self.method.objective(self.net, labeled, unlabeled, turn)
        losses: Losses = self.objective(labeled, unlabeled, turn)
        return losses

    def _fit(self, labeled: Labeled, unlabeled: Unlabeled) -> None:
        """Take the only step of a method that is fitted: the batch holds all images."""
        seed_step(self.settings.seed, self.step, 0, self.fabric.device)
        pseudo = self.method.fit(self.net, labeled, unlabeled)
        self.net.advance()
        for observer in self.observers:
            observer.on_step(Losses({}, pseudo), unlabeled)
        self.step += 1

    def _evaluate(self) -> None:
        """Add a row with what the observers saw and how the predictor scores."""
        row: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 3)}
        row["lr"] = (
            None
            if self.method.fitted
            else self.settings.optim.lr
            * lr_factor(self.settings.optim, (self.step - 1) % self.settings.train.steps, self.settings.train.steps)
        )
        for observer in self.observers:
            row |= observer.read()
        row |= self.evaluate(self.predictor)
        self.rows.append(row)
        self.on_row(row)

    def _check_steps(self) -> None:
        """Raise a DivergedError if a loss or gradient since the last call was not finite; every rank must call it."""
        if found := self._watch.first():
            raise self._diverged(f"{found.what} is not finite at step {found.step + 1}", found.step)

    def _checked(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state that is worth saving, or raise a DivergedError: a good one must not be replaced by another."""
        if name := state_not_finite({part: state[part] for part in ("net", "optimizers")}):
            raise self._diverged(f"{name} is not finite after step {self.step}", self.step - 1)
        return state

    def _diverged(self, what: str, step: int) -> DivergedError:
        capped = hasattr(self.method, "ce_cap")
        return DivergedError(
            f"{what}: lower the learning rate (`optim.lr={self.settings.optim.lr / 3:.2g}`) or clip gradients "
            f"(`optim.clip=5`)"
            + (", or bound the worst case (`method.ce_cap=20`)." if capped else ".")
            + self.about_step(step)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, with sharded tensors gathered; every rank must call it."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "net": whole(self.net.state_dict()),
            "optimizers": [whole(optimizer.state_dict()) for optimizer in self.optimizers],
            "observers": [observer.state_dict() for observer in self.observers],
            "rows": self.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.seconds, self.rows = state["step"], state["seconds"], state["rows"]
        self.net.load_state_dict(sharded_like(state["net"], self.net.state_dict()))
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(optimizer_sharded_like(saved, optimizer))
        for observer, saved in zip(self.observers, state["observers"], strict=True):
            observer.load_state_dict(saved)


def add_average(net: Network, method: Method, optim: OptimSettings) -> None:
    """Add a weight average of the predictor to the network if the settings ask for one and it has none yet."""
    if optim.ema and not method.averaged and "average" not in net.parts:
        net.parts["average"] = Average(method.predictor(net), optim.ema, optim.ema_buffers).to(net.step.device)


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch from (seed, step, rank), so that dropout and the like need no generator state in a checkpoint."""
    mixed = ((seed * 1_000_003 + step) * 1_000_003 + rank) & 0x7FFF_FFFF_FFFF_FFFF
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)
