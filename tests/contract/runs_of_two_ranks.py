"""The whole runs of each of two ranks, as ``torchrun -m selftrain train`` does them. ``test_runs.py`` reads them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.cli.app import app
from selftrain.data.views.stream import Stream
from selftrain.engine.loop import Loop
from selftrain.errors import UserError
from selftrain.nn.collectives import rank
from selftrain.runs import finish, guard
from selftrain.runs.guard import Verdict
from selftrain.runs.training import Training
from tests.contract.conftest import WORDS
from tests.runs.feature_piles import train_pile, uneven


def selftrain(*words: str) -> str:
    """Run the command line and return how it ends."""
    try:
        code = app([*WORDS, *words], standalone_mode=False)
    except (SystemExit, KeyboardInterrupt, Exception) as error:
        return f"{type(error).__name__}: {error}"
    return f"exit {code}" if code else "done"


def stopped_by_a_signal(folder: Path) -> str:
    """Send a signal to one rank only, at step 2."""
    take_step = Loop.take_step

    def then_signal(self: Loop, labeled: Labeled, unlabeled: Unlabeled) -> None:
        take_step(self, labeled, unlabeled)
        if self.step == 2 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    Loop.take_step = then_signal  # type: ignore[method-assign]
    try:
        return selftrain("--out", str(folder))
    finally:
        Loop.take_step = take_step  # type: ignore[method-assign]


def fault_on_one_rank(folder: Path) -> str:
    """Let one rank fail to read an image; its message must reach the user."""
    item = Stream.__getitem__

    def fail(stream: Stream, step: int) -> Any:
        if rank() == 1 and step == 2:
            raise UserError("c.jpg: cannot be read")
        return item(stream, step)

    Stream.__getitem__ = fail  # type: ignore[method-assign]
    return selftrain("--out", str(folder))


def guarded(folder: Path) -> str:
    """Train on features with the survey and the guard; each rank writes its own verdict."""

    def judge(training: Training, trained: nn.Module) -> Verdict | None:
        verdict = guard.judge(training, trained)
        assert verdict is not None
        (folder.parent / f"verdict{rank()}.json").write_text(json.dumps(verdict.record()))
        return verdict

    with patch.object(finish, "judge", judge):
        try:
            train_pile(folder, data=uneven(junk=100), settings={"train.accelerator": "cpu"})
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "done"


def whole_runs(folder: Path) -> None:
    found = {
        "guarded": guarded(folder / "guarded"),
        "whole": selftrain("--out", str(folder / "whole")),
        "again": selftrain("--out", str(folder / "whole")),
        "odd": selftrain("--out", str(folder / "odd"), "--set", "train.batch=17"),
        "stopped": stopped_by_a_signal(folder / "stopped"),
        "from_one": selftrain("--out", str(folder / "from_one"), "--resume"),
        "fsdp": selftrain("--out", str(folder / "fsdp"), "--set", "train.strategy=fsdp"),
    }
    (folder / f"runs{rank()}.json").write_text(json.dumps(found))
    last = fault_on_one_rank(folder / "fault")
    (folder / f"fault{rank()}.txt").write_text(last)
