"""Benches: every cell once, a table, and going on after an interruption."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from selftrain.bench import BENCHES, Bench, Row, find_bench
from selftrain.bench.grid import cells_of, find_data, run_grid
from selftrain.bench.table import as_csv, markdown
from selftrain.errors import UserError
from selftrain.files import read_json
from selftrain.methods import METHODS, make_method

QUICK = {
    "regime": "scratch", "data.labels_per_class": 2, "train.steps": 3, "train.batch": 4, "train.unlabeled_batch": 4,
    "train.accelerator": "cpu",
}  # fmt: skip
TINY = Bench("a test", ("digits",), (Row("supervised"), Row("fixmatch", {"method.tau": 0.5}, "fixmatch, low")), QUICK)


def test_every_bench_is_well_formed() -> None:
    for bench in BENCHES.values():
        assert bench.about
        for row in bench.rows:
            own = {k.removeprefix("method."): v for k, v in row.settings.items() if k.startswith("method.")}
            make_method(row.method, str(bench.settings["regime"]), own)
        assert len({row.name for row in bench.rows}) == len(bench.rows)
    everything = " ".join(row.method for row in BENCHES["cpu/digits"].rows)
    assert all(name in everything for name in METHODS)


def test_a_grid_runs_every_cell_once(tmp_path: Path) -> None:
    cells = cells_of(TINY, seeds=2)
    done, failed = run_grid(cells, None, tmp_path, processes=2)
    assert not failed
    assert len(done) == 4
    assert done[cells[-1]]["method"] == "fixmatch(tau=0.5)"
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}
    again, _ = run_grid(cells_of(TINY, seeds=2), None, tmp_path)
    assert sorted(run["accuracy"] for run in again.values()) == sorted(run["accuracy"] for run in done.values())
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}

    table = markdown(TINY, done)
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| supervised", "| fixmatch, low"]
    assert " ± " in table
    rows = list(csv.DictReader(io.StringIO(as_csv(done))))
    assert [(row["row"], row["seed"]) for row in rows] == [
        ("fixmatch, low", "0"), ("fixmatch, low", "1"), ("supervised", "0"), ("supervised", "1"),
    ]  # fmt: skip
    assert all(row["evaluated_on"] == "test" for row in rows)


def test_a_cell_is_known_by_all_its_settings(tmp_path: Path) -> None:
    def folder(method: str, **settings: Any) -> Path:
        return cells_of(Bench("", ("digits",), (Row(method, settings),), QUICK), 1)[0].folder(tmp_path)

    assert folder("fixmatch") == folder("fixmatch(tau=0.95)") == folder("fixmatch", **{"method.tau": 0.95})
    assert folder("fixmatch") != folder("fixmatch(tau=0.9)")
    assert folder("fixmatch") != folder("fixmatch", **{"optim.lr": 0.1})


def test_rows_that_are_the_same_run_both_have_its_results(tmp_path: Path) -> None:
    bench = Bench("", ("digits",), (Row("supervised"), Row("supervised(w_strong=0)", label="again")), QUICK)
    done, _ = run_grid(cells_of(bench, seeds=1), None, tmp_path, processes=1)
    assert len(done) == 2
    assert len(list(tmp_path.rglob("results.json"))) == 1


def test_a_cell_that_fails_stops_no_other(tmp_path: Path) -> None:
    bench = Bench(
        "a test", ("digits",), (Row("supervised"), Row("supervised", {"data.test": "/nowhere"}, "no test set")), QUICK
    )
    done, failed = run_grid(cells_of(bench, seeds=1), None, tmp_path, processes=1)
    assert len(done) == 1
    assert "/nowhere" in next(iter(failed.values()))
    assert "| no test set | - | - |" in markdown(bench, done)


@pytest.mark.parametrize(
    ("bench", "message"),
    [
        (Bench("", ("digit",), TINY.rows, QUICK), "dataset digit: .* Did you mean 'digits'"),
        (Bench("", ("digits",), (Row("fixmach"),), QUICK), "no method 'fixmach'.*fixmatch"),
        (Bench("", ("digits",), (Row("rat"),), {**QUICK, "regime": "frozen"}), "rat does not run in the frozen regime"),
    ],
)
def test_typos_are_told_before_anything_runs(tmp_path: Path, bench: Bench, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_grid(cells_of(bench, seeds=1), None, tmp_path)
    assert not any(tmp_path.iterdir())


def test_unknown_benches_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cpu/digits"):
        find_bench("cpu/digit")
    with pytest.raises(UserError, match="no such folder in"):
        find_data("photos", tmp_path)
    (tmp_path / "photos").mkdir()
    assert find_data("photos", tmp_path) == str(tmp_path / "photos")


def bench_command(out: Path, **more: Any) -> list[str]:
    given = {**QUICK, "train.steps": 60, "train.checkpoint_every": 5, **more}
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "selftrain", "bench", "cpu/digits", "--methods", "supervised", "--methods",
            "dst(fixmatch)", "--seeds", "1", "--out", str(out), *sets]  # fmt: skip


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_bench_ends_with_the_same_table(tmp_path: Path) -> None:
    whole = subprocess.run(bench_command(tmp_path / "whole"), capture_output=True, text=True, check=True)
    killed = subprocess.Popen(
        bench_command(tmp_path / "cut"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not any((tmp_path / "cut").rglob("last.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)  # the bench alone; its workers notice by themselves
    killed.wait()
    while _alive(killed.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(killed.pid)
    again = subprocess.run(bench_command(tmp_path / "cut"), capture_output=True, text=True, check=True)
    assert again.stdout == whole.stdout
    assert "| dst(fixmatch) |" in whole.stdout
    tables = [read_json(next(folder.rglob("supervised*/results.json")))["accuracy"] for folder in
              (tmp_path / "whole", tmp_path / "cut")]  # fmt: skip
    assert tables[0] == tables[1]
