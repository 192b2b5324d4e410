"""The number of threads of a step follows from sizes and settings, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import selftrain
from selftrain.config.resolve import make_settings
from selftrain.engine.loop import Loop
from selftrain.engine.threads import SMALL, step_threads
from selftrain.methods import make_method
from selftrain.nn.layers import Classifier, Encoder, UnitFeatures
from selftrain.nn.network import Network, Task


def network(dim: int) -> Network:
    psi = Encoder(UnitFeatures(dim), mean=(0.0,), std=(1.0,), bottleneck=256)
    return Network(Classifier(psi, torch.nn.Linear(256, 10)), Task(10, 100, 10, (dim,)))


@pytest.mark.parametrize(
    ("dim", "regime", "method", "given", "threads"),
    [
        (384, "frozen", "dst(fixmatch)", {}, 1),
        (1280, "frozen", "dst(fixmatch)", {}, 1),
        (SMALL // (192 * 256) + 1, "frozen", "dst(fixmatch)", {}, 0),
        (1280, "frozen", "dst(fixmatch)", {"train.unlabeled_batch": 448}, 0),
        (384, "frozen", "dst(fixmatch)", {"train.threads": 2}, 0),
        (384, "finetune", "dst(fixmatch)", {}, 0),
        (384, "frozen", "diffusion", {}, 0),
    ],
)
def test_small_features_take_one_thread(
    dim: int, regime: str, method: str, given: dict[str, Any], threads: int
) -> None:
    settings = make_settings(regime, {"data.path": "x", **given})
    assert step_threads(settings, network(dim), make_method(method, regime)) == threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_a_run_is_the_same_with_the_default_and_with_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    take_step = Loop.take_step

    def watched(self: Loop, *batch: Any) -> None:
        seen.add(torch.get_num_threads())
        take_step(self, *batch)

    monkeypatch.setattr(Loop, "take_step", watched)
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    x = (rng.normal(size=(3, 300))[y] + 2 * rng.normal(size=(600, 300))).astype(np.float32)
    data = x, np.where(np.arange(600) < 12, y, -1)
    found = []
    for threads in (0, 1):
        out = tmp_path / str(threads)
        selftrain.train(data, steps=5, out=out, quiet=True, settings={"train.threads": threads})
        found.append({name: values.tobytes() for name, values in np.load(out / "outputs.npz").items()})
        assert torch.get_num_threads() == 2
    assert seen == {1}
    assert found[0] == found[1]
