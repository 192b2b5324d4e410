"""Benches: every cell runs once, results become a table, and an interrupted bench resumes."""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from selftrain.bench.catalogue import BENCHES, find_bench
from selftrain.bench.cells import Cell, Outcome, attempt, cells_of, run_cell, settings_of
from selftrain.bench.cpu import BASES, FITTED
from selftrain.bench.executors import local
from selftrain.bench.executors.local import LocalProcesses
from selftrain.bench.grid import run_grid
from selftrain.bench.spec import Bench, Row, Variant, rows_of
from selftrain.bench.table import as_csv, latex, markdown
from selftrain.bench.verify import cell_of, choose, read_lines, verify
from selftrain.cli.app import app
from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.methods import DST, METHODS, make_method, method_info
from selftrain.methods.spelling import parse
from selftrain.runs.layout import RunLayout
from selftrain.runs.resolve import resolve
from tests.folders import layout_2
from tests.processes import command_of, descendants, die, started, wait_for

QUICK = {
    "regime": "scratch", "data.labels_per_class": 2, "train.steps": 3, "train.batch": 4, "train.unlabeled_batch": 4,
    "train.accelerator": "cpu",
}  # fmt: skip
TINY = Bench("a test", ("digits",), (Row("supervised"), Row("fixmatch", {"method.tau": 0.5}, "fixmatch, low")), QUICK)


def inline(cells: Sequence[Cell], root: Path | None, out: Path, reporter: Reporter) -> Iterator[Outcome]:
    """The simplest executor: in this process, one cell after another."""
    return (attempt(cell, root, out) for cell in cells)


def test_every_bench_is_well_formed() -> None:
    for bench in BENCHES.values():
        assert bench.about
        for row in bench.rows:
            options = {k.removeprefix("method."): v for k, v in row.settings.items() if k.startswith("method.")}
            assert make_method(row.method, str(bench.settings["regime"]), options)
        assert len({row.name for row in bench.rows}) == len(bench.rows)


@pytest.mark.parametrize(("name", "regime"), [("cpu/finetune", "finetune"), ("cpu/scratch", "scratch")])
def test_whole_networks_are_trained_alike_for_every_method(name: str, regime: str) -> None:
    settings = [resolve({"method": cell.row.method, **cell.settings})[0] for cell in cells_of(find_bench(name), 2)]
    assert {one.regime for one in settings} == {regime}
    assert {one.data.split_seed for one in settings} == {1, 2}  # two draws
    same = {
        (one.train.steps, one.train.batch, one.train.unlabeled_batch, one.optim.lr, one.data.size) for one in settings
    }
    assert len(same) == 1
    for row in find_bench(name).rows:
        base = parse(row.method).given.get("base")
        assert find_bench(name).baseline(row) == (base.name if base else "supervised" * (row.method != "supervised"))


def test_the_warm_up_of_a_short_run_is_the_share_of_a_long_one() -> None:
    released, paper = (
        make_method(row.method, "finetune", {k.removeprefix("method."): v for k, v in row.settings.items()})
        for row in find_bench("cpu/finetune").rows
        if row.method in ("dst(fixmatch)", "dst(fixmatch, preset=paper)")
    )
    assert isinstance(released, DST)
    assert isinstance(paper, DST)
    assert (released.preset, released.warmup) == ("released", 0.025)  # 1,000 of 40,000
    assert (paper.preset, paper.warmup) == ("paper", 0.0)


def test_every_method_is_in_the_bench_of_every_method() -> None:
    spelled = [parse(row.method) for row in BENCHES["cpu/digits"].rows]
    assert {spelling.name for spelling in spelled} == {name for name, cls in METHODS.items() if not cls.fitted}
    assert {row.method for row in BENCHES["cpu/baselines"].rows} == {"supervised", *FITTED, "fixmatch", "dst(fixmatch)"}
    assert {spelling.given["base"].name for spelling in spelled if spelling.name == "dst"} == set(BASES)
    infos = {name: method_info(name) for name in METHODS}
    assert set(BASES) == {name for name, info in infos.items() if info.can_be_base and not info.is_wrapper}


