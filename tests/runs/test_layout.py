"""The run folder: records are read as they were written, older and damaged folders give clear answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import selftrain
from selftrain.errors import UserError
from selftrain.runs.layout import (
    AMOUNTS,
    MEASURES,
    SHARES,
    Compared,
    GuardRecord,
    JunkScreening,
    MetricsRow,
    ModelLayout,
    PoolPrior,
    Results,
    RunLayout,
)
from tests.docs.test_docs import ROOT


def test_rows_and_results_come_back(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    run.write_metrics([{"step": 1, "imbalance_ratio": float("inf"), "ece": float("nan")}])
    run.append_metrics({"step": 2})
    assert run.read_metrics() == ([{"step": 1, "imbalance_ratio": "inf", "ece": None}, {"step": 2}], False)
    run.write_results({"method": "fixmatch", "worst10": np.float32(0.5)})
    assert run.read_results() == {"method": "fixmatch", "worst10": 0.5}
    run.write_outputs({"pool_truth": np.arange(3)})
    assert run.read_outputs()["pool_truth"].tolist() == [0, 1, 2]


def test_an_empty_folder_has_empty_records(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    assert run.read_metrics() == ([], False)
    assert (run.read_results(), run.read_split(), run.read_outputs(), run.read_reference()) == ({}, {}, {}, None)
    assert not run.exists
    assert not run.finished
    with pytest.raises(UserError, match=r"not a run folder \(no config.yaml in it\)"):
        run.check()
    with pytest.raises(UserError, match=r"not a run folder \(the folder does not exist\)"):
        RunLayout(tmp_path / "none").check()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    run.metrics.write_text('{"step": 1}\n{"ste')  # as a kill leaves it
    assert run.read_metrics() == ([{"step": 1}], True)
    for line in ("[]", '{"loss": 1}', "nonsense"):
        run.metrics.write_text(f"{line}\n")
        with pytest.raises(UserError, match=r"metrics\.jsonl, line 1: not a row of metrics"):
            run.read_metrics()
    run.results.write_text("[1]")
    with pytest.raises(UserError, match=r"results\.json: expected a record, found a list"):
        run.read_results()
    run.outputs.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"outputs\.npz: not a file written by numpy.savez"):
        run.read_outputs()


def test_a_model_folder_may_stand_alone(tmp_path: Path) -> None:
    assert RunLayout(tmp_path).model == tmp_path / "model"
    ModelLayout(tmp_path).card.write_text("{}")
    assert RunLayout(tmp_path).model == tmp_path


def test_measures_have_one_list() -> None:
    columns = set(get_type_hints(Results))
    assert set(MEASURES) <= columns & set(get_type_hints(MetricsRow))
    assert set(SHARES) <= set(MEASURES)
    assert set(AMOUNTS) <= columns


def test_the_page_about_run_folders_has_every_column() -> None:
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9]+)`", page))
    assert set(get_type_hints(Results)) | set(get_type_hints(MetricsRow)) <= named


@pytest.mark.parametrize("record", [PoolPrior, JunkScreening, GuardRecord])
def test_the_page_about_run_folders_explains_the_pool_and_the_guard(record: type) -> None:
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    page = page.partition("### prior, screening and guard")[2].partition("\n## ")[0]
    explained = {name for line in page.splitlines() for name in re.findall(r"`([a-z_0-9]+)`", line.split(" | ")[0])}
    assert set(get_type_hints(record)) <= explained


def test_a_finished_run_has_exactly_the_columns_of_the_record(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert set(results) == set(get_type_hints(Results))
    row = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    losses = {name for name in row if name.startswith("loss_")}
    assert losses
    assert set(row) - losses == set(get_type_hints(MetricsRow))


def test_a_run_on_fixed_features_has_the_records_of_its_pool_and_its_guard(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(3, 8))[y] + 0.3 * rng.normal(size=(60, 8))).astype(np.float32)
    small = {"train.steps": 2, "train.batch": 4, "train.unlabeled_batch": 8, "network.bottleneck": 8}
    run = selftrain.train(
        (x[:45], y[:45]), out=tmp_path / "run", test=(x[45:], y[45:]), labels_per_class=4, quiet=True, settings=small
    )
    results: Mapping[str, Any] = RunLayout(run.folder).read_results()
    for name, record in (("prior", PoolPrior), ("screening", JunkScreening), ("guard", GuardRecord)):
        assert set(results[name]) == set(get_type_hints(record))
    for model in ("labels_only", "self_trained"):
        assert set(results["guard"][model]) == set(get_type_hints(Compared))
    assert all(0 <= results["guard"][model]["accuracy"] <= 1 for model in ("labels_only", "self_trained"))
    assert len(results["prior"]["pool"]) == len(results["prior"]["labels"]) == 3
