"""Benches and extraction on Ray: the same table and features as without it, even if a worker is killed."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tarfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import selftrain
from selftrain.bench.cells import attempt, cells_of
from selftrain.bench.executors.ray import RayCluster
from selftrain.bench.grid import run_grid
from selftrain.bench.spec import Bench, Row
from selftrain.bench.table import markdown
from selftrain.console import Reporter
from selftrain.data.features.collection import Collection
from selftrain.data.images import EncodedImages, FileImages, JoinedImages
from selftrain.data.images.content import SETTLED
from selftrain.data.sources.shards import Index, ShardImages
from selftrain.engine.ray_cluster import check_alive
from selftrain.engine.ray_tasks import spread
from selftrain.errors import UserError
from selftrain.runs import ray_extraction
from selftrain.runs.embed import embed
from tests.folders import CLASSES, fill, layout_2
from tests.processes import command_of, descendants, started, wait_for

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
    monkeypatch.setattr(ray_extraction, "CHUNK", 64)
    photos = layout_2(tmp_path / "photos", per_class=100)
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
    _assert_same(here, there)
    with np.load(there) as file:
        assert _stored(cache) == len(np.unique(file["features"], axis=0))  # nothing was stored twice


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_a_killed_driver_resumes_with_all_that_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = layout_2(tmp_path / "photos", per_class=100)
    here, there, cache = tmp_path / "here.npz", tmp_path / "there.npz", tmp_path / "cache"
    words = ["embed", str(photos), "-o", str(there), "--size", "192", "--engine", "ray"]
    words += ["--set", f"data.cache={cache}", "--set", "data.engine=torch"]
    with started([sys.executable, "-m", "selftrain", *words]) as driver:
        wait_for("the first features", lambda: _stored(cache) >= 32, of=driver)
        its_own = descendants(driver.pid)
        driver.kill()
        driver.wait(60)
    wait_for("the end of its workers", lambda: not any(command_of(pid).startswith("ray::_extract") for pid in its_own))
    kept = _stored(cache)
    assert not there.exists()
    lines: list[str] = []
    reporter = Reporter(quiet=True)
    monkeypatch.setattr(reporter, "say", lambda text, **_: lines.append(text))
    embed(photos, there, size=192, settings={"data.cache": str(cache), "data.extract_on": "ray"}, reporter=reporter)
    embed(photos, here, size=192, settings={"data.cache": str(tmp_path / "other")})
    _assert_same(here, there)
    with np.load(there) as file:
        n = len(np.unique(file["features"], axis=0))
    assert 32 <= kept < n, "the driver was killed too late"
    assert any("are already in" in line for line in lines), lines
    assert _stored(cache) == n


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", ["folder", "tar", "files", "parquet", "url"])
def test_the_cluster_reads_what_one_process_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(ray_extraction, "CHUNK", 16)
    folder = layout_2(tmp_path / "photos", per_class=8) / "train"
    (folder / "ant" / "broken.png").write_bytes(b"not an image")
    files = sorted(path for path in folder.rglob("*.png"))
    images: object = folder
    if kind == "tar":
        for k in range(2):
            with tarfile.open(tmp_path / f"{k}.tar", "w") as tar:
                for path in files[k::2]:
                    tar.add(path, path.name)
        images = str(tmp_path / "{0..1}.tar")
    elif kind == "files":
        images = [str(path) for path in files]
    elif kind == "parquet":
        tables = pytest.importorskip("pyarrow.parquet")
        values = {"name": [path.name for path in files], "image": [path.read_bytes() for path in files]}
        tables.write_table(pytest.importorskip("pyarrow").table(values), tmp_path / "new.parquet", row_group_size=10)
        images = tmp_path / "new.parquet"
    elif kind == "url":
        pytest.importorskip("fsspec")
        images = f"file://{folder}"
    time.sleep(SETTLED + 0.1)  # else this process reads the files
    there, here = tmp_path / "there.npz", tmp_path / "here.npz"
    settings = {"data.cache": str(tmp_path / "cache")}
    read: list[str] = []
    with monkeypatch.context() as patched:
        for name in ("check", "content"):
            whole = getattr(EncodedImages, name)

            def recorded(*args: Any, of: Any = whole, name: str = name) -> Any:
                read.append(name)
                return of(*args)

            patched.setattr(EncodedImages, name, recorded)
        done = embed(images, there, size=32, settings={**settings, "data.extract_on": "ray"})
    assert read == ["check"]  # of the broken one, to say what is wrong with it
    assert len(done.unreadable) == 1
    assert done.unreadable[0].path.endswith(("broken.png", f"row {files.index(folder / 'ant' / 'broken.png'):07d}"))
    embed(images, here, size=32, settings={"data.cache": str(tmp_path / "other")})
    _assert_same(here, there)


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")
def test_the_same_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_extraction, "CHUNK", 16)
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    data = layout_2(tmp_path / "photos")
    run = selftrain.train(
        data, out=tmp_path / "run", method="supervised", backbone="lite0", regime="frozen", size=32, steps=3,
        labels_per_class=4, quiet=True,
        settings={"data.weak_views": 1, "data.strong_views": 1, "train.batch": 6, "train.unlabeled_batch": 8},
    )  # fmt: skip
    new = tmp_path / "new"
    fill(new, dict.fromkeys(CLASSES, 20), seed=5)
    time.sleep(SETTLED + 0.1)
    found = []
    for engine in ("ray", "local"):
        monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / engine))
        found.append(run.predict(new, engine=engine))
    assert found[0].paths == found[1].paths
    assert found[0].probabilities.tobytes() == found[1].probabilities.tobytes()
    assert _stored(tmp_path / "local") == _stored(tmp_path / "ray") == 60


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")
def test_work_is_tried_four_times_and_errors_at_once() -> None:
    import ray

    def work(item: int) -> int:
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 2:
            raise UserError("this cannot be")
        return item * 10

    halves: list[int] = []

    def left(item: int) -> int | None:
        halves.append(item)
        return 3 if len(halves) == 2 else item

    assert dict(spread(ray, work, [0, 1, 4], lambda item: (item,), left)) == {0: 0, 3: 30, 4: 40}
    assert halves == [1, 1]
    with pytest.raises(UserError, match="workers were lost 4 times on the same work"):
        list(spread(ray, work, [1], lambda item: (item,)))
    with pytest.raises(UserError, match="this cannot be"):
        list(spread(ray, work, [0, 2], lambda item: (item,)))
    assert list(spread(ray, work, [1], lambda item: (item,), lambda item: None)) == [(1, None)]


def test_a_task_takes_only_its_images_along(tmp_path: Path) -> None:
    parts = [FileImages(tmp_path, [f"{k}{i:05}.png" for i in range(20_000)]) for k in "ab"]
    joined = JoinedImages(parts).subset([3, 30_000, 5, 3])
    sent = pickle.dumps(joined)
    assert len(sent) < 2000
    assert [Path(piece.path(i)).name for piece, rows in pickle.loads(sent).pieces() for i in range(len(rows))] == [
        "a00003.png", "a00005.png", "a00003.png", "b10000.png",
    ]  # fmt: skip
    assert pickle.loads(sent).names == joined.names
    assert [len(part) for part in joined.parts] == [20_000, 20_000]
    several = [Index([f"{k}.png"], np.zeros(1, np.int64), np.ones(1, np.int64), [""], [""]) for k in range(1000)]
    shards = ShardImages([str(tmp_path / f"{k % 2}" / f"{k}.tar") for k in range(1000)], several)
    sent = pickle.dumps(shards.subset([7]))
    assert len(sent) < 2000
    again = pickle.loads(sent)
    assert (again.home, again.names, again.where(0)) == (shards.home, [shards.names[7]], shards.where(7))


def _assert_same(here: Path, there: Path) -> None:
    with np.load(here) as a, np.load(there) as b:
        assert a["names"].tolist() == b["names"].tolist()
        assert a["features"].tobytes() == b["features"].tobytes()


def _stored(cache: Path) -> int:
    """Return the number of images in a feature store; those that are in it twice count twice."""
    found = [Collection.at(about.parent) for about in cache.glob("features/*/about.json")]
    return sum(len(piece.contents) for one in found if one is not None for piece in one.pieces())


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
