"""Methods in files of the user: named, loaded, refused, resumed, wrapped, and checked against the contract."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import selftrain
from selftrain.bench.catalogue import find_bench
from selftrain.bench.cells import Cell, cells_of, run_cell
from selftrain.bench.spec import Row
from selftrain.cli.app import app
from selftrain.errors import UserError
from selftrain.methods import make_method, method_info, name_files, own, spell_method
from selftrain.runs import method_checks
from selftrain.runs.layout import RunLayout

SOURCE = Path(__file__).parent / "own_method.py"
SETTINGS: dict[str, Any] = {
    "train.steps": 4, "train.batch": 8, "train.unlabeled_batch": 8, "train.accelerator": "cpu", "train.eval_every": 2,
    "train.checkpoint_every": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_named() -> Iterator[None]:
    own._allowed.clear()
    own._loaded.clear()
    yield
    own._allowed.clear()
    own._loaded.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(SOURCE, tmp_path / "mine.py"))


def train(method: str | None, out: Path, **more: Any) -> Any:
    return selftrain.train(
        None if more.get("resume") or more.get("config") else "digits",
        labels_per_class=None if more.get("resume") or more.get("config") else 4, method=method, out=out, quiet=True,
        settings=None if more.get("resume") or more.get("config") else SETTINGS, **more,
    )  # fmt: skip


def test_a_reference_is_read_and_written(file: Path) -> None:
    text = name_files(f"dst({file}:MyMatch(m=0.8), width=8)")
    method: Any = make_method(text)
    assert (method.base.name, method.base.m, method.width) == ("mymatch", 0.8, 8)
    spelled = spell_method(method, "scratch")
    assert spelled.startswith(f"dst({file}:MyMatch@")
    assert make_method(spelled) == method
    assert method_info(spelled).title == "DST(MyMatch(m=0.8), width=8)"
    assert method_info(spelled).base is not None
    spaced = file.with_name("my methods (1).py")
    shutil.copy(file, spaced)
    quoted = spell_method(make_method(name_files(f"dst('{spaced}:MyMatch')")))
    assert make_method(quoted).base.name == "mymatch"  # type: ignore[attr-defined]


def test_a_file_runs_only_if_the_user_names_it(file: Path) -> None:
    for text in (f"{file}:MyMatch", f"dst({file}:MyMatch)"):
        with pytest.raises(UserError, match=r"runs only if you name the file yourself. Add `method_file="):
            make_method(text)
        assert method_info(text).title in ("MyMatch", "DST(MyMatch)")
    assert not own._loaded
    assert (file.parent / "ran.txt").exists() is False
    name_files(f"{file}:MyMatch")
    make_method(f"{file}:MyMatch")
    assert (file.parent / "ran.txt").exists()


@pytest.mark.parametrize(
    ("content", "cls", "why"),
    [
        ("class A: pass", "A", "A is not a method"),
        ("class A: pass", "B", r"has no class 'B'\. Its classes: A"),
        ("import no_such_module", "A", r"cannot be run .ModuleNotFoundError"),
        ("def f(:", "A", r"cannot be run .SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_file(file: Path, content: str, cls: str, why: str) -> None:
    file.write_text(content)
    with pytest.raises(UserError, match=why):
        make_method(name_files(f"{file}:{cls}"))
    with pytest.raises(UserError, match=r"cannot be read"):
        name_files(f"{file.parent}/no.py:{cls}")


@pytest.mark.long
def test_a_run_with_a_method_of_ones_own(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train("dst(mine.py:MyMatch)", tmp_path / "run")
    layout = RunLayout(tmp_path / "run")
    assert f"{file}:MyMatch@" in layout.read_settings()["method"]
    own._allowed.clear()
    own._loaded.clear()

    # A configuration never runs code by itself.
    with pytest.raises(UserError, match=r"name the file yourself"):
        train(None, tmp_path / "again", config=layout.config)
    again = train(None, tmp_path / "again", config=layout.config, method_files=[file])
    assert again.results["accuracy"] == run.results["accuracy"]

    # Resuming neither, and never with other code.
    half = tmp_path / "half"
    shutil.copytree(tmp_path / "run", half)
    (half / "results.json").unlink()
    own._allowed.clear()
    own._loaded.clear()
    with pytest.raises(UserError, match=r"name the file yourself"):
        train(None, half, resume=True)
    resumed = train(None, half, resume=True, method_files=[file])
    assert resumed.results["accuracy"] == run.results["accuracy"]
    (half / "results.json").unlink()
    file.write_text(file.read_text() + "\n# changed\n")
    with pytest.raises(UserError, match=r"has changed .its hash was"):
        train(None, half, resume=True, method_files=[file])

    # Predicting and reporting need no code at all.
    file.unlink()
    own._allowed.clear()
    own._loaded.clear()
    finished = selftrain.Run(tmp_path / "run")
    assert finished.predict(np.zeros((2, 8, 8), np.uint8)).probabilities.shape == (2, 10)
    assert "MyMatch" in finished.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert not own._loaded


@pytest.mark.long
def test_a_bench_with_a_method_of_ones_own(file: Path, tmp_path: Path) -> None:
    text = (
        f"about: mine\ndatasets: [digits]\nrows: [{{method: '{file}:MyMatch'}}, {{method: 'dst({file}:MyMatch)'}}]\n"
        "settings: {regime: scratch, data.labels_per_class: 4, train.steps: 2, train.batch: 8, "
        "train.unlabeled_batch: 8, train.accelerator: cpu}\n"
    )
    bench = tmp_path / "bench.yaml"
    bench.write_text(text)
    words = ["bench", str(bench), "--seeds", "1", "--out", str(tmp_path / "runs"), "--processes", "1", "--quiet"]
    with pytest.raises(UserError, match=r"name the file yourself"):
        app(words, standalone_mode=False)
    assert not own._loaded
    app([*words, "--method-file", str(file)], standalone_mode=False)
    assert len(list((tmp_path / "runs").rglob("results.json"))) == 2
    cells = cells_of(find_bench(str(bench)), 1)
    assert cells[0].method_files == ((str(file), own.allow_method_file(file)),)
    own._allowed.clear()
    own._loaded.clear()
    unnamed = Cell(Row(f"{file}:MyMatch"), "digits", 0, cells[0].settings)  # as --verify reads it from a CSV file
    with pytest.raises(UserError, match=r"name the file yourself"):
        run_cell(unnamed, None, tmp_path / "verify")


def test_a_cell_is_another_one_if_its_code_changes(file: Path, tmp_path: Path) -> None:
    cell = Cell(Row(f"{file}:MyMatch"), "digits", 0, {"regime": "scratch"})
    own.allow_method_file(file)
    before = cell.folder(tmp_path)
    file.write_text(file.read_text() + "\n# changed\n")
    own.allow_method_file(file)
    assert cell.folder(tmp_path) != before


def test_a_sweep_takes_a_method_of_ones_own(file: Path) -> None:
    from selftrain.sweep.plan import make_plan

    text = name_files(f"dst({file}:MyMatch)")
    given = {"data.path": "digits", "method": text, "regime": "scratch", "data.labels_per_class": 4}
    plan = make_plan(given, {"method.base.m": (0.8, 0.9)}, trials=4, folds=2, prune=False)
    assert plan.trials == 2


def test_an_entry_point_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("installed_match", "tests.runs.own_method:MyMatch", own.GROUP)
    monkeypatch.setattr(own, "_entry_points", lambda: [entry])
    assert method_info("installed_match").title == "installed_match", "a title alone loads nothing"
    method = make_method("dst(installed_match(m=0.8))")
    assert spell_method(method, "scratch") == "dst(installed_match(m=0.8))"
    with pytest.raises(UserError, match="installed_match"):
        make_method("no_such_method")
    broken = importlib.metadata.EntryPoint("broken", "tests.runs.no_such_module:A", own.GROUP)
    monkeypatch.setattr(own, "_entry_points", lambda: [broken])
    with pytest.raises(UserError, match=r"broken of tests.runs.no_such_module:A cannot be loaded"):
        make_method("broken")


RANKS = "agrees on two processes"


def test_a_good_method_passes_the_checks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple(check for check in method_checks.CHECKS if check.what != RANKS)
    assert len(kept) == len(method_checks.CHECKS) - 1
    monkeypatch.setattr(method_checks, "CHECKS", kept)
    assert [reason for _, reason in method_checks.check_method(name_files(f"{file}:MyMatch")) if reason] == []


@pytest.mark.parametrize(
    ("cls", "what", "why"),
    [
        ("NoHelp", "describes its options, and its string gives it back", "option 'k' has no help text"),
        ("Forgets", "resumes bit by bit", "keep all state in net.parts"),
        ("Impure", "labels without changing state", "label changes parts.running.tau"),
        ("WrongHead", "runs inside DST, if it labels and imitates", "no loss term trains h_pseudo"),
        ("WrongFlow", "trains the parts that it declares", "term 'unlabeled' trains h, psi, not h"),
        ("Stuck", "learns from labels", "the labeled loss went from"),
    ],
)
def test_a_check_fails(file: Path, cls: str, what: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_checks, "CHECKS", [check for check in method_checks.CHECKS if check.what == what])
    ((_, reason),) = method_checks.check_method(name_files(f"{file}:{cls}"))
    assert why in reason


@pytest.mark.long
def test_the_command_checks_on_two_processes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = name_files(f"{file}:MyMatch")
    method_checks._agrees_on_two_ranks(text)
    with pytest.raises(method_checks.FailedCheckError, match="two processes end with another"):
        method_checks._agrees_on_two_ranks(name_files(f"{file}:EachForItself"))
