"""The demo's table and plot, from results as runs write them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from selftrain.bench.demo import METHODS, draw, make_table
from selftrain.bench.table import mean_and_deviation


def results(quality: float | None, ratio: float | str) -> dict[str, list[dict[str, Any]]]:
    run = {
        "accuracy": 0.9, "worst20_percent": 0.7, "imbalance_ratio": ratio, "pseudo_label_quality": quality,
        "seconds": 12.0, "per_class": [0.8, 1.0], "classes": ["0", "1"],
    }  # fmt: skip
    return {name: [run, {**run, "accuracy": 0.92}] for name in METHODS}


@pytest.mark.parametrize(("quality", "ratio", "words"), [(0.95, 1.25, "95.0"), (None, "inf", "infinite")])
def test_the_table(quality: float | None, ratio: float | str, words: str) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(make_table(results(quality, ratio)))
    text = console.export_text()
    for word in (*METHODS, "91.0 ± 1.4", words):
        assert word in text


def test_the_plot(tmp_path: Path) -> None:
    path = draw(results(0.9, 1.2), tmp_path / "demo.png")
    with Image.open(path) as plot:
        assert plot.size[0] > 800


def test_mean_and_deviation() -> None:
    assert mean_and_deviation([1.0]) == "1.0"
    assert mean_and_deviation([1.0, 3.0]) == "2.0 ± 1.4"
    assert mean_and_deviation([1.0, float("inf")]) == "infinite"