@pytest.mark.long
def test_a_grid_runs_every_cell_once(tmp_path: Path) -> None:
    cells = cells_of(TINY, seeds=2)
    done, failed = run_grid(cells, None, tmp_path, LocalProcesses(2))
    assert not failed
    assert len(done) == 4
    assert done[cells[-1]]["method"] == "fixmatch(tau=0.5)"
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}
    again, _ = run_grid(cells_of(TINY, seeds=2), None, tmp_path, inline)
    assert [run["accuracy"] for run in again.values()] == [done[cell]["accuracy"] for cell in cells]
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}

    table = markdown(TINY, done)
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| supervised", "| fixmatch, low"]
    assert " ± " in table
    rows = list(csv.DictReader(io.StringIO(as_csv(done))))
    assert [(row["row"], row["seed"]) for row in rows] == [
        ("fixmatch, low", "0"), ("fixmatch, low", "1"), ("supervised", "0"), ("supervised", "1"),
    ]  # fmt: skip
    assert all(row["evaluated_on"] == "test" for row in rows)


def test_the_folder_of_a_cell_depends_on_all_its_settings(tmp_path: Path) -> None:
    def folder(method: str, **settings: Any) -> Path:
        return cells_of(Bench("", ("digits",), (Row(method, settings),), QUICK), 1)[0].folder(tmp_path)

    assert folder("fixmatch") == folder("fixmatch(tau=0.95)") == folder("fixmatch", **{"method.tau": 0.95})
    assert folder("fixmatch") != folder("fixmatch(tau=0.9)")
    assert folder("fixmatch") != folder("fixmatch", **{"optim.lr": 0.1})


def test_rows_with_equal_settings_share_one_run(tmp_path: Path) -> None:
    bench = Bench("", ("digits",), (Row("supervised"), Row("supervised(w_strong=0)", label="again")), QUICK)
    done, _ = run_grid(cells_of(bench, seeds=1), None, tmp_path, inline)
    assert len(done) == 2
    assert len(list(tmp_path.rglob("results.json"))) == 1


def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path) -> None:
    bench = Bench(
        "a test", ("digits",), (Row("supervised"), Row("supervised", {"data.test": "/nowhere"}, "no test set")), QUICK
    )
    done, failed = run_grid(cells_of(bench, seeds=1), None, tmp_path, inline)
    assert len(done) == 1
    assert "/nowhere" in next(iter(failed.values()))
    assert "| no test set | - | - |" in markdown(bench, done)


