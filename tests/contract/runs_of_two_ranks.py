"""What each of two ranks does with whole runs, as ``torchrun -m selftrain train`` would. Run by ``test_runs.py``."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)

from selftrain import training  # noqa: E402
from selftrain.cli import app  # noqa: E402
from selftrain.data.stream import Stream  # noqa: E402
from selftrain.distributed import rank  # noqa: E402
from selftrain.engine.loop import Loop  # noqa: E402
from tests.contract.test_runs import WORDS  # noqa: E402


def selftrain(*words: str) -> str:
    """How the command line ends."""
    try:
        app([*WORDS, *words], standalone_mode=False)
    except (SystemExit, KeyboardInterrupt, Exception) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def stopped_by_a_signal(folder: Path) -> str:
    """One rank alone is told to end at step 3."""
    take_step = Loop.take_step

    def then_signal(loop: Loop, *batch: Any) -> None:
        take_step(loop, *batch)
        if loop.step == 3 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    Loop.take_step = then_signal  # type: ignore[method-assign]
    try:
        return selftrain("--out", str(folder))
    finally:
        Loop.take_step = take_step  # type: ignore[method-assign]


def fault_on_one_rank(folder: Path) -> str:
    """A picture that only one rank cannot read; its message must reach the user."""
    item = Stream.__getitem__

    def fail(stream: Stream, step: int) -> Any:
        if rank() == 1 and step == 2:
            raise training.UserError("c.jpg: cannot be read")
        return item(stream, step)

    Stream.__getitem__ = fail  # type: ignore[method-assign]
    return selftrain("--out", str(folder))


def main(folder: Path) -> None:
    found = {
        "whole": selftrain("--out", str(folder / "whole")),
        "again": selftrain("--out", str(folder / "whole")),
        "odd": selftrain("--out", str(folder / "odd"), "--set", "train.batch=17"),
        "stopped": stopped_by_a_signal(folder / "stopped"),
        "from_one": selftrain("--out", str(folder / "from_one"), "--resume"),
        "fsdp": selftrain("--out", str(folder / "fsdp"), "--set", "train.strategy=fsdp"),
    }
    (folder / f"found{rank()}.json").write_text(json.dumps(found))
    last = fault_on_one_rank(folder / "fault")
    (folder / f"fault{rank()}.txt").write_text(last)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
