"""Sweeps: search spaces, trials on held-out labels, and several processes, one of which may be killed."""

from __future__ import annotations

import csv
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.data.split import fold_splits, make_split
from selftrain.errors import UserError
from selftrain.runs.run import Run
from selftrain.runs.trainer import train
from selftrain.sweep.search import Sweep
from selftrain.sweep.space import Range, parse_search, read_space, size, usual_space
from selftrain.sweep.trial import Objective, untried
from tests.processes import started, wait_for

pytestmark = pytest.mark.long

GIVEN: dict[str, Any] = {
    "data.path": "digits", "method": "fixmatch", "regime": "scratch", "data.labels_per_class": 4, "train.steps": 4,
    "train.batch": 4, "train.unlabeled_batch": 4, "train.eval_every": 2, "train.accelerator": "cpu", "train.threads": 1,
}  # fmt: skip
QUIET = Reporter(quiet=True)


# --- search spaces ---------------------------------------------------------------------------------------------


def test_the_papers_grids_are_the_default_spaces() -> None:
    assert usual_space("fixmatch", "frozen", {}) == {
        "method.tau": (0.7, 0.8, 0.9, 0.95), "method.lam": (0.1, 0.3, 1.0, 3.0),
        "optim.lr": (0.001, 0.003, 0.01, 0.03), "optim.weight_decay": (0.0005, 0.001),
    }  # fmt: skip
    assert set(usual_space("dst(flexmatch)", "finetune", {})) == {
        "method.base.tau", "method.base.lam", "optim.lr", "optim.weight_decay",
    }  # fmt: skip
    fixed = usual_space("dst(fixmatch(tau=0.9))", "scratch", {"method.base.lam": 1.0})
    assert fixed == {"optim.weight_decay": (0.0005, 0.001)}
    assert set(usual_space("diffusion(k=5)", "frozen", {})) == {"method.alpha"}


def test_spaces_from_the_command_line_and_from_a_file(tmp_path: Path) -> None:
    space = parse_search(
        ["method.tau=0.7, 0.8", "optim.lr=1e-3..0.03 log", "train.steps=100..300", "optim.nesterov=true,false"]
    )
    assert space == {
        "method.tau": (0.7, 0.8), "optim.lr": Range(0.001, 0.03, log=True), "train.steps": Range(100, 300),
        "optim.nesterov": (True, False),
    }  # fmt: skip
    assert size({"a": (1, 2), "b": (1, 2, 3)}) == 6
    file = tmp_path / "space.yaml"
    file.write_text("method.tau: [0.7, 0.8]\noptim.lr: {low: 1e-3, high: 0.03, log: true}\n")
    assert read_space(file) == {"method.tau": (0.7, 0.8), "optim.lr": Range(0.001, 0.03, log=True)}
    for text, message in (
        ("tau", "a name or its values are missing"),
        ("optim.lr=0.1..0.01", "from a smaller number to a larger"),
        ("optim.lr=0..1 log", "must start above 0"),
        ("optim.lr=a..b", "from a smaller number"),
        ("method.tau=0.5,0.5", "the same value is given twice"),
        ("method.tau=,", "no values"),
    ):
        with pytest.raises(UserError, match=message):
            parse_search([text])
    for text, message in (("- 3", "expected lines"), ("a: 3", "expected a list of values"), ("a: [", "not a YAML")):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            read_space(file)


# --- held-out labels ---------------------------------------------------------------------------------------


