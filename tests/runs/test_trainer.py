"""A whole run through the Python interface: layouts, repeatability, honesty, settings, the run folder."""

from __future__ import annotations

import json
import shutil
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
from selftrain.runs.model import load_model
from tests.folders import CLASSES, layout_1, layout_2, layout_3

QUICK = {"train.batch": 6, "train.unlabeled_batch": 8, "data.workers": 0, "train.eval_every": 4}


def quick(data: Any, out: Path, **options: Any) -> selftrain.Run:
    settings = {**QUICK, **options.pop("settings", {})}
    options = {"backbone": "wrn-tiny", "steps": 8, "quiet": True, **options}
    return selftrain.train(data, out=out, settings=settings, **options)


def weights(run: selftrain.Run) -> dict[str, torch.Tensor]:
    return load_model(run.folder / "model")[0].state_dict()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("method", ["supervised", "pseudo_label", "fixmatch", "dst(fixmatch)"])
def test_layout_1(tmp_path: Path, method: str) -> None:
    run = quick(layout_1(tmp_path / "data"), tmp_path / "run", method=method)
    results = run.results
    assert results["evaluated_on"] == "test"
    assert results["labeled"] == 6
    assert results["unlabeled"] == 30  # include_labeled: the 24 and the 6
    assert len(results["per_class"]) == 3
    assert [row["step"] for row in run.metrics] == [4, 8]


def test_layout_2(tmp_path: Path) -> None:
    run = quick(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
    assert run.results["labeled"] == 6
    assert run.results["unlabeled"] == 36


def test_layout_3(tmp_path: Path) -> None:
    data, labels = layout_3(tmp_path / "data")
    run = quick(data, tmp_path / "run", labels=labels)
    results = run.results
    assert results["labeled"] == 6
    assert results["evaluated_on"] is None
    for figure in ("accuracy", "mean_per_class", "per_class", "worst10", "worst20", "imbalance_ratio"):
        assert results[figure] is None  # can't be known, so not invented
    assert run.predict(data / "shots").labels


def test_the_run_folder_is_as_specified(tmp_path: Path) -> None:
    run = quick(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2)
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.yaml", "split.json", "metrics.jsonl", "results.json", "outputs.npz", "checkpoints", "model", "log.txt",
    }  # fmt: skip
    assert {path.name for path in (run.folder / "model").iterdir()} == {"model.safetensors", "model.json"}
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
        quick(data, tmp_path / name, labels_per_class=2, seed=seed) for name, seed in (("1", 0), ("2", 0), ("3", 1))
    )
    assert same(weights(one), weights(two))
    assert not same(weights(one), weights(other))
    assert one.results["split_hash"] == other.results["split_hash"]  # the draw of labels has a seed of its own


