"""Making a Fabric leaves the process as it was; the number of processes is checked."""

from __future__ import annotations

import logging
import os

import pytest

from selftrain.config.resolve import make_settings
from selftrain.engine import runtime
from selftrain.engine.distributed import Started
from selftrain.engine.runtime import make_fabric
from selftrain.errors import UserError


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_logging_and_environment_are_left_as_they_were(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("lightning_fabric")
    monkeypatch.setattr(logger, "level", level)
    environment = dict(os.environ)
    make_fabric(make_settings("scratch", {"train.accelerator": "cpu"}).train)
    assert logger.level == level
    assert dict(os.environ) == environment


@pytest.mark.parametrize("given", [None, "4"])
def test_lightning_accepts_srun_without_tasks_per_node(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_JOB_NAME", "training")
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    if given is not None:
        monkeypatch.setenv("SLURM_NTASKS_PER_NODE", given)
    runtime._slurm_environment(Started(ranks=8, nodes=2, rank=5, by="srun"))
    assert os.environ.get("SLURM_NTASKS_PER_NODE") == given


def test_an_accelerator_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UserError, match=r"^`train\.accelerator=cuda`: "):
        make_fabric(make_settings("scratch", {"train.accelerator": "cuda"}).train)
