"""The paper's hyper-parameters, as docs/results/protocol.md lists them; and what a dry run says of their cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from selftrain.bench.catalogue import find_bench
from selftrain.bench.cells import Cell, cells_of
from selftrain.bench.dry_run import NOT_RUN, cost_of, describe, passes_of, plan
from selftrain.bench.paper import BACKBONES, PAPER
from selftrain.bench.spec import Row
from selftrain.cli.app import app
from selftrain.config.options import convert, field_kinds, flatten
from selftrain.methods import METHODS
from selftrain.methods.spelling import usual_values
from selftrain.runs.resolve import resolve

PAGE = Path(__file__).parents[2] / "docs" / "results" / "protocol.md"
SCRATCH = ("paper/table1",)
FINETUNED = tuple(name for name in PAPER if name not in SCRATCH)


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def values_of(bench: str, setting: str) -> set[str]:
    """Return the values of a setting in all runs of a bench."""
    found = set()
    for cell in cells_of(find_bench(bench), 1):
        settings, _ = resolve({"data.path": cell.dataset, "method": cell.row.method, **cell.settings})
        found.add(str(flatten(asdict(settings))[setting]))
    return found


@pytest.mark.parametrize(("heading", "benches"), [("Training from scratch", SCRATCH), ("Fine-tuning", FINETUNED)])
def test_every_run_has_the_papers_settings(heading: str, benches: tuple[str, ...]) -> None:
    rows = table(heading)
    assert len(rows) >= 9
    assert all(f"`{bench}`" in PAGE.read_text(encoding="utf-8") for bench in benches)
    for said, setting, allowed in rows:
        wanted = {str(_plain(word)) for word in allowed.split(", ")}
        for bench in benches:
            assert {str(_plain(value)) for value in values_of(bench, setting.strip("`"))} <= wanted, (bench, said)


def _plain(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word


def test_every_dataset_has_the_papers_backbone() -> None:
    expected = {"cifar10": "wrn-28-2", "svhn": "wrn-28-2", "cifar100": "wrn-28-8", "stl10": "wrn-37-2"}
    assert dict(BACKBONES) == expected
    for cell in cells_of(find_bench("paper/table1"), 1):
        assert cell.settings["network.backbone"] == expected[cell.dataset]


def test_every_option_is_the_papers() -> None:
    rows = table("Options of methods")
    assert len(rows) >= 20
    for said, option, fixed, searched in rows:
        name, _, words = option.strip("`").partition(".")
        key, _, where = words.partition(" ")
        cls, regime = METHODS[name], where.strip("()") or "finetune"
        kind = field_kinds(cls)[key]
        if fixed:
            assert usual_values(cls, regime)[key] == convert(fixed, kind), said
        if searched:
            assert list(cls.grid[key]) == [convert(word, kind) for word in searched.split(", ")], said


def test_the_cost_of_a_backbone_is_counted() -> None:
    cost = cost_of("wrn-28-2", 32, 3)
    assert cost.weights == pytest.approx(1.47e6, rel=0.01)  # as published, without the head
    assert cost.flops == pytest.approx(2 * 0.21e9, rel=0.1)
    assert cost_of("wrn-28-2", 64, 3).flops == pytest.approx(4 * cost.flops, rel=0.01)
    assert 1e6 < cost.kept < 1e7


@pytest.mark.parametrize(
    ("method", "labeled", "unlabeled", "free"),
    [("supervised", 1, 0, 0), ("fixmatch", 1, 1, 1), ("dst(fixmatch)", 1, 2, 0), ("remixmatch", 1, 5, 1)],
)
def test_the_passes_of_a_step_are_counted(method: str, labeled: int, unlabeled: int, free: int) -> None:
    passes = passes_of(method)
    assert (passes.labeled, passes.unlabeled, passes.unlabeled_free) == (labeled, unlabeled, free)


def test_a_dry_run_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "paper/table1", "--dry-run", "--seeds", "1", "--methods", "fixmatch", "--datasets", "cifar10"]
    app([*words, "--out", str(tmp_path / "runs"), "--tflops", "10"], standalone_mode=False)
    text = capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    row = next(line for line in text.splitlines() if line.startswith("| fixmatch on cifar10"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:8] == ["scratch", "wrn-28-2", "32", "1,000,000", "64 + 448", "0.03", "0.0005"]
    flops = (3 * (64 + 448) + 448) * cost_of("wrn-28-2", 32, 3).flops
    assert float(cells[8]) == pytest.approx(flops / 1e12, abs=0.01)
    assert float(cells[10]) == pytest.approx(flops * 1e6 / 10e12 / 3600, abs=0.1)
    assert NOT_RUN in text


def test_frozen_runs_take_minutes() -> None:
    cell = Cell(Row("fixmatch"), "digits", 0, {"regime": "frozen", "network.backbone": "lite0"})
    assert plan(cell).cost is None
    assert "minutes" in describe([cell], 20)


def test_rows_are_chosen_by_their_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "tune/pile/natural", "--dry-run", "--seeds", "1", "--datasets", "ucmerced"]
    app([*words, "--methods", "default, one crop", "--out", str(tmp_path / "runs")], standalone_mode=False)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| default")]
    assert [row.split(" on ")[0] for row in rows] == ["| default, one crop"]