def test_every_label_is_held_out_by_one_fold() -> None:
    corpus = Source.parse("digits").corpus()
    whole = make_split(corpus, labels_per_class=5)
    folds = fold_splits(whole, corpus, 3)
    assert np.array_equal(np.sort(np.concatenate([split.validation for split in folds])), whole.labeled)
    for split in folds:
        assert np.array_equal(np.union1d(split.labeled, split.validation), whole.labeled)
        assert not np.intersect1d(split.unlabeled, split.validation).size
        assert set(split.validation_labels.tolist()) == set(range(10))
    for settings, message in (
        ({"data.fold": "1/6"}, "folds=6.*: expected 2 to 4"),
        ({"data.fold": "3/2"}, r"data\.fold=\W?3/2.*: expected .* such as 1/5"),
        ({"data.fold": "first"}, r"data\.fold=\W?first.*: expected .* such as 1/5"),
        ({"data.fold": "1/2", "data.validation_per_class": 1}, r"data\.validation_per_class"),
    ):
        with pytest.raises(UserError, match=message):
            train(settings={**GIVEN, **settings}, quiet=True)


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ({"data.evaluate_on": "test"}, {"folds": 2}, "a sweep never uses the test set"),
        ({}, {}, "no labels are held out"),
        ({"data.validation_per_class": 2}, {"folds": 2}, "`folds=2`: conflicts with `data.validation_per_class=2`"),
        ({}, {"folds": 2, "space": {"method.tua": (1, 2)}}, "Did you mean 'tau'"),
        ({}, {"folds": 2, "space": {"method.tau": (0.5, "much")}}, "expected a number"),
        ({}, {"folds": 2, "space": {"data.evaluate_on": ("test",)}}, "cannot be searched"),
        ({}, {"folds": 2, "space": {"data.split_seed": (1, 2)}}, "cannot be searched"),
        ({"train.devices": 2}, {"folds": 2}, "`train.devices=2`: a trial is one process"),
        ({}, {"folds": 2, "storage": "nothing://me:secret@x"}, r"`storage` nothing://me:\*\*\*@x: cannot be opened"),
        ({}, {"folds": 2, "storage": "nothing://x"}, "`storage` nothing://x: cannot be opened"),
    ],
)  # fmt: skip
def test_mistakes_are_errors_before_anything_runs(
    tmp_path: Path, given: dict[str, Any], more: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(UserError, match=message):
        Sweep({**GIVEN, **given}, tmp_path / "out", **more).run(QUIET)
    assert not list(tmp_path.rglob("trial*"))


# --- trials -------------------------------------------------------------------------------------------------------


def test_a_mistake_leaves_the_folder_usable(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {"method.tau": (0.5,)}
    wrong = {**GIVEN, "train.steps": 2, "data.labels_per_class": 4000}
    with pytest.raises(UserError, match="4000"):
        Sweep(wrong, tmp_path, space, trials=1, folds=2).run(QUIET)
    assert Sweep({**GIVEN, "train.steps": 2}, tmp_path, space, trials=1, folds=2).run(QUIET).number >= 0


def test_a_small_grid_is_searched_completely_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {"optim.lr": (0.01, 1e12), "method.tau": (0.5, 0.9)}  # at 1e12 the loss soon becomes NaN
    sweep = Sweep({**GIVEN, "train.steps": 8}, tmp_path, space, trials=10, folds=2)
    result = sweep.run(QUIET)
    assert [trial["state"] for trial in result.trials].count("diverged") == 2
    finished = [trial for trial in result.trials if trial["state"] == "complete"]
    assert {trial["method.tau"] for trial in finished} == {0.5, 0.9}
    assert result.value == max(trial["value"] for trial in finished)
    assert result.best["optim.lr"] == 0.01
    folds = [Run(tmp_path / finished[0]["folder"] / f"fold{k}").results for k in (0, 1)]
    assert all(fold["evaluated_on"] == "validation" for fold in folds)
    assert finished[0]["value"] == pytest.approx(sum(fold["accuracy"] for fold in folds) / 2)
    assert len(list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))) == 4

    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}
    assert sweep.run(QUIET).trials == result.trials
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}
    with pytest.raises(UserError, match="was started with folds=2, not 3"):
        Sweep(sweep.given, tmp_path, space, trials=10, folds=3).run(QUIET)
    with pytest.raises(UserError, match=r"was started with space\.method\.tau"):
        Sweep(sweep.given, tmp_path, {**space, "method.tau": (0.1,)}, folds=2).run(QUIET)

    best = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert (best["optim"]["lr"], best["data"]["fold"], best["data"]["evaluate_on"]) == (0.01, None, None)
    run = train(config=tmp_path / "best.yaml", out=tmp_path / "best", quiet=True)
    assert run.results["evaluated_on"] == "test"
    assert run.results["labeled"] == 40


