"""Pages of results from finished runs: tables, paired comparisons and stamps; and their arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selftrain.bench import publish as module
from selftrain.bench.cells import Cell, cells_of
from selftrain.bench.publish import QUESTIONS, Question, find_runs, publish
from selftrain.bench.significance import Paired, compare
from selftrain.bench.spec import Bench, Row
from selftrain.cli.app import app
from selftrain.errors import UserError
from selftrain.files import write_json
from selftrain.runs.layout import RunLayout
from tests.docs.test_stamps import is_of_numbers, missing, tables

TINY = Bench(
    "two methods on digits",
    ("digits",),
    (Row("supervised"), Row("fixmatch"), Row("pseudo_label")),
    {"regime": "scratch", "data.labels_per_class": 2, "train.steps": 3},
    draws="each",
)
SCORES = {"supervised": (0.50, 0.60), "fixmatch": (0.70, 0.65), "pseudo_label": (0.40, 0.60)}
REVISION = "0123456789abcdef0123456789abcdef01234567"


def naive_p(differences: list[float]) -> float:
    """The sign-flip test, typed again: every choice of signs."""
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(differences))]  # fmt: skip
    return sum(total >= observed - 1e-9 for total in sums) / len(sums)


@pytest.mark.parametrize("differences", [[1.0], [1.0, 2.0, 3.0], [1.0, -1.0], [0.5, 0.2, -0.1, 0.4, 0.9], [0.0, 0.0]])
def test_the_sign_flip_test_by_hand(differences: list[float]) -> None:
    paired = Paired(tuple(differences))
    assert paired.p == pytest.approx(naive_p(differences))
    assert paired.wins == sum(d > 0 for d in differences)
    assert paired.losses == sum(d < 0 for d in differences)


def test_many_pairs_are_drawn() -> None:
    assert Paired((1.0,) * 20).p < 0.001
    assert Paired((1.0, -1.0) * 10).p > 0.9


def test_pairs_are_of_the_same_dataset_variant_and_seed() -> None:
    def cell(row: str, dataset: str, seed: int) -> Cell:
        return Cell(Row(row), dataset, seed, {})

    runs: dict[Cell, dict[str, Any]] = {
        cell("a", "x", 0): {"accuracy": 0.5},
        cell("b", "x", 0): {"accuracy": 0.75},
        cell("b", "x", 1): {"accuracy": 0.9},  # without a partner
        cell("a", "y", 0): {"accuracy": 0.9, "mean_per_class": 0.5, "metric": "mean_per_class"},
        cell("b", "y", 0): {"accuracy": 0.9, "mean_per_class": 0.25, "metric": "mean_per_class"},
        cell("a", "z", 0): {"accuracy": None},
        cell("b", "z", 0): {"accuracy": 0.1},
    }
    paired = compare(runs, "b", "a")
    assert paired is not None
    assert paired.differences == pytest.approx((25.0, -25.0))
    assert compare(runs, "b", "c") is None


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write results of the tiny bench as its runs would, and let one question be about it."""
    monkeypatch.setattr(module, "find_bench", lambda name: TINY)
    monkeypatch.setattr(module, "QUESTIONS", {"tiny": Question("Which one?", ("cpu/tiny",))})

    def write(seeds: int, revisions: tuple[str, ...] = (REVISION,)) -> Path:
        for i, cell in enumerate(cells_of(TINY, seeds)):
            accuracy = SCORES[cell.row.name][cell.seed]
            record = {"accuracy": accuracy, "metric": "accuracy", "worst20_percent": 0.1, "method": cell.row.name}
            environment = {"revision": revisions[i % len(revisions)]}
            run = RunLayout(cell.folder(tmp_path / "runs"))
            write_json(run.results, {**record, "environment": environment, "evaluated_on": "test"})
        return tmp_path / "runs"

    return write


def test_a_page_has_the_table_the_comparisons_and_the_stamp(tmp_path: Path, finished: Callable[..., Path]) -> None:
    out = finished(2)
    (page,), lacking = publish(tmp_path / "pages", out)
    assert (page.name, lacking) == ("tiny.md", [])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Which one?\n")
    assert "| fixmatch | 67.5 ± 3.5 |" in text
    assert "| fixmatch | supervised | +12.5 | 2 | 0 | 2 | 0.500 |" in text
    assert "| pseudo_label | supervised | -5.0 | 0 | 1 | 2 | 1.000 |" in text  # a loss, in the same table
    assert f"`selftrain bench cpu/tiny --seeds 2`, revision {REVISION}, 20" in text
    assert "several revisions" not in text
    found = [(line, table) for line, table in tables(text) if is_of_numbers(table)]
    assert found
    assert all(missing(text, line) == [] for line, _ in found)  # what the test of the documentation demands


def test_runs_of_several_revisions_are_said_to_be(tmp_path: Path, finished: Callable[..., Path]) -> None:
    (page,), _ = publish(tmp_path / "pages", finished(1, (REVISION, "a" * 40)))
    assert "**These runs come from several revisions.**" in page.read_text(encoding="utf-8")


def test_a_seed_that_is_not_finished_is_left_out(tmp_path: Path, finished: Callable[..., Path]) -> None:
    out = finished(2)
    RunLayout(cells_of(TINY, 2)[-1].folder(out)).results.unlink()
    found = find_runs("cpu/tiny", out)
    assert found is not None
    assert (found.seeds, len(found.runs)) == (1, 3)
    RunLayout(cells_of(TINY, 1)[0].folder(out)).results.unlink()
    assert find_runs("cpu/tiny", out) is None
    with pytest.raises(UserError, match="holds no finished bench"):
        publish(tmp_path / "pages", out)


def test_the_command(tmp_path: Path, finished: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--publish", str(tmp_path / "pages"), "--out", str(finished(1))]
    app(words, standalone_mode=False)
    assert f"page: {tmp_path / 'pages' / 'tiny.md'}" in capsys.readouterr().out


def test_every_question_names_benches_that_exist() -> None:
    from selftrain.bench.catalogue import BENCHES

    names = [bench for question in QUESTIONS.values() for bench in question.benches]
    assert set(names) <= set(BENCHES)
    assert len(names) == len(set(names))  # one page per question
