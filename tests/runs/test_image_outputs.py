"""What a run writes: outputs image by image, results, metrics, the alarm about dead classes, curves."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import selftrain
import selftrain.runs.image_outputs
import selftrain.runs.training
from selftrain.engine import loggers
from selftrain.errors import UserError
from tests.folders import CLASSES, fill, layout_2, layout_3
from tests.runs.small_runs import train_small

pytestmark = pytest.mark.long


def outputs(run: selftrain.Run) -> dict[str, np.ndarray]:
    with np.load(run.folder / "outputs.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layout_2(tmp_path_factory.mktemp("data") / "data", per_class=8)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    out = tmp_path_factory.mktemp("run") / "run"
    return train_small(data, out, labels_per_class=2, method="dst(fixmatch(tau=0.4))", steps=12)


def test_outputs_are_the_predictions_of_the_saved_model(run: selftrain.Run, data: Path) -> None:
    said = outputs(run)
    for prefix in ("eval", "pool"):
        predictions = run.predict([str(data / name) for name in said[f"{prefix}_names"].tolist()])
        assert said[f"{prefix}_predicted"].tolist() == predictions.probabilities.argmax(axis=1).tolist()
        assert said[f"{prefix}_confidence"] == pytest.approx(predictions.confidence, abs=1e-3)
        second = np.argsort(-predictions.probabilities, axis=1)[:, 1]
        assert said[f"{prefix}_runner_up"].tolist() == second.tolist()
        assert said[f"{prefix}_confidence"].dtype == np.float16


def test_truth_in_outputs_is_the_hidden_one(run: selftrain.Run) -> None:
    said = outputs(run)
    labeled = {entry["path"] for entry in json.loads((run.folder / "split.json").read_text())["labeled"]}
    for name, truth in zip(said["pool_names"].tolist(), said["pool_truth"].tolist(), strict=True):
        assert truth == (-1 if name in labeled else CLASSES.index(name.split("/")[-2]))
    assert len(labeled) == 6
    assert len(said["pool_names"]) == 24
    assert {"pool_worst", "pool_pseudo"} <= said.keys()
    assert set(said["pool_worst"]) <= {0, 1, 2}


def test_results_add_up(run: selftrain.Run, data: Path) -> None:
    results, said = run.results, outputs(run)
    matrix = np.zeros((3, 3), int)
    for true, predicted, count in results["confusion"]:
        matrix[true, predicted] = count
    assert matrix.tolist() == run.evaluate(data)["confusion"]
    assert matrix.trace() / matrix.sum() == pytest.approx(results["accuracy"])
    assert results["labeled_prior"] == [2, 2, 2]
    assert results["pool_predicted"] == np.bincount(said["pool_predicted"], minlength=3).tolist()
    assert results["alarms"] == [CLASSES[k] for k in range(3) if matrix[:, k].sum() == 0]
    assert results["cross_validated"] is None
    assert 0 <= results["ece"] <= 1
    assert sum(count for count, *_ in results["calibration"]) == 12


def test_rows_have_every_number(run: selftrain.Run) -> None:
    for row in run.metrics:
        assert sum(row["pseudo_seen_true"]) <= 4 * 8
        for k in range(3):
            assert row["pseudo_right"][k] <= row["pseudo_kept_true"][k] <= row["pseudo_seen_true"][k]
        assert sum(row["pseudo_kept"]) <= sum(row["pseudo_predicted"]) == 4 * 8
        for name in ("worst_error", "head_agreement", "ece"):
            assert 0 <= row[name] <= 1
        assert row["alarms"] == [] or set(row["alarms"]) <= set(CLASSES)
    assert run.metrics[0]["pseudo_churn"] is not None  # 24 images in batches of 8: seen again in the fourth step


def test_large_sets_are_sampled(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftrain.runs.image_outputs, "CAP", 10)
    one, two = (
        train_small(data, tmp_path / name, labels_per_class=2, method=name, steps=2)
        for name in ("supervised", "fixmatch")
    )
    assert len(outputs(one)["eval_names"]) == len(outputs(one)["pool_names"]) == 10
    for name in ("eval_names", "pool_names"):
        assert outputs(one)[name].tolist() == outputs(two)[name].tolist()
    assert sum(count for *_, count in one.results["confusion"]) == 12  # the matrix is that of all
    assert sum(one.results["pool_predicted"]) == 10
    assert "pool_worst" not in outputs(one)


def test_unknown_numbers_are_null(tmp_path: Path) -> None:
    folder, labels = layout_3(tmp_path / "data")
    run = train_small(folder, tmp_path / "run", labels=labels, method="fixmatch(tau=0.3)")
    said, results, row = outputs(run), run.results, run.metrics[-1]
    assert not any(name.startswith("eval") for name in said)
    assert set(said["pool_truth"].tolist()) == {-1}
    for name in ("confusion", "ece", "calibration"):
        assert results[name] is None
    for name in ("pseudo_kept_true", "pseudo_right", "pseudo_seen_true", "ece", "predicted", "worst_error"):
        assert row[name] is None
    assert sum(results["pool_predicted"]) == 30
    assert sum(row["pseudo_predicted"]) == 32
    assert row["pseudo_churn"] is not None
    assert results["alarms"] == [CLASSES[k] for k, n in enumerate(results["pool_predicted"]) if n == 0]


def test_a_pool_without_unlabeled_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (12, 8, 8)).astype(np.uint8), np.arange(12) % 2
    settings = {"data.include_labeled": False}
    run = train_small((x, y), tmp_path / "run", test=(x, y), method="supervised", steps=2, settings=settings)
    assert run.results["pool_predicted"] is None
    assert set(outputs(run)) == {"eval_names", "eval_truth", "eval_predicted", "eval_confidence", "eval_runner_up"}


def test_a_dying_class_gives_one_warning(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([[4, 4, 4], [6, 6, 0], [6, 6, 0]])
    evaluate = selftrain.runs.training.Training.evaluate
    monkeypatch.setattr(
        selftrain.runs.training.Training, "evaluate", lambda *args: evaluate(*args) | {"predicted": next(counts)}
    )
    run = train_small(data, tmp_path / "run", labels_per_class=2, method="fixmatch", steps=12)
    assert [row["alarms"] for row in run.metrics] == [[], ["cat"], []]
    log = (run.folder / "log.txt").read_text()
    assert log.count("warning: step 8: class 'cat' is no longer predicted. Train with DST") == 1
    monkeypatch.undo()
    again = train_small(data, tmp_path / "run", labels_per_class=2, method="fixmatch", steps=12, resume=True)
    assert [row["alarms"] for row in again.metrics] == [[], ["cat"], []]


def test_tensorboard_has_the_rows(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_small(data, tmp_path / "run", labels_per_class=2, settings={"train.logger": "tensorboard"})
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    for name in ("accuracy", "loss", "worst_error", "pseudo_label_quantity", "ece"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row["step"], pytest.approx(row[name], rel=1e-5)) for row in run.metrics]
    assert events.Scalars("per_class/bee")[-1].value == pytest.approx(run.metrics[-1]["per_class"][1])
    assert "pseudo_kept" not in events.Tags()["scalars"]


def test_a_missing_logger_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    for kind in ("wandb", "tensorboard"):
        with pytest.raises(UserError, match=rf"`train.logger={kind}`: .*pip install 'selftrain\[{kind}\]'"):
            train_small(data, tmp_path / "run", labels_per_class=2, settings={"train.logger": kind})
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"`train\.logger=tensorbord`: expected one of none, tensorboard, wandb"):
        train_small(data, tmp_path / "run", labels_per_class=2, settings={"train.logger": "tensorbord"})


def test_wandb_gets_the_rows(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module stands in for it: the package may not be there."""
    calls: list[Any] = []

    class Stand:
        def __init__(self, **options: Any):
            calls.append(options)

        def log(self, numbers: dict[str, float], step: int) -> None:
            calls.append((step, numbers))

        def finish(self) -> None:
            calls.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=Stand))
    monkeypatch.setattr(loggers, "find_spec", lambda name: True)
    run = train_small(data, tmp_path / "run", labels_per_class=2, settings={"train.logger": "wandb"})
    options, *rows, status = calls
    assert options["dir"] == str(run.folder)
    assert (options["resume"], status) == ("allow", "finished")
    assert options["config"]["train"]["logger"] == "wandb"
    assert [step for step, _ in rows] == [4, 8]
    assert rows[-1][1]["accuracy"] == run.results["accuracy"]
    assert all(isinstance(value, float) for _, numbers in rows for value in numbers.values())


