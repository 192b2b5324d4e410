"""Run by ``test_observers.py`` on each of two ranks: observers see half of every batch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from selftrain.batch import Unlabeled
from selftrain.engine.observers import make_observers
from selftrain.methods import Losses
from selftrain.methods.functional import PseudoLabels


def watch(mine: slice, file: Path) -> list[dict[str, Any]]:
    """Return two readings after 12 steps each; halfway, the first rank saves the state and all ranks load it."""
    rng = np.random.default_rng(0)
    truth = torch.from_numpy(rng.integers(-1, 4, 50))
    watching = make_observers(truth, 4, torch.device("cpu"))
    rows = []
    for _ in range(2):
        for step in range(12):
            index, y = torch.from_numpy(rng.permutation(50)[:10])[mine], torch.from_numpy(rng.integers(-1, 4, 10))[mine]
            keep = torch.from_numpy(rng.random(10))[mine].gt(0.5) & (y >= 0)
            logits = torch.from_numpy(rng.normal(size=(2, 10, 4)))[:, mine].float()
            notes = {"h_worst": logits[0], "h_pseudo": logits[1], "L_worst": torch.tensor(0.3)}
            made = Losses({"labeled": y.float().mean()}, PseudoLabels(y, keep), notes)
            for observer in watching:
                observer.on_step(made, Unlabeled(index))
            if step == 6:
                states = [observer.state_dict() for observer in watching]  # on all ranks
                if mine.start in (None, 0):
                    torch.save(states, file)
                if distributed.is_initialized():
                    distributed.barrier()
                watching = make_observers(truth, 4, torch.device("cpu"))
                for observer, state in zip(watching, torch.load(file, weights_only=True), strict=True):
                    observer.load_state_dict(state)
        row: dict[str, Any] = {}
        for observer in watching:
            row |= observer.read()
        rows.append(row)
    return rows


def main(out: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    rows = watch(slice(5 * rank, 5 * rank + 5), out.with_suffix(".pt"))
    if rank == 0:
        out.write_text(json.dumps(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # so that neither rank waits for the other's clean-up
