"""A whole run through the Python interface: layouts, repeatability, honesty, settings, the run folder."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import selftrain
import selftrain.runs.problem
from selftrain.data.corpus import Corpus
from selftrain.data.source import Source
from selftrain.data.split import make_split
from selftrain.errors import UserError
from selftrain.methods import DST, FixMatch
from tests.folders import CLASSES, layout_1, layout_2, layout_3
from tests.runs.small_runs import same_weights, train_small, weights

pytestmark = pytest.mark.long


@pytest.mark.parametrize("method", ["supervised", "pseudo_label", "fixmatch", "dst(fixmatch)"])
def test_layout_1(tmp_path: Path, method: str) -> None:
    run = train_small(layout_1(tmp_path / "data"), tmp_path / "run", method=method)
    results = run.results
    assert results["evaluated_on"] == "test"
    assert results["labeled"] == 6
    assert results["unlabeled"] == 30  # include_labeled: the 24 and the 6
    assert len(results["per_class"]) == 3
    assert [row["step"] for row in run.metrics] == [4, 8]


def test_layout_2(tmp_path: Path) -> None:
    run = train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
    assert run.results["labeled"] == 6
    assert run.results["unlabeled"] == 36


def test_layout_3(tmp_path: Path) -> None:
    data, labels = layout_3(tmp_path / "data")
    run = train_small(data, tmp_path / "run", labels=labels)
    results = run.results
    assert results["labeled"] == 6
    assert results["evaluated_on"] is None
    for figure in ("accuracy", "mean_per_class", "per_class", "worst10", "worst20", "imbalance_ratio"):
        assert results[figure] is None  # can't be known, so not invented
    assert run.predict(data / "shots").labels


def test_the_run_folder_is_as_specified(tmp_path: Path) -> None:
    run = train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.yaml", "split.json", "metrics.jsonl", "results.json", "outputs.npz", "checkpoints", "model", "log.txt",
        "thumbnails.npz",
    }  # fmt: skip
    assert {path.name for path in (run.folder / "model").iterdir()} == {"README.md", "model.safetensors", "model.json"}
    results = json.loads((run.folder / "results.json").read_text())
    for key in (
        "method", "dataset", "seed", "steps", "seconds", "steps_per_second", "accuracy", "mean_per_class", "per_class",
        "worst10", "worst20", "imbalance_ratio", "pseudo_label_quantity", "pseudo_label_quality", "evaluated_on",
    ):  # fmt: skip
        assert key in results
    card = json.loads((run.folder / "model" / "model.json").read_text())
    assert card["classes"] == list(CLASSES)
    assert "step 8/8" in (run.folder / "log.txt").read_text()


def test_the_same_command_twice_gives_the_same_weights(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    one, two, other = (
        train_small(data, tmp_path / name, labels_per_class=2, seed=seed)
        for name, seed in (("1", 0), ("2", 0), ("3", 1))
    )
    assert same_weights(weights(one), weights(two))
    assert not same_weights(weights(one), weights(other))
    assert one.results["split_hash"] == other.results["split_hash"]  # the draw of labels has a seed of its own


def test_a_config_repeats_its_run(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    run = train_small(data, tmp_path / "1", labels_per_class=2, method="dst(fixmatch(tau=0.6))", seed=3)
    again = selftrain.train(config=run.folder / "config.yaml", out=tmp_path / "2", quiet=True)
    assert same_weights(weights(run), weights(again))
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["method"].startswith("dst(fixmatch(")
    assert "tau=0.6" in config["method"]


def test_hidden_labels_change_no_trained_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = layout_2(tmp_path / "data")
    honest = train_small(data, tmp_path / "honest", labels_per_class=2, method="dst(fixmatch(tau=0.4))")

    load = Source.corpus

    def with_other_truth(source: Source, **options: Any) -> Corpus:
        corpus = load(source, **options)
        split = make_split(corpus, labels_per_class=2)
        hidden = np.setdiff1d(np.arange(len(corpus.images)), split.labeled)
        labels = corpus.labels.copy()
        labels[hidden] = np.random.default_rng(0).permutation(labels[hidden])
        corpus = replace(corpus, labels=labels, truth=labels)
        monkeypatch.setattr(selftrain.runs.problem, "make_split", lambda *_, **__: split)
        return corpus

    monkeypatch.setattr(Source, "corpus", with_other_truth)
    blind = train_small(data, tmp_path / "blind", labels_per_class=2, method="dst(fixmatch(tau=0.4))")
    assert same_weights(weights(honest), weights(blind))
    assert honest.results["pseudo_label_quality"] != blind.results["pseudo_label_quality"]  # but observers see it


def test_test_images_change_no_trained_weight(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    with_test = train_small(data, tmp_path / "1", labels_per_class=2)
    (data / "test").rename(tmp_path / "elsewhere")
    without = train_small(data, tmp_path / "2", labels_per_class=2)
    assert without.results["evaluated_on"] is None
    assert same_weights(weights(with_test), weights(without))


def test_a_method_object(tmp_path: Path) -> None:
    run = train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2, method=DST(FixMatch(tau=0.5)))
    assert "tau=0.5" in run.results["method"]


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    x = (rng.normal(60, 20, (40, 8, 8)) + 100 * y[:, None, None]).clip(0, 255).astype(np.uint8)
    known = np.where(np.arange(40) < 8, y, -1)
    run = train_small((x, known), tmp_path / "run", test=(x, y), steps=30)
    assert run.results["accuracy"] > 0.8
    assert run.evaluate(x, y)["accuracy"] == run.results["accuracy"]
    assert len(run.predict(x)) == 40


@pytest.mark.parametrize(
    "method", ["supervised", "fixmatch(tau=0.8)", "dst(fixmatch(tau=0.8))", "pseudo_label(tau=0.8)"]
)
def test_methods_learn_digits(tmp_path: Path, method: str) -> None:
    run = train_small(
        "digits", tmp_path / "run", method=method, labels_per_class=4, steps=60,
        settings={"train.batch": 20, "train.unlabeled_batch": 32, "optim.ema": 0.9, "train.eval_every": 60},
    )  # fmt: skip
    assert run.results["accuracy"] > 0.5


def test_predictions_are_those_of_the_evaluated_model(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    run = train_small(data, tmp_path / "run", labels_per_class=2, steps=20)
    predictions = run.predict(data / "test")
    truth = [path.split("/")[0] for path in predictions.paths]
    accuracy = np.mean([label == true for label, true in zip(predictions.labels, truth, strict=True)])
    assert accuracy == pytest.approx(run.results["accuracy"])
    assert run.evaluate(data)["accuracy"] == pytest.approx(run.results["accuracy"])
    assert predictions.probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_two_classes_one_of_them_with_a_single_label(tmp_path: Path) -> None:
    data = layout_1(tmp_path / "data")
    for part in ("labeled", "test"):
        for file in (data / part / "cat").iterdir():
            file.unlink()
        (data / part / "cat").rmdir()
    run = train_small(data, tmp_path / "run")
    assert run.results["labeled"] == 4
    assert run.results["worst10"] is not None


def test_resume_refuses_other_settings(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    train_small(data, tmp_path / "run", labels_per_class=2)
    with pytest.raises(UserError, match=r"was started with train.steps=8, not 99"):
        train_small(data, tmp_path / "run", labels_per_class=2, steps=99, resume=True)


def test_resume_notices_changed_data(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    train_small(data, tmp_path / "run", labels_per_class=2)
    next((data / "train" / "ant").iterdir()).unlink()
    with pytest.raises(UserError, match="changed since this run was started"):
        train_small(data, tmp_path / "run", labels_per_class=2, resume=True)


def test_resume_notices_changed_images_of_the_same_names(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    train_small(data, tmp_path / "run", labels_per_class=2)
    shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
    train_small(tmp_path / "copy", tmp_path / "run", labels_per_class=2, resume=True)  # wherever they lie, however old
    ant, bee = sorted((data / "train" / "ant").iterdir())[0], sorted((data / "train" / "bee").iterdir())[0]
    content = ant.read_bytes()
    ant.write_bytes(bee.read_bytes())
    bee.write_bytes(content)
    with pytest.raises(UserError, match="some train images were replaced, edited or removed"):
        train_small(data, tmp_path / "run", labels_per_class=2, resume=True)


def test_one_process_per_run_folder(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    inside: list[str] = []

    def watch(row: dict[str, Any]) -> None:
        for resume in (True, False):
            with pytest.raises(UserError) as error:
                train_small(data, tmp_path / "run", labels_per_class=2, resume=resume)
            inside.append(str(error.value))

    run = train_small(data, tmp_path / "run", labels_per_class=2, watch=watch)
    assert "another process is training there" in inside[0]
    assert "exists already" in inside[1]
    assert "`overwrite=True`" in inside[1]
    assert not (run.folder / ".lock").exists()
    (run.folder / ".lock").touch()  # as a kill leaves it
    train_small(data, tmp_path / "run", labels_per_class=2, resume=True)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    run = train_small(data, tmp_path / "run", labels_per_class=2)
    before = run.results
    again = train_small(data, tmp_path / "run", labels_per_class=2, resume=True)
    assert again.results["accuracy"] == before["accuracy"]
    assert len(again.metrics) == 2


def test_a_diverging_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not finite at step 2"):
        train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2, settings={"optim.lr": 1e30})


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads before the call, one inside: two spinning threads would crawl beside another test."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_call_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2, settings={"train.threads": 1})
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.rand(3), expected)
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.usefixtures("two_threads")
def test_a_failing_call_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    settings = {"optim.lr": 1e30, "train.threads": 1}
    with pytest.raises(UserError, match="is not finite at step 2"):
        train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2, settings=settings)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_a_resumed_run_neither_gains_nor_loses_its_test_set(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    (data / "test").rename(tmp_path / "test")
    train_small(data, tmp_path / "run", labels_per_class=2)
    with pytest.raises(UserError, match=r"was started with data\.test=None, not .*/test"):
        train_small(data, tmp_path / "run", labels_per_class=2, test=tmp_path / "test", resume=True)


def test_arrays_are_tested_on_arrays_only(tmp_path: Path) -> None:
    x, y = np.zeros((8, 8, 8), np.uint8), np.arange(8) % 2
    with pytest.raises(UserError, match="`test`: `data` is a pair of arrays"):
        train_small((x, y), tmp_path / "run", test=tmp_path)
    with pytest.raises(UserError, match="`settings`: 3 is not the name of a setting"):
        train_small((x, y), tmp_path / "run", settings={3: 4})


def test_a_file_is_not_taken_for_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match="exists and is not a folder"):
        train_small(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
