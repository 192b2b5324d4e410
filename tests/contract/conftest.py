"""One start of two ranks for all tests that read their results: importing torch in two processes is slow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from selftrain.cli.app import app
from selftrain.engine.loop import Loop
from selftrain.methods import make_method
from tests.tiny import AVERAGED, SAME_ON_ANY_RANKS, digits_loop, go_on

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
WORDS = (
    "train", "digits", "--labels-per-class", "4", "--method", "dst(fixmatch(tau=0.2), dropout=0.0)", "--steps", "6",
    "--set", "train.accelerator=cpu", "--set", "train.batch=16", "--set", "train.unlabeled_batch=16",
    "--set", "optim.lr=0.005", "--set", "train.eval_every=3", "--set", "train.checkpoint_every=1",
)  # fmt: skip


def run(*words: str) -> None:
    app([*WORDS, "--quiet", *words], standalone_mode=False)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of two ranks, a run on one rank, and half of another such run."""
    folder = tmp_path_factory.mktemp("ranks")
    run("--out", str(folder / "one"))
    _half_a_run(folder / "from_one")
    loop, stream, *_ = digits_loop(make_method(SAME_ON_ANY_RANKS[3]), steps=12, **{"optim.lr": 0.01, **AVERAGED})
    go_on(loop, stream, 5)
    torch.save(loop.state_dict(), folder / "one_rank.pt")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m",
         "tests.contract.two_ranks", str(folder)],
        cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (folder / "fault1.txt").exists(), done.stderr[-3000:]
    return folder


def _half_a_run(to: Path) -> None:
    """Train on one rank and stop at step 3."""
    take_step = Loop.take_step

    def stop(loop: Loop, *batch: Any) -> None:
        take_step(loop, *batch)
        loop.stopping = loop.step == 3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "take_step", stop)
        run("--out", str(to))
    assert not (to / "results.json").exists()
