"""Benches and extraction on Ray: the same table and features as without it, even if a worker is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from selftrain.bench.cells import attempt, cells_of
from selftrain.bench.executors.ray import RayCluster
from selftrain.bench.grid import run_grid
from selftrain.bench.spec import Bench, Row
from selftrain.bench.table import markdown
from selftrain.engine.ray_cluster import check_alive
from selftrain.errors import UserError
from selftrain.runs import ray_extraction
from selftrain.runs.embed import embed
from tests.folders import layout_2
from tests.processes import command_of, descendants, wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
BENCH = Bench(
    "a test", ("digits",), (Row("supervised"), Row("dst(fixmatch)")),
    {
        "regime": "scratch", "data.labels_per_class": 2, "train.steps": 100, "train.batch": 4,
        "train.unlabeled_batch": 4, "train.checkpoint_every": 5, "train.accelerator": "cpu",
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 -- otherwise every other process has priority
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about Ray's future defaults and open files
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_the_same_table_although_a_worker_is_killed(tmp_path: Path) -> None:
    cells = cells_of(BENCH, seeds=1)
    here = {cell: attempt(cell, None, tmp_path / "here").results for cell in cells}
    out = tmp_path / "there"
    killed: list[int] = []

    def kill() -> None:
        wait_for("the first checkpoint", lambda: any(out.rglob("last.json")))
        killed.extend(pid for pid in descendants(os.getpid()) if command_of(pid).startswith("ray::_run"))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    there, failed = run_grid(cells, None, out, RayCluster())
    killer.join(600)
    assert killed, "no worker was killed"
    assert not failed
    assert markdown(BENCH, there) == markdown(BENCH, {cell: run for cell, run in here.items() if run})
    assert all(run and there[cell]["per_class"] == run["per_class"] for cell, run in here.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_an_error_that_the_user_has_to_fix_is_not_retried(tmp_path: Path) -> None:
    bench = Bench("", ("digits",), (Row("supervised", {"data.test": "/nowhere"}),), BENCH.settings)
    done, failed = run_grid(cells_of(bench, seeds=1), None, tmp_path, RayCluster())
    assert not done
    assert "/nowhere" in next(iter(failed.values()))
    with pytest.raises(UserError, match=r"`gpus_per_run=0\.5`: the cluster has 0 GPUs"):
        run_grid(cells_of(BENCH, seeds=1), None, tmp_path, RayCluster(gpus_per_run=0.5))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_the_same_features_although_a_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_extraction, "CHUNK", 16)
    photos = layout_2(tmp_path / "photos", per_class=40)
    here, there = tmp_path / "here.npz", tmp_path / "there.npz"
    cache = tmp_path / "cache"
    embed(photos, here, size=96, settings={"data.cache": str(tmp_path / "other")})
    killed: list[int] = []

    def kill() -> None:
        wait_for("the first features", lambda: any(cache.rglob("*.rows")))
        killed.extend(pid for pid in descendants(os.getpid()) if command_of(pid).startswith("ray::_extract"))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    embed(photos, there, size=96, settings={"data.cache": str(cache), "data.extract_on": "ray"})
    killer.join(600)
    assert killed, "no worker was killed"
    with np.load(here) as a, np.load(there) as b:
        assert a["names"].tolist() == b["names"].tolist()
        assert a["features"].tobytes() == b["features"].tobytes()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no.such.host.invalid:6379"])
def test_a_dead_address_is_an_error_within_seconds(address: str) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=f"`ray_address={address}`: nothing answers"):
        check_alive(address)
    assert time.monotonic() - started < 20
    check_alive("auto")
    check_alive(None)
    with pytest.raises(UserError, match="expected HOST:PORT"):
        check_alive("one:two:three")


def test_the_address_is_checked_before_ray_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    with pytest.raises(UserError, match="nothing answers"):
        run_grid(cells_of(BENCH, seeds=1), None, tmp_path, RayCluster("127.0.0.1:1"))


def test_ray_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'pip install "selftrain\[ray\]"'):
        run_grid(cells_of(BENCH, seeds=1), None, tmp_path, RayCluster())
