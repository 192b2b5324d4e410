"""The model card: what it says, that the hub can read it, and that names of classes cannot break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from selftrain.runs.model_readme import interval, model_readme

CARD: dict[str, Any] = {
    "classes": ["ant", "<img src=x>", "a|b_*c*"], "backbone": "lite0", "preprocessing": {"size": 128}, "weights": "abc",
    "method": "dst(fixmatch)", "regime": "frozen", "features": 0,
}  # fmt: skip
RESULTS: dict[str, Any] = {
    "method": "dst(fixmatch)", "dataset": "my: photos\n---", "labeled": 12, "unlabeled": 300, "accuracy": 0.8,
    "mean_per_class": 0.8, "ece": 0.05, "evaluated_on": "test", "per_class": [1.0, 1.0, 0.4],
    "labeled_prior": [4, 4, 4], "confusion": [[0, 0, 10], [1, 1, 10], [2, 2, 4], [2, 0, 6]],
    "split_hash": "f00d", "settings_hash": "beef",
}  # fmt: skip


def header(text: str) -> Any:
    start, between, rest = text.split("---\n", 2)
    assert start == ""
    assert rest.startswith("\n# ")
    return yaml.safe_load(between)


def test_the_hub_can_read_the_header() -> None:
    found = header(model_readme(RESULTS, CARD))
    assert found["pipeline_tag"] == "image-classification"
    assert {"selftrain", "dst", "fixmatch"} <= set(found["tags"])
    (entry,) = found["model-index"]
    (result,) = entry["results"]
    assert result["dataset"]["name"] == RESULTS["dataset"]
    assert {one["name"]: one["value"] for one in result["metrics"]}["Accuracy"] == 0.8


def test_the_card_says_how_good_the_model_is() -> None:
    text = model_readme(RESULTS, CARD)
    low, high = interval(0.8 * 30, 30)
    assert f"80.0% (90% interval {100 * low:.1f}% to {100 * high:.1f}%, 30 test images)" in text
    assert "| 4 of 10 |" in text
    assert "ant (4)" in text
    assert "f00d" in text
    assert "not calibrated" in text
    assert "Probabilities are calibrated" in model_readme(RESULTS, {**CARD, "temperature": [1.2, 1.2, 1.2]})


def test_names_are_shown_as_they_are() -> None:
    text = model_readme(RESULTS, CARD).split("---\n", 2)[2]
    assert "<img" not in text
    assert r"a\|b\_\*c\*" in text


def test_without_a_test_set_the_estimate_is_shown() -> None:
    without = {**RESULTS, "accuracy": None, "confusion": None, "ece": None}
    assert "accuracy of this model is not known" in model_readme(without, CARD)
    estimated = {"accuracy": 0.7, "low": 0.6, "high": 0.8, "level": 0.9, "labels": 12}
    assert "70.0% (90% interval 60.0% to 80.0%)" in model_readme({**without, "estimated": estimated}, CARD)
    assert "model-index" not in header(model_readme(without, CARD))
    assert "run folder was not there" in model_readme({}, CARD)


def test_the_card_says_what_happens_to_images_of_no_class() -> None:
    assert "always names one of its" in model_readme(RESULTS, CARD)
    with_novelty = model_readme(RESULTS, {**CARD, "checksums": {"novelty.safetensors": "0"}})
    assert "get the label `unknown`" in with_novelty
    assert "always names" not in with_novelty


@pytest.mark.parametrize(("right", "n"), [(0, 0), (0, 5), (5, 5), (7, 10)])
def test_intervals_hold_the_share(right: int, n: int) -> None:
    low, high = interval(right, n)
    assert 0 <= low <= (right / n if n else 0) <= high <= 1


@pytest.mark.long
def test_every_run_writes_one(finished: Path) -> None:
    found = header((finished / "model" / "README.md").read_text())
    assert found["library_name"] == "selftrain"