def test_wandb_without_a_login(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Error(Exception):
        pass

    def init(**_: Any) -> None:
        raise Error("No API key configured.")

    stand = types.SimpleNamespace(init=init, errors=types.SimpleNamespace(Error=Error))
    monkeypatch.setitem(sys.modules, "wandb", stand)
    monkeypatch.setattr(loggers, "find_spec", lambda name: True)
    with pytest.raises(UserError, match=r"`train\.logger=wandb`: No API key configured\. Log in .*`resume=True`"):
        train_small(data, tmp_path / "run", labels_per_class=2, settings={"train.logger": "wandb"})
    stand.init = lambda **_: types.SimpleNamespace(log=lambda numbers, step: None, finish=lambda: None)
    assert selftrain.train(out=tmp_path / "run", resume=True, quiet=True).results["steps"] == 8


def test_a_last_line_that_was_cut_short_is_ignored(data: Path, tmp_path: Path) -> None:
    run = train_small(data, tmp_path / "run", labels_per_class=2)
    file = run.folder / "metrics.jsonl"
    first, second = file.read_text().splitlines()
    file.write_text(f"{first}\n{second[:20]}")
    assert [row["step"] for row in run.metrics] == [4]
    file.write_text(f"{first[:20]}\n{second}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1: not a row of metrics"):
        _ = run.metrics


def test_reports_show_images_of_another_folder(tmp_path: Path) -> None:
    from selftrain.report.examples import find_examples
    from selftrain.report.run_data import read_runs

    photos, labels = layout_3(tmp_path / "photos")
    fill(tmp_path / "more", dict.fromkeys(CLASSES, 20), seed=5)
    run = train_small(photos, tmp_path / "run", labels=labels, unlabeled=tmp_path / "more")
    shown = find_examples(read_runs([run.folder], [photos, tmp_path / "more"])[0]).to_label
    others = [one for one in shown if one.name.startswith("unlabeled:")]
    assert others
    assert all(one.thumbnail for one in others)


def test_the_real_wandb_gets_the_rows(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train_small(data, tmp_path / "run", labels_per_class=2, settings={"train.logger": "wandb"})
    (record,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    assert record.stat().st_size > 0