@pytest.mark.parametrize(
    ("bench", "message"),
    [
        (Bench("", ("digit",), TINY.rows, QUICK), "dataset digit: .* Did you mean 'digits'"),
        (Bench("", ("digits",), (Row("fixmach"),), QUICK), "no method 'fixmach'.*fixmatch"),
        (Bench("", ("digits",), (Row("rat"),), {**QUICK, "regime": "frozen"}), "rat does not run in the frozen regime"),
        (Bench("", ("digits",), (Row("uda"), Row("uda")), QUICK), "two of its rows are called 'uda'"),
        (Bench("", ("digits",), TINY.rows, {**QUICK, "seed": 3}), "seed cannot be set"),
        (
            Bench("", ("digits",), TINY.rows, {**QUICK, "train.devices": 2}),
            "`train.devices=2`: a run of a bench is one",
        ),
        (Bench("", ("digits",), (Row("uda", {"method.T": None}),), QUICK), r"uda\(T=none\): expected a number"),
    ],
)
def test_mistakes_are_errors_before_anything_runs(tmp_path: Path, bench: Bench, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_grid(cells_of(bench, seeds=1), None, tmp_path, inline)
    assert not any(tmp_path.iterdir())


def test_run_folders_stay_below_out_and_belong_to_their_data(tmp_path: Path) -> None:
    settings = {**QUICK, "network.backbone": "wrn-tiny"}
    for name in ("one", "two"):
        layout_2(tmp_path / name / "photos")
    photos = tmp_path / "one" / "photos"
    before = sorted(photos.rglob("*"))
    bench = Bench("", (str(photos), "../one/photos"), (Row("supervised"),), settings)
    done, failed = run_grid(cells_of(bench, 1), tmp_path / "two", tmp_path / "out", inline)
    assert not failed
    assert len(done) == 2
    assert sorted(photos.rglob("*")) == before
    assert len(list((tmp_path / "out").rglob("results.json"))) == 2

    cells = cells_of(Bench("", ("photos",), (Row("supervised"),), settings), 1)
    run_grid(cells, tmp_path / "one", tmp_path / "out", inline)
    with pytest.raises(UserError, match=r"has results on .*one/photos, not on .*two/photos"):
        run_grid(cells, tmp_path / "two", tmp_path / "out", inline)
    (tmp_path / "one").rename(tmp_path / "three")  # the same images, moved
    done, _ = run_grid(cells, tmp_path / "three", tmp_path / "out", inline)
    assert len(done) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"out.* .*file: cannot be "):
        run_grid(cells, tmp_path / "three", tmp_path / "file", inline)


def test_amounts_are_not_shown_in_percent() -> None:
    bench = replace(TINY, rows=TINY.rows[:1], measures=("steps", "ece"))
    run = {"accuracy": 0.5, "steps": 300, "ece": 0.07}
    assert "| supervised | 50.0 | 300.0 | 7.0 |" in markdown(bench, dict.fromkeys(cells_of(bench, 1), run))


def test_unknown_benches_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="bench: which one"):
        app(["bench"], standalone_mode=False)
    with pytest.raises(UserError, match="cpu/digits"):
        find_bench("cpu/digit")
    with pytest.raises(UserError, match="no such folder in"):
        Source.below(tmp_path, "photos")
    (tmp_path / "photos").mkdir()
    assert Source.below(tmp_path, "photos").data == str(tmp_path / "photos")


LONGER = {**QUICK, "train.steps": 100, "train.checkpoint_every": 5}


def bench_command(out: Path) -> list[str]:
    sets = [word for name, value in LONGER.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "selftrain", "bench", "cpu/digits", "--methods", "supervised", "--methods",
            "dst(fixmatch)", "--seeds", "1", "--processes", "1", "--out", str(out), *sets]  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_bench_and_a_killed_worker_end_with_the_same_table(tmp_path: Path) -> None:
    bench = replace(BENCHES["cpu/digits"], rows=rows_of(("supervised", "dst(fixmatch)")))
    whole, _ = run_grid(cells_of(bench, 1, LONGER), None, tmp_path / "whole", inline)
    cut = tmp_path / "cut"
    with started(bench_command(cut)) as killed:
        wait_for("the first checkpoint", lambda: any(cut.rglob("last.json")), of=killed)
        family = descendants(killed.pid)
        killed.kill()  # the bench alone; its workers end by themselves
    wait_for("the workers of a killed bench to end", lambda: not any(command_of(pid) for pid in family))

    written = {path: path.stat().st_mtime_ns for path in cut.rglob("last.json")}
    with started(bench_command(cut)) as again:
        wait_for(
            "a checkpoint after the restart",
            lambda: any(path.stat().st_mtime_ns != written.get(path) for path in cut.rglob("last.json")),
            of=again,
        )
        (worker,) = [pid for pid in descendants(again.pid) if "spawn_main" in command_of(pid)]
        os.kill(worker, signal.SIGKILL)  # the bench starts another one
        stdout, stderr = again.communicate(timeout=600)
    assert again.returncode == 0, stderr
    assert "its process died (exit code -9); attempt 2 of 3 resumes the run" in " ".join(stderr.split())
    assert stdout == markdown(bench, whole) + "\n"
    for cell, results in whole.items():
        assert RunLayout(cell.folder(cut)).read_results()["per_class"] == results["per_class"]


