"""Twenty steps of cells of the paper's benches, on stand-ins of their datasets and backbones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from selftrain.bench.catalogue import find_bench
from selftrain.bench.cells import cells_of
from selftrain.bench.paper import PAPER, SCRATCH_DATASETS, TRANSFER_DATASETS
from selftrain.bench.smoke import BACKBONES, STEPS, StandIn, small, smoke, stand_ins
from selftrain.cli.app import app
from selftrain.console import Reporter
from selftrain.data.images import ArrayImages, FileImages
from selftrain.data.sources.named import DATASETS
from selftrain.runs.resolve import resolve


@pytest.mark.parametrize("name", [*SCRATCH_DATASETS, *TRANSFER_DATASETS])
def test_a_stand_in_has_the_shape_of_its_dataset(name: str, tmp_path: Path) -> None:
    spec = DATASETS[name]
    parts = StandIn(spec, 6, tmp_path)(tmp_path)
    assert len(parts.classes) == spec.classes
    assert np.bincount(parts.labels[parts.labels >= 0]).tolist() == [6] * spec.classes
    assert bool((parts.labels < 0).any()) == bool(spec.unlabeled)
    if spec.regime == "scratch":
        assert isinstance(parts.images, ArrayImages)
        assert parts.images.pixels.shape[1:] == (spec.channels, spec.size, spec.size)
    else:
        assert isinstance(parts.images, FileImages)
        assert parts.images.load(0).size == (40, 30)


def test_stand_ins_leave_the_table_of_datasets_as_it_was(tmp_path: Path) -> None:
    before = dict(DATASETS)
    with stand_ins(["pets", "digits", "a folder"], 3, tmp_path):
        assert isinstance(DATASETS["pets"].read, StandIn)
        assert not DATASETS["pets"].files
        assert DATASETS["digits"] == before["digits"]
    assert before == DATASETS


@pytest.mark.parametrize("name", PAPER)
def test_every_cell_of_the_paper_becomes_small(name: str, tmp_path: Path) -> None:
    for cell in cells_of(find_bench(name), 1):
        made = small(cell, tmp_path)
        settings, method = resolve({"method": made.row.method, **made.settings})
        assert settings.train.steps == STEPS
        assert settings.network.backbone in BACKBONES.values()
        assert settings.regime == cell.settings["regime"]
        assert method == resolve({"method": cell.row.method, **cell.settings})[1]  # the method stays as it is


@pytest.mark.long
def test_cells_with_and_without_weights_take_their_steps(capsys: pytest.CaptureFixture[str]) -> None:
    table = find_bench("paper/table2")
    table = replace(
        table, datasets=("pets", "cifar10"), rows=tuple(r for r in table.rows if r.method == "dst(fixmatch)")
    )
    done, failed = smoke(cells_of(table, 1), Reporter(quiet=True))
    assert (done, failed) == (4, {})  # both datasets, both pretrainings
    app(["bench", "paper/table1", "--smoke", "--methods", "flexmatch", "--datasets", "stl10"], standalone_mode=False)
    assert "1 of 1 runs took 20 steps per round on stand-ins" in capsys.readouterr().out


@pytest.mark.long
def test_a_cell_that_fails_is_named() -> None:
    bench = replace(find_bench("paper/table1"), datasets=("cifar10",))
    cells = [cell for cell in cells_of(bench, 1, {"optim.lr": 1e9}) if cell.row.method == "fixmatch"]
    done, failed = smoke(cells, Reporter(quiet=True))
    assert done == 0
    assert "is not finite" in next(iter(failed.values()))