def test_no_point_is_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the sampler always asks for the first point."""
    ran: list[dict[str, Any]] = []

    def run(self: Any, trial: Any, values: dict[str, Any], home: Path) -> float:
        ran.append(dict(values))
        return float(values["method.tau"])

    def always_first(self: Any, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        return distribution.choices[0]

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", always_first)
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_relative", lambda *_: {})
    monkeypatch.setattr(Objective, "_run", run)
    space = {"method.tau": (0.7, 0.8, 0.9), "method.lam": (0.3, 1.0)}
    result = Sweep(GIVEN, tmp_path / "sweep", space, 5, 2, None, "s", False, 10).run(QUIET)
    assert len(ran) == 5
    assert len({tuple(values.items()) for values in ran}) == 5
    assert [trial["state"] for trial in result.trials] == ["complete"] * 5
    assert result.value == max(values["method.tau"] for values in ran)


def test_an_untried_point_is_found_if_there_is_one() -> None:
    space: dict[str, Any] = {"a": (1, 2), "b": tuple(range(200))}
    trials = [create_trial(params={"a": a, "b": b}, distributions={
        "a": CategoricalDistribution((1, 2)), "b": CategoricalDistribution(tuple(range(200)))}, value=0.0)
        for a in (1, 2) for b in range(200) if (a, b) != (2, 77)]  # fmt: skip
    assert untried(space, trials, 0) == {"a": 2, "b": 77}
    assert untried({"a": (1, 2)}, [create_trial(params={"a": a}, distributions={
        "a": CategoricalDistribution((1, 2))}, value=0.0) for a in (1, 2)], 0) is None  # fmt: skip
    whole = untried({"a": Range(1, 3, False)}, [], 0)
    assert whole is not None
    assert whole["a"] in (1, 2, 3)


def test_bad_trials_end_early(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    given = {**GIVEN, "data.validation_per_class": 5, "train.steps": 60, "train.eval_every": 6}
    sweep = Sweep(given, tmp_path, {"optim.lr": Range(1e-9, 0.1, log=True)}, trials=1)
    sweep.run(QUIET)
    study = optuna.load_study(study_name="selftrain", storage=f"sqlite:///{tmp_path / 'study.db'}")
    distribution = {"optim.lr": optuna.distributions.FloatDistribution(1e-9, 0.1, log=True)}
    for _ in range(5):  # trials that were better at every step
        study.add_trial(
            optuna.trial.create_trial(
                params={"optim.lr": 0.09}, distributions=distribution, value=0.99,
                intermediate_values=dict.fromkeys(range(1, 11), 0.99),
            )
        )  # fmt: skip
    result = Sweep(sweep.given, tmp_path, sweep.space, trials=7).run(QUIET)
    assert result.trials[-1]["state"] == "pruned"
    assert not (tmp_path / result.trials[-1]["folder"] / "results.json").exists()


@pytest.mark.timeout(900)
def test_two_processes_share_a_study_and_one_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    given = {**GIVEN, "train.steps": 24, "train.checkpoint_every": 2, "data.validation_per_class": 2}
    sets = [word for name, value in given.items() if name not in ("data.path", "method")
            for word in ("--set", f"{name}={value}")]  # fmt: skip
    command = [
        sys.executable, "-m", "selftrain", "sweep", "digits", "--method", "fixmatch", "--trials", "8",
        "--search", "method.tau=0.5..0.95", "--storage", f"sqlite:///{tmp_path / 'study.db'}", "--out", str(tmp_path),
        "--grace", "3", "--no-prune", *sets,
    ]  # fmt: skip
    with started(command) as killed, started(command) as other:
        wait_for("two checkpoints", lambda: len(list(tmp_path.rglob("last.json"))) >= 2, of=killed)
        killed.kill()
        stdout, stderr = other.communicate(timeout=600)
    assert other.returncode == 0, stderr
    assert "best: trial" in stdout
    lines = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [line["state"] for line in lines] == ["complete"] * 8
    assert all((tmp_path / line["folder"] / "results.json").exists() for line in lines)
    with sqlite3.connect(tmp_path / "study.db") as database:
        states = [state for (state,) in database.execute("select state from trials")]
    database.close()
    assert "RUNNING" not in states
    assert "WAITING" not in states