def test_a_cell_whose_process_keeps_dying_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_serve", die)
    done, failed = run_grid(cells_of(TINY, seeds=1)[:1], None, tmp_path, LocalProcesses(1))
    assert not done
    assert list(failed.values()) == ["its process died (exit code 7)"]


def test_a_partial_first_file_of_a_killed_run_does_no_harm(tmp_path: Path) -> None:
    cell = cells_of(TINY, seeds=1)[0]
    folder = cell.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / ".config.yaml.123.part").write_text("half")
    assert run_cell(cell, None, tmp_path)["steps"] == 3


# --- tables -------------------------------------------------------------------------------------------------------

PAIR = Bench(
    "two & two", ("a", "b"), (Row("supervised"), Row("fixmatch"), Row("dst(fixmatch)", against="fixmatch")),
    variants=(Variant("few"), Variant("many")),
    paper={
        ("few", "a"): {"supervised": 50.0, "fixmatch": 49.0}, ("few", "b"): {"supervised": 60.0, "fixmatch": 61.0},
        ("many", "elsewhere"): {"dst(fixmatch)": 70.0},
    },
)  # fmt: skip


def invented(bench: Bench, accuracies: dict[str, float]) -> dict[Cell, dict[str, Any]]:
    """Return made-up results whose seeds are 1 point apart; dataset b is measured by mean per class."""

    def run(cell: Cell) -> dict[str, Any]:
        value = (accuracies[cell.row.method] + cell.seed) / 100
        metric = {"metric": "mean_per_class", "mean_per_class": value} if cell.dataset == "b" else {}
        return {"method": cell.row.method, "evaluated_on": "test", "accuracy": value, "worst20_percent": 0.25, **metric}

    return {cell: run(cell) for cell in cells_of(bench, seeds=2)}


def test_tables_stand_beside_the_papers_and_mark_what_got_worse() -> None:
    runs = invented(PAIR, {"supervised": 50.0, "fixmatch": 48.0, "dst(fixmatch)": 49.0})
    text = markdown(PAIR, runs)
    few, many, *notes = text.split("\n\n")[1::2][:2] + text.split("\n\n")[4:]
    assert few.splitlines()[0] == "| | a | paper | worst fifth | b | paper | worst fifth | mean | paper |"
    assert few.splitlines()[2] == "| supervised | 50.5 ± 0.7 | 50.0 | 25.0 | 50.5 ± 0.7 | 60.0 | 25.0 | 50.5 | 55.0 |"
    assert (
        few.splitlines()[3] == "| fixmatch | 48.5 ± 0.7 ↓ | 49.0 ↓ | 25.0 | 48.5 ± 0.7 ↓ | 61.0 | 25.0 | 48.5 | 55.0 |"
    )
    assert few.splitlines()[4] == "| dst(fixmatch) | 49.5 ± 0.7 | - | 25.0 | 49.5 ± 0.7 | - | 25.0 | 49.5 | - |"
    assert many.splitlines()[0] == "| | a | worst fifth | b | worst fifth | mean | paper: elsewhere |"
    assert many.splitlines()[4].endswith("| 49.5 | 70.0 |")
    assert notes == ["↓ below supervised.", "b: mean per class."]
    tex = latex(PAIR, runs)
    assert tex.count(r"\begin{tabular}{@{}lcccccccc@{}}") == 1
    assert r"fixmatch & 48.5 $\pm$ 0.7 $\downarrow$ & 49.0 $\downarrow$ & 25.0 &" in tex
    assert r"$\downarrow$ below supervised." in tex
    assert "% two & two" in tex


