"""What a bench would cost: every cell with its settings, and an estimate of memory and hours, without training.

Knows nothing of results. Operations of the backbone are counted on a device without memory (``meta``), as are the bytes
that a training step keeps for the backward pass. How many images a step passes through the backbone is counted in a
step on handwritten digits. Heads and augmentation are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from selftrain.bench.cells import Cell
from selftrain.config.settings import Settings
from selftrain.data.source import Source
from selftrain.methods import Method, make_method, spell_method
from selftrain.nn.backbones import build_backbone
from selftrain.runs.digits_loop import SmallBackbone, digits_run
from selftrain.runs.resolve import resolve

OPTIMISER_BYTES = 16
"""per weight: the weight, its gradient, its momentum and its average, 4 bytes each"""
SMALL = 8
"""labeled images of a counted step"""
NOT_RUN = "An estimate from counted operations. None of these runs has been made on a GPU by us."


@dataclass(frozen=True)
class Cost:
    """Cost of a backbone per image."""

    flops: float
    """of a forward pass"""
    kept: float
    """bytes that a forward pass keeps for the backward pass"""
    weights: int


@cache
def cost_of(backbone: str, size: int, channels: int) -> Cost:
    """Count the operations and the kept bytes of one image."""
    model = build_backbone(backbone, weights="none", size=size, channels=channels).to("meta")
    x = torch.empty(2, channels, size, size, device="meta")
    own = {id(p) for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        if id(value) not in own:
            storage = value.untyped_storage()
            kept[storage._cdata] = storage.nbytes()  # two values may be views of the same memory
        return value

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        counter = FlopCounterMode(display=False)
        with counter:
            model(x)
    weights = sum(p.numel() for p in model.parameters())
    return Cost(counter.get_total_flops() / 2, sum(kept.values()) / 2, weights)


@dataclass(frozen=True)
class Passes:
    """Passes through the backbone in a step per labeled and per unlabeled image, with gradient and free of it."""

    labeled: float
    unlabeled: float
    labeled_free: float
    unlabeled_free: float


@cache
def passes_of(method: str) -> Passes:
    """Count the images that pass the backbone in a step on digits, for two sizes of the unlabeled batch."""
    (grad, free), (more_grad, more_free) = (_images_in_a_step(make_method(method), n) for n in (SMALL, 2 * SMALL))
    u, u_free = (more_grad - grad) / SMALL, (more_free - free) / SMALL
    return Passes(grad / SMALL - u, u, free / SMALL - u_free, u_free)


def _images_in_a_step(method: Method, unlabeled: int) -> tuple[int, int]:
    run = digits_run(method, batch=SMALL, unlabeled_batch=unlabeled)
    seen = [0, 0]

    def count(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if isinstance(module, SmallBackbone):
            seen[0 if torch.is_grad_enabled() else 1] += len(args[0])

    handle = nn.modules.module.register_module_forward_hook(count)
    try:
        run.go_on(1)
    finally:
        handle.remove()
    return seen[0], seen[1]


@dataclass(frozen=True)
class Planned:
    """A cell as it would be run."""

    cell: Cell
    settings: Settings
    method: Method
    size: int
    cost: Cost | None
    """None in the frozen regime, where the backbone runs once per image"""

    @property
    def images(self) -> tuple[float, float]:
        """Images that pass the backbone in a step, with gradient and without."""
        passes, train = passes_of(spell_method(self.method)), self.settings.train
        with_gradient = passes.labeled * train.batch + passes.unlabeled * train.unlabeled_batch
        return with_gradient, passes.labeled_free * train.batch + passes.unlabeled_free * train.unlabeled_batch

    @property
    def step_flops(self) -> float:
        """Operations of a step: an image with gradient costs three forward passes, another one."""
        with_gradient, free = self.images
        return 0.0 if self.cost is None else (3 * with_gradient + free) * self.cost.flops

    @property
    def memory(self) -> float:
        """Bytes of weights, optimiser and kept activations of a step."""
        if self.cost is None:
            return 0.0
        half = 0.5 if "16" in self.settings.train.precision else 1.0
        kept = half * self.cost.kept * self.images[0] / len(self.method.turns)
        return OPTIMISER_BYTES * self.cost.weights + kept

    def hours(self, tflops: float) -> float:
        """Hours on a GPU that sustains so many TFLOP/s."""
        return self.step_flops * self.settings.train.steps * self.method.rounds / (tflops * 1e12 * 3600)


def plan(cell: Cell) -> Planned:
    """Return a cell with its settings resolved as its run would resolve them."""
    given: dict[str, Any] = {"data.path": cell.dataset, "method": cell.row.method, "seed": cell.seed, **cell.settings}
    settings, method = resolve(given)
    spec = Source.from_settings(cell.dataset, root=None, labels=None).spec
    size = settings.data.size or (spec.size if spec is not None and settings.regime == "scratch" else 224)
    channels = 3
    cost = None if settings.regime == "frozen" else cost_of(settings.network.backbone, size, channels)
    return Planned(cell, settings, method, size, cost)


def describe(cells: Sequence[Cell], tflops: float) -> str:
    """Return a Markdown table of all cells and the sums."""
    head = ("cell", "regime", "backbone", "px", "steps", "batch", "lr", "decay", "TFLOP/step", "GB", "GPU-hours")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    total = 0.0
    for planned in map(plan, cells):
        settings, train = planned.settings, planned.settings.train
        hours = planned.hours(tflops)
        total += hours
        cost = ("-", "-", "minutes") if planned.cost is None else (
            f"{planned.step_flops / 1e12:.2f}", f"{planned.memory / 1e9:.1f}", f"{hours:.1f}",
        )  # fmt: skip
        words = (
            str(planned.cell), settings.regime, settings.network.backbone, str(planned.size),
            f"{train.steps * planned.method.rounds:,}", f"{train.batch} + {train.unlabeled_batch}",
            f"{settings.optim.lr:g}", f"{settings.optim.weight_decay:g}", *cost,
        )  # fmt: skip
        lines.append(f"| {' | '.join(words)} |")
    lines.append(f"\n{len(cells)} runs, about {total:,.0f} GPU-hours at {tflops:g} TFLOP/s sustained. {NOT_RUN}")
    return "\n".join(lines)
