"""Bias told apart by real reference runs, and estimates from the few labels themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import selftrain
from selftrain.data.corpus import Corpus
from selftrain.data.source import Source
from selftrain.data.split import Split, fold_splits, make_split, with_all_labels
from selftrain.data.split_file import load_split
from selftrain.engine.loop import Loop
from selftrain.errors import UserError
from selftrain.methods import FixMatch
from selftrain.runs import bias
from selftrain.runs.fit import fit
from tests.folders import layout_1, layout_2, layout_3
from tests.runs.small_runs import train_small

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layout_2(tmp_path_factory.mktemp("data") / "data", per_class=8)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    out = tmp_path_factory.mktemp("run") / "run"
    run = train_small(data, out, labels_per_class=2, method="dst(fixmatch(w_strong=0.5))")
    bias.decompose(run.folder)
    return run


def test_the_references_are_plain_runs(run: selftrain.Run, data: Path, tmp_path: Path) -> None:
    found = json.loads((run.folder / "reference.json").read_text())
    plain = train_small(data, tmp_path / "plain", labels_per_class=2, method="supervised(w_strong=0.5)")
    assert found["labels_only"] == {key: plain.results[key] for key in ("accuracy", "per_class")}
    few, every = (selftrain.Run(run.folder / "reference" / name).results for name in ("labels_only", "all_labels"))
    assert few["split_hash"] == run.results["split_hash"]
    assert (few["labeled"], every["labeled"]) == (6, 24)
    assert every["steps"] == few["steps"] == 8
    for one in (few, every):
        assert one["method"] == "supervised(w_strong=0.5)"


def test_bias_is_the_difference_of_errors(run: selftrain.Run) -> None:
    found: dict[str, Any] = dict(bias.decompose(run.folder))
    for k in range(3):
        error, few, every = (
            1 - one["per_class"][k] for one in (run.results, found["labels_only"], found["all_labels"])
        )
        assert found["training_bias"][k] == pytest.approx(error - few)
        assert found["data_bias"][k] == pytest.approx(few - every)
    assert found["evaluated_on"] == "test"


def test_references_are_reused_and_resumed(run: selftrain.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    first = json.loads((folder / "reference.json").read_text())
    (folder / "reference.json").unlink()
    trained: list[str] = []

    def counted(*args: Any, **options: Any) -> Any:
        trained.append(options["folder"].name)
        return fit(*args, **options)

    monkeypatch.setattr("selftrain.runs.bias.fit", counted)
    assert bias.decompose(folder) == first
    assert trained == []
    (folder / "reference.json").unlink()
    (folder / "reference" / "all_labels" / "results.json").unlink()  # as if killed before its end
    assert bias.decompose(folder) == first
    assert trained == ["all_labels"]


def test_without_every_label_there_is_no_data_bias(tmp_path: Path) -> None:
    run = train_small(layout_1(tmp_path / "data"), tmp_path / "run", method="fixmatch", steps=4)
    found = bias.decompose(run.folder)
    assert found["all_labels"] is None
    assert found["data_bias"] is None
    assert len(found["training_bias"]) == 3
    assert not (run.folder / "reference" / "all_labels").exists()


def test_bias_cannot_be_measured_without_unseen_labels(tmp_path: Path) -> None:
    data, labels = layout_3(tmp_path / "data")
    run = train_small(data, tmp_path / "run", labels=labels, steps=4)
    with pytest.raises(UserError, match=r"labels that training has not seen.*`test`"):
        bias.decompose(run.folder)
    assert not (run.folder / "reference").exists()
    (run.folder / "results.json").unlink()
    with pytest.raises(UserError, match="the run is not finished"):
        bias.decompose(run.folder)
    with pytest.raises(UserError, match="not a run folder"):
        bias.decompose(tmp_path)


def test_arrays_must_be_given_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (24, 8, 8)).astype(np.uint8), np.arange(24) % 2
    some = (x, np.where(np.arange(24) < 8, y, -1))
    run = train_small(some, tmp_path / "run", test=(x, y), method=FixMatch(tau=0.5), steps=3)
    with pytest.raises(UserError, match="trained on arrays"):
        bias.decompose(run.folder)
    with pytest.raises(UserError, match=r"Give them again: test="):
        bias.decompose(run.folder, data=some)
    found = bias.decompose(run.folder, data=some, test=(x, y))
    assert len(found["training_bias"]) == 2
    estimate = bias.cross_validate(run.folder, data=some, folds=2)
    assert estimate["labels"] == 8


# --- folds over the few labels


def test_a_stop_inside_a_fold_names_the_run_that_it_belongs_to(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, take_steps = [], Loop.run

    def stop_the_second(loop: Loop, batches: Any) -> None:
        started.append(loop)
        if len(started) != 2:
            take_steps(loop, batches)

    monkeypatch.setattr(Loop, "run", stop_the_second)
    out = tmp_path / "run"
    options: dict[str, Any] = {"labels_per_class": 4, "settings": {"train.folds": 2}}
    with pytest.raises(KeyboardInterrupt):
        train_small(data, out, quiet=False, **options)
    told = " ".join(capsys.readouterr().err.split())
    assert f"stopped at step 0; to resume it: `selftrain.train` `resume=True` `out='{out}'`" in told
    done = train_small(data, out, resume=True)  # as it says
    assert done.results["cross_validated"] is not None


def split_of(corpus: Corpus, **options: Any) -> Split:
    return make_split(corpus, labels_per_class=options.pop("labels_per_class", None), **options)


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_every_label_is_held_out_once(data: Path, folds: int) -> None:
    corpus = Source.parse(str(data)).corpus()
    split = split_of(corpus, labels_per_class=5)
    parts = fold_splits(split, corpus, folds)
    assert np.array_equal(np.sort(np.concatenate([part.validation for part in parts])), split.labeled)
    assert {len(part.validation) for part in parts} <= {15 // folds, 15 // folds + 1}
    for part in parts:
        assert np.bincount(part.labels, minlength=3).min() >= 5 - -(-5 // folds)
        assert np.array_equal(np.union1d(part.labeled, part.validation), split.labeled)
        assert not np.intersect1d(part.validation, part.unlabeled).size  # not even without its label
        assert np.array_equal(np.union1d(part.unlabeled, part.validation), split.unlabeled)
        assert np.array_equal(corpus.labels[part.validation], part.validation_labels)


def test_impossible_folds_are_refused(tmp_path: Path) -> None:
    corpus = Source.parse(str(layout_1(tmp_path / "data"))).corpus()  # 1, 3 and 2 labels
    split = split_of(corpus)
    for folds in (1, 4):
        with pytest.raises(UserError, match=f"folds={folds}: expected 2 to 3"):
            fold_splits(split, corpus, folds)
    with pytest.raises(UserError, match="every class has a single label"):
        fold_splits(split_of(corpus, labels_per_class=1), corpus, 2)
    with pytest.raises(UserError, match=r"folds=4"):
        train_small(tmp_path / "data", tmp_path / "run", settings={"train.folds": 4})
    assert not (tmp_path / "run").exists()  # said before training


def test_all_labels_except_those_held_out(data: Path) -> None:
    corpus = Source.parse(str(data)).corpus()
    split = split_of(corpus, labels_per_class=2, validation_per_class=1)
    every = with_all_labels(split, corpus)
    assert np.array_equal(every.validation, split.validation)
    assert len(every.labeled) == 21
    assert np.array_equal(every.unlabeled, split.unlabeled)


def test_folds_give_an_estimate(tmp_path: Path) -> None:
    data = layout_1(tmp_path / "data")
    run = train_small(data, tmp_path / "run", steps=6)
    before = run.results
    assert before["cross_validated"] is None
    again = train_small(data, tmp_path / "run", steps=6, settings={"train.folds": 2}, resume=True)  # of a finished run
    results = again.results
    estimate = results["cross_validated"]
    parts = [selftrain.Run(run.folder / "folds" / f"{i}-of-2") for i in (1, 2)]
    accuracies = [part.results["accuracy"] for part in parts]
    assert estimate["accuracy"] == pytest.approx(np.mean(accuracies))
    assert estimate["accuracy_std"] == pytest.approx(np.std(accuracies, ddof=1))
    assert (estimate["folds"], estimate["labels"]) == (2, 5)
    assert estimate["per_class"][0] is None  # ant has one label only, and keeps it
    right = sum(n for part in parts for true, said, n in part.results["confusion"] if true == said == 1)
    assert estimate["per_class"][1] == pytest.approx(right / 3)
    corpus = Source.parse(str(data)).corpus()
    held_out = [load_split(part.folder / "split.json", corpus).validation for part in parts]
    assert len(np.intersect1d(held_out[0], held_out[1])) == 0
    for part in parts:
        assert part.results["evaluated_on"] == "validation"
        assert part.results["method"] == before["method"]
        assert part.results["cross_validated"] is None
    timeless = {"cross_validated", "seconds", "steps_per_second"}
    assert {k: v for k, v in results.items() if k not in timeless} == {
        k: v for k, v in before.items() if k not in timeless
    }