def test_one_dataset_has_a_column_for_each_variant() -> None:
    bench = Bench("", ("a",), (Row("fixmatch"),), variants=(Variant("4 labels"), Variant("10 labels")), measures=())
    assert markdown(bench, invented(bench, {"fixmatch": 50.0})).splitlines() == [
        "**a**", "", "| | 4 labels | 10 labels |", "|---|---|---|", "| fixmatch | 50.5 ± 0.7 | 50.5 ± 0.7 |",
    ]  # fmt: skip


def test_the_papers_results_are_those_it_prints() -> None:
    """The averages printed in the paper, typed independently, are those of the results typed here."""
    averages = {
        "paper/table1": {"": [22.2, 23.0, 22.7, 34.2, 46.9, 55.4, 74.3, 75.9, 75.4, 78.3, 78.8, 83.6]},
        "paper/table2": {
            "supervised pre-training": [
                53.2, 59.7, 55.0, 58.6, 55.4, 51.9, 58.3, 58.7, 59.6, 59.3, 62.4, 65.4, 66.9, 71.1, 72.2,
            ],
            "MoCo v2": [51.2, 54.1, 50.5, 56.4, 51.3, 49.1, 56.1, 56.0, 58.7, 55.6, 54.0, 64.4, 66.9, 68.7, 69.7],
        },
    }  # fmt: skip
    for name, tables in averages.items():
        bench = BENCHES[name]
        for variant, printed in tables.items():
            for row, average in zip(bench.rows, printed, strict=True):
                mean = fmean(bench.paper[variant, dataset][row.name] for dataset in bench.datasets)
                assert mean == pytest.approx(average, abs=0.051), (name, variant, row.name)
    for name, bench in BENCHES.items():
        for results in bench.paper.values():
            assert set(results) <= {row.name for row in bench.rows}, name
        if name.startswith("paper/") and name != "paper/labels":
            assert all(set(bench.paper[v.name, d]) == {r.name for r in bench.rows}
                       for v in bench.variants for d in bench.datasets), name  # fmt: skip
    # A result that several tables print is the same in all of them.
    same = {bench.paper[key].get("dst(fixmatch)") for bench, key in (
        (BENCHES["paper/table2"], ("MoCo v2", "cifar100")), (BENCHES["paper/ablation"], ("MoCo v2", "cifar100")),
        (BENCHES["paper/addon"], ("MoCo v2, 4 labels per class", "cifar100")),
    )}  # fmt: skip
    assert same == {68.2}


def test_every_row_is_compared_with_one_that_is_there() -> None:
    for name, bench in BENCHES.items():
        known = {row.name for row in bench.rows}
        assert all(row.against in known for row in bench.rows if row.against), name


def test_weights_under_the_root(tmp_path: Path) -> None:
    cell = cells_of(Bench("", ("digits",), TINY.rows, {**QUICK, "network.weights": "{root}/moco.pth"}), 1)[0]
    with pytest.raises(UserError, match=r"network.weights=.*moco.pth is a file under `root`"):
        settings_of(cell, None)
    with pytest.raises(UserError, match="the file does not exist"):
        settings_of(cell, tmp_path)
    (tmp_path / "moco.pth").touch()
    assert settings_of(cell, tmp_path)["network.weights"] == str(tmp_path / "moco.pth")


