"""Real photographs, real weights: what a user does, at the smallest scale that shows it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import selftrain

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def ucmerced(real_data: Path) -> Path:
    return real_data / "ucmerced"


def files(folder: Path, start: int, stop: int) -> list[Path]:
    return [path for kind in sorted(folder.iterdir()) for path in sorted(kind.iterdir())[start:stop]]


def copy_to(paths: list[Path], folder: Path, *, by_class: bool) -> None:
    for path in paths:
        target = folder / path.parent.name / path.name if by_class else folder / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def finetune(data: Path, out: Path, **options: Any) -> selftrain.Run:
    settings = {"train.batch": 16, "train.unlabeled_batch": 16, "train.eval_every": 24, "network.bottleneck": 256}
    return selftrain.train(
        data, regime="finetune", backbone="lite0", size=64, steps=24, settings=settings, out=out, quiet=True, **options
    )


def test_finetune_on_the_three_layouts(ucmerced: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    copy_to(files(ucmerced / "train", 0, 4), first / "labeled", by_class=True)
    copy_to(files(ucmerced / "train", 4, 12), first / "unlabeled", by_class=False)
    copy_to(files(ucmerced / "test", 0, 4), first / "test", by_class=True)
    run = finetune(first, tmp_path / "1")
    assert run.results["labeled"] == 84
    assert run.results["accuracy"] > 2 / 21  # twice chance after two dozen steps

    run = finetune(ucmerced, tmp_path / "2", labels_per_class=4)
    assert run.results["unlabeled"] == 1680
    assert run.results["accuracy"] > 2 / 21

    third = tmp_path / "third"
    copy_to(files(ucmerced / "train", 0, 10), third / "shots", by_class=False)
    rows = [f"shots/{path.name},{path.parent.name}" for path in files(ucmerced / "train", 0, 4)]
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run = finetune(third, tmp_path / "3", labels=labels, test=ucmerced / "test")
    assert run.results["accuracy"] > 2 / 21
    assert len(run.predict(third).paths) == 210
