"""A loss or gradient that is not finite is named, without a wait at every step, and never reaches a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import selftrain
from selftrain.batch import Labeled, Unlabeled
from selftrain.bench.cpu import PLAIN
from selftrain.engine.checkpoint import load_checkpoint
from selftrain.engine.finite import FiniteWatch, NotFinite
from selftrain.engine.loop import Loop
from selftrain.errors import DivergedError
from selftrain.methods.base import Losses
from selftrain.nn.average import Average

STEPS, BAD = 30, 17
"""steps of a run, and the one that goes wrong, counted from 0"""


def train(out: Path, settings: Any = (), resume: bool = False) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (3 * np.eye(8)[y] + rng.normal(size=(60, 8))).astype(np.float32)
    selftrain.train(
        (x, np.where(np.arange(60) < 12, y, -1)), out=out, method="fixmatch", backbone="features", steps=STEPS,
        quiet=True, resume=resume,
        settings={"train.batch": 4, "train.unlabeled_batch": 6, "train.eval_every": STEPS, "train.threads": 1,
                  "train.checkpoint_every": 10, **PLAIN, **dict(settings)},
    )  # fmt: skip


def break_losses(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let ``change`` have the terms of one step before the loop sees them."""
    whole = Loop._losses

    def losses(self: Loop, labeled: Labeled, unlabeled: Unlabeled, turn: str) -> Losses:
        found = whole(self, labeled, unlabeled, turn)
        return found._replace(terms=change(self, dict(found.terms))) if self.step == BAD else found

    monkeypatch.setattr(Loop, "_losses", losses)


def the_checkpoint_is_from_before(run: Path) -> None:
    state = load_checkpoint(run / "checkpoints")
    assert state is not None
    assert state["step"] == 10
    assert all(value.isfinite().all() for value in state["net"].values())
    assert not (run / "results.json").exists()


def test_a_term_is_named_with_its_step_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_losses(monkeypatch, lambda loop, terms: {**terms, "unlabeled": terms["unlabeled"] * float("nan")})
    with pytest.raises(DivergedError) as caught:
        train(tmp_path / "run")
    said = str(caught.value)
    assert "the loss term 'unlabeled' is not finite at step 18" in said
    assert "Images of that step: labeled: " in said
    assert " and 3 more" in said
    assert "is from before, step 10." in said
    the_checkpoint_is_from_before(tmp_path / "run")
    monkeypatch.undo()
    train(tmp_path / "whole")
    train(tmp_path / "run", resume=True)  # from the good checkpoint, to the same end
    one, other = (load_checkpoint(tmp_path / name / "checkpoints") for name in ("run", "whole"))
    assert one is not None
    assert other is not None
    assert all(torch.equal(value, other["net"][name]) for name, value in one["net"].items())


def test_a_gradient_is_named_although_its_loss_is_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(loop: Loop, terms: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weight = next(loop.net.h.parameters())
        return {**terms, "odd": torch.sqrt((0 * weight).sum())}  # 0, whose gradient is infinite

    break_losses(monkeypatch, change)
    with pytest.raises(DivergedError, match="the gradient is not finite at step 18"):
        train(tmp_path / "run")
    the_checkpoint_is_from_before(tmp_path / "run")


def test_weights_that_are_not_finite_never_replace_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where losses and gradients do not show it."""
    whole = Average.update

    def update(self: Average, source: Any, step: int) -> None:
        whole(self, source, step)
        if step == BAD:
            next(self.module.parameters()).data.view(-1)[0] = float("inf")

    monkeypatch.setattr(Average, "update", update)
    with pytest.raises(DivergedError, match=r"net\.parts\.average\..* is not finite after step 20"):
        train(tmp_path / "run", {"optim.ema": 0.9})
    the_checkpoint_is_from_before(tmp_path / "run")


def test_many_steps_are_read_at_once() -> None:
    weight = torch.ones(3, requires_grad=True)
    watch = FiniteWatch([weight])
    for step in range(5):
        weight.grad = torch.full((3,), float("inf") if step == 3 else 1.0)
        watch.note(step, {"labeled": torch.tensor(1.0), "worst": torch.tensor(float("nan") if step == 4 else 1e30)})
    assert watch.first() == NotFinite(3, "the gradient")
    assert watch.first() is None
    assert [steps for steps in range(1, 200) if watch.due(steps)] == [64, 128, 192]


@pytest.mark.parametrize("layer", [nn.Linear(100, 90), nn.Conv2d(8, 70, 3, padding=1)])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_in_a_large_gradient_is_seen(layer: nn.Linear | nn.Conv2d, number: float) -> None:
    """It is enough to look at a row and the bias, wherever in a batch the number comes from."""
    shape = (3, 100) if isinstance(layer, nn.Linear) else (3, 8, 4, 4)
    for wrong in (False, True):
        y = layer(torch.rand(shape))
        gradient = torch.ones_like(y)
        if wrong:
            gradient[1, -7].view(-1)[-1] = number
        layer.zero_grad()
        y.backward(gradient)
        watch = FiniteWatch(layer.parameters())
        watch.note(0, {})
        assert (watch.first() is not None) == wrong


def test_of_a_sharded_gradient_the_first_row_on_this_rank_is_looked_at(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from selftrain.engine.finite import _part

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        whole = torch.arange(12.0).reshape(4, 3)
        sharded = distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)])
        assert torch.equal(_part(sharded), whole[0])
        empty = distribute_tensor(whole[:0], init_device_mesh("cpu", (1,)), [Shard(0)])
        assert _part(empty).shape == (0,)
    finally:
        dist.destroy_process_group()
    assert torch.equal(_part(whole), whole[0])
    assert torch.equal(_part(torch.ones(2, 3, 3)), torch.ones(9))
    assert _part(torch.tensor(2.0)).shape == (1,)