def test_a_config_repeats_its_run(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    run = quick(data, tmp_path / "1", labels_per_class=2, method="dst(fixmatch(tau=0.6))", seed=3)
    again = selftrain.train(config=run.folder / "config.yaml", out=tmp_path / "2", quiet=True)
    assert same(weights(run), weights(again))
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert config["method"].startswith("dst(fixmatch(")
    assert "tau=0.6" in config["method"]


def test_hidden_labels_change_no_trained_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = layout_2(tmp_path / "data")
    honest = quick(data, tmp_path / "honest", labels_per_class=2, method="dst(fixmatch(tau=0.4))")

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
    blind = quick(data, tmp_path / "blind", labels_per_class=2, method="dst(fixmatch(tau=0.4))")
    assert same(weights(honest), weights(blind))
    assert honest.results["pseudo_label_quality"] != blind.results["pseudo_label_quality"]  # but observers see it


def test_test_images_change_no_trained_weight(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    with_test = quick(data, tmp_path / "1", labels_per_class=2)
    (data / "test").rename(tmp_path / "elsewhere")
    without = quick(data, tmp_path / "2", labels_per_class=2)
    assert without.results["evaluated_on"] is None
    assert same(weights(with_test), weights(without))


def test_a_method_of_ones_own(tmp_path: Path) -> None:
    run = quick(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2, method=DST(FixMatch(tau=0.5)))
    assert "tau=0.5" in run.results["method"]


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    x = (rng.normal(60, 20, (40, 8, 8)) + 100 * y[:, None, None]).clip(0, 255).astype(np.uint8)
    known = np.where(np.arange(40) < 8, y, -1)
    run = quick((x, known), tmp_path / "run", test=(x, y), steps=30)
    assert run.results["accuracy"] > 0.8
    assert run.evaluate(x, y)["accuracy"] == run.results["accuracy"]
    assert len(run.predict(x)) == 40


@pytest.mark.parametrize(
    "method", ["supervised", "fixmatch(tau=0.8)", "dst(fixmatch(tau=0.8))", "pseudo_label(tau=0.8)"]
)
def test_methods_learn_digits(tmp_path: Path, method: str) -> None:
    run = quick(
        "digits", tmp_path / "run", method=method, labels_per_class=4, steps=60,
        settings={"train.batch": 20, "train.unlabeled_batch": 32, "optim.ema": 0.9, "train.eval_every": 60},
    )  # fmt: skip
    assert run.results["accuracy"] > 0.5


def test_predictions_are_those_of_the_evaluated_model(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    run = quick(data, tmp_path / "run", labels_per_class=2, steps=20)
    predictions = run.predict(data / "test")
    truth = [path.split("/")[0] for path in predictions.paths]
    accuracy = np.mean([label == true for label, true in zip(predictions.labels, truth, strict=True)])
    assert accuracy == pytest.approx(run.results["accuracy"])
    assert run.evaluate(data)["accuracy"] == pytest.approx(run.results["accuracy"])
    assert predictions.probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_one_class_with_one_label_and_two_classes(tmp_path: Path) -> None:
    data = layout_1(tmp_path / "data")
    for part in ("labeled", "test"):
        for file in (data / part / "cat").iterdir():
            file.unlink()
        (data / part / "cat").rmdir()
    run = quick(data, tmp_path / "run")
    assert run.results["labeled"] == 4
    assert run.results["worst10"] is not None


def test_resume_refuses_other_settings(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    quick(data, tmp_path / "run", labels_per_class=2)
    with pytest.raises(UserError, match=r"was started with train.steps=8, not 99"):
        quick(data, tmp_path / "run", labels_per_class=2, steps=99, resume=True)


def test_resume_notices_changed_data(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    quick(data, tmp_path / "run", labels_per_class=2)
    next((data / "train" / "ant").iterdir()).unlink()
    with pytest.raises(UserError, match="changed since this run was started"):
        quick(data, tmp_path / "run", labels_per_class=2, resume=True)


def test_resume_notices_other_pictures_of_the_same_names(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    quick(data, tmp_path / "run", labels_per_class=2)
    shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
    quick(tmp_path / "copy", tmp_path / "run", labels_per_class=2, resume=True)  # wherever they lie, however old
    ant, bee = sorted((data / "train" / "ant").iterdir())[0], sorted((data / "train" / "bee").iterdir())[0]
    content = ant.read_bytes()
    ant.write_bytes(bee.read_bytes())
    bee.write_bytes(content)
    with pytest.raises(UserError, match="train images: some are others, were edited, or are gone"):
        quick(data, tmp_path / "run", labels_per_class=2, resume=True)


def test_one_process_a_run_folder(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    inside: list[str] = []

    def watch(row: dict[str, Any]) -> None:
        for resume in (True, False):
            with pytest.raises(UserError) as error:
                quick(data, tmp_path / "run", labels_per_class=2, resume=resume)
            inside.append(str(error.value))

    run = quick(data, tmp_path / "run", labels_per_class=2, watch=watch)
    assert "another process is training there" in inside[0]
    assert "exists already" in inside[1]
    assert not (run.folder / ".lock").exists()
    (run.folder / ".lock").touch()  # as a kill leaves it
    quick(data, tmp_path / "run", labels_per_class=2, resume=True)


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    run = quick(data, tmp_path / "run", labels_per_class=2)
    before = run.results
    again = quick(data, tmp_path / "run", labels_per_class=2, resume=True)
    assert again.results["accuracy"] == before["accuracy"]
    assert len(again.metrics) == 2


def test_a_diverging_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="loss is not finite"):
        quick(layout_2(tmp_path / "data"), tmp_path / "run", labels_per_class=2, settings={"optim.lr": 1e30})