def test_a_bench_from_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "datasets: [digits]\nrows: [supervised, {method: fixmatch, settings: {method.tau: 0.5}, label: low}]\n"
        "settings: {regime: scratch}\nvariants: {few: {data.labels_per_class: 1}, more: {data.labels_per_class: 5}}\n"
    )
    bench = find_bench(str(file))
    assert [cell.settings["data.labels_per_class"] for cell in cells_of(bench, 1)] == [1, 5, 1, 5]
    assert bench.rows[1] == Row("fixmatch", {"method.tau": 0.5}, "low")
    for text, message in (
        ("rows: [supervised]", "'datasets' is missing"),
        ("datasets: [digits]\nrow: [supervised]", "no field 'row'. Did you mean 'rows'"),
        ("datasets: digits\nrows: [supervised]", "datasets=digits: expected a list"),
        ("datasets: [digits]\nrows: [{label: x}]", "'method' is missing"),
        ("datasets: [digits]\nrows: [{method: null}]", "'method' is missing"),
        ("- 3", "expected fields"),
        ("datasets: [digits]\nrows: [supervised]\nvariants: {a: 3}", "variants: a=3: expected settings"),
        ("datasets: [digits]\nrows: [supervised]\nby_dataset: {digit: {seed: 1}}", "not one of its datasets.*'digits'"),
        ("datasets: [digits]\nrows: [supervised]\nsettings: {3: 1}", "3 is not the name of a setting"),
        ("datasets: [digits]\nrows: [supervised]\nmeasures: [worst]", "measures: 'worst' is not a measure"),
        ("datasets: [digits]\nrows: [{method: fixmatch, against: nobody}]", "there is no row 'nobody'"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            find_bench(str(file))
    with pytest.raises(UserError, match="cannot be read"):
        find_bench(str(tmp_path / "nowhere.yaml"))
    file.write_text("datasets: [digits]\nrows: [supervised]\nabout: null\nmeasures: null")
    left_out = Bench(str(file), ("digits",), (Row("supervised"),))
    assert (find_bench(str(file)).about, find_bench(str(file)).measures) == (str(file), left_out.measures)


# --- verify -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_verify_repeats_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = replace(TINY, variants=(Variant("few"),))
    cell = cells_of(bench, seeds=1)[1]
    run = run_cell(cell, None, tmp_path / "runs")
    assert run["torch"].startswith(run["environment"]["torch"])
    assert run["environment"]["cores"] == os.cpu_count()
    file = tmp_path / "tiny.csv"
    file.write_text(as_csv({cell: run}))
    (line,) = read_lines(file)
    verdict = verify(line, None, 0.0)
    assert verdict.equal
    assert verdict.good
    assert str(verdict) == "fixmatch, low on digits, few, seed 0:\n  equal, bit for bit"

    wrong = dict(line, accuracy=str(float(line["accuracy"]) + 0.01))
    assert "MISMATCH: versions and machine are the same" in str(replace(verdict, measures=pair(wrong, line)))
    assert not replace(verdict, measures=pair(wrong, line)).good
    other = replace(verdict, measures=pair(wrong, line), environment={"torch": ("1.0", "2.0")}, tolerance=0.02)
    assert other.good
    assert "torch was 1.0, is 2.0" in str(other)
    assert "within the tolerance: 0.0100 apart, 0.02 allowed" in str(other)
    assert not replace(other, tolerance=0.001).good
    assert not replace(other, hashes={"split_hash": ("x", "y")}).good

    file.write_text(as_csv({cell: {**run, "accuracy": 0.123}}))
    monkey = ["bench", "--verify", str(file), "--row", "fixmatch, low", "--seed", "0"]
    with pytest.raises(SystemExit) as exit_:
        app(monkey)
    assert exit_.value.code == 1
    said = capsys.readouterr().out
    assert "accuracy was 0.123, is " in said
    assert "MISMATCH" in said


def pair(then: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str, str]]:
    return {"accuracy": (then["accuracy"], now["accuracy"])}


def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    with pytest.raises(UserError, match="cannot be read"):
        read_lines(file)
    file.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="not the CSV file of a bench"):
        read_lines(file)
    cell = cells_of(TINY, 1)[0]
    file.write_text(as_csv({cell: {"method": "supervised", "evaluated_on": "test", "accuracy": 0.5}}))
    lines = read_lines(file)
    with pytest.raises(UserError, match=r"no line has `row` fixmatch \(known: supervised\)"):
        choose(lines, {"row": "fixmatch", "dataset": None})
    assert choose(lines, {"row": "supervised", "seed": "0"}) == lines[0]
    assert cell_of(lines[0]).folder(tmp_path) == cell.folder(tmp_path)
    with pytest.raises(UserError, match="damaged"):
        cell_of({**lines[0], "settings": "{"})
