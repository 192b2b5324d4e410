"""The paper's figures by name: each has a bench, finds its runs among others, and is drawn as PNG and SVG."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selftrain.bench.catalogue import BENCHES
from selftrain.bench.cells import cells_of
from selftrain.cli import main
from selftrain.cli.listing import tables
from selftrain.config.resolve import dump_settings
from selftrain.errors import UserError
from selftrain.report.paper_figures import FIGURES, bench_command, draw_figures, figure_command, find_figure
from selftrain.report.paper_figures.curves import mean_curve
from selftrain.report.paper_figures.hyperplanes import Line, solve
from selftrain.report.paper_figures.pick import pick
from selftrain.report.run_data import RunData, read_run
from selftrain.runs.resolve import resolve
from tests.report.made import make_run

NEED_RUNS = [name for name, figure in FIGURES.items() if figure.needs]


@pytest.fixture(scope="module")
def bench_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up runs in the folders that the benches of all figures would use; equal cells are one run."""
    out = tmp_path_factory.mktemp("bench")
    for name in NEED_RUNS:
        for cell in cells_of(BENCHES[f"figure/{name}"], 1):
            folder = cell.folder(out)
            if not folder.exists():
                settings, method = resolve({"method": cell.row.method, **cell.settings, "data.path": cell.dataset})
                kind = "dst(fixmatch)" if method.name == "dst" else method.name
                made = make_run(folder, kind, data=f"/nowhere/{cell.dataset}", config=dump_settings(settings))
                labels = settings.data.labels_per_class or 0
                split = (made / "split.json").read_text().replace('"labeled": 40,', f'"labeled": {10 * labels},')
                (made / "split.json").write_text(split)
    return out


@pytest.fixture(scope="module")
def runs(bench_folder: Path) -> list[RunData]:
    return [read_run(path.parent) for path in bench_folder.rglob("config.yaml")]


@pytest.mark.long
@pytest.mark.parametrize("name", NEED_RUNS)
def test_each_figure_is_drawn_from_the_runs_of_its_bench(
    bench_folder: Path, runs: list[RunData], tmp_path: Path, name: str
) -> None:
    bench = BENCHES[f"figure/{name}"]
    groups = pick(name, find_figure(name), runs)
    own = {(cell.dataset, cell.row.name): cell.folder(bench_folder) for cell in cells_of(bench, 1)}
    found = {(dataset, row): [run.folder for run in members] for dataset, rows in groups.items()
             for row, members in rows.items()}  # fmt: skip
    assert found == {key: [folder] for key, folder in own.items()}
    png, svg = draw_figures([name], list(own.values()), tmp_path / name)
    with Image.open(png) as image:
        assert image.width > 300
        assert np.asarray(image.convert("L")).std() > 5
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert max(png.stat().st_size, svg.stat().st_size) < 150_000


def test_other_runs_are_found_by_their_method_and_the_settings_of_the_row(tmp_path: Path) -> None:
    for method in ("fixmatch", "dst(fixmatch)", "supervised"):
        settings, _ = resolve({"method": method, "regime": "scratch", "data.path": "x", "data.labels_per_class": 7})
        make_run(tmp_path / method.strip("()"), method, data="/nowhere/mine", config=dump_settings(settings))
    runs = [read_run(folder) for folder in sorted(tmp_path.iterdir())]
    assert list(pick("algorithm", FIGURES["algorithm"], runs)["mine"]) == ["labels only", "FixMatch", "DST(FixMatch)"]
    with pytest.raises(UserError, match="selftrain bench figure/label-amount"):
        pick("label-amount", FIGURES["label-amount"], runs)


def test_seeds_are_averaged(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / str(seed), seed=seed)) for seed in range(3)]
    steps, mean, spread = mean_curve(runs, lambda run: run.curve("accuracy"))
    values = np.array([[value for _, value in run.curve("accuracy")] for run in runs])
    assert steps.tolist() == [row["step"] for row in runs[0].rows]
    assert np.allclose(mean, values.mean(axis=0))
    assert np.allclose(spread, values.std(axis=0))


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["selftrain", *map(str, words)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.long
def test_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bench_folder: Path
) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "report", run) == 0
    assert (run / "report.html").exists()
    assert command(monkeypatch, "report", run, "--figure", "per-clas-error") == 2
    assert "Did you mean 'per-class-error'?" in capsys.readouterr().err
    assert command(monkeypatch, "report", tmp_path) == 2
    assert "not a run folder" in capsys.readouterr().err
    assert command(monkeypatch, "report", tmp_path / "nothing", "--figure", "algorithm") == 2
    assert "the folder does not exist" in capsys.readouterr().err
    figures = ["--figure", "algorithm", "--figure", "worst-case"]
    assert command(monkeypatch, "report", bench_folder, *figures, "-o", tmp_path / "new") == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "algorithm.png", "algorithm.svg", "worst-case.png", "worst-case.svg",
    ]  # fmt: skip
    assert command(monkeypatch, "report", bench_folder, "--figure", "worst-case", "-o", tmp_path / "again.svg") == 0
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "new" / "worst-case.svg").read_bytes()


def test_every_figure_is_listed_with_its_commands() -> None:
    (table,) = tables("figures", None)
    names, _, commands = ([*column.cells] for column in table.columns)
    assert names == list(FIGURES)
    assert {f"figure/{name}" for name in NEED_RUNS} == {name for name in BENCHES if name.startswith("figure/")}
    for name, text in zip(names, commands, strict=True):
        assert (f"selftrain bench figure/{name} " in str(text)) == (name in NEED_RUNS)
        assert f"--figure {name} " in str(text)
        assert name not in NEED_RUNS or len(cells_of(BENCHES[f"figure/{name}"], 1)) <= 8


@pytest.mark.long
def test_the_worst_hyperplane_fits_the_labels_and_moved_features_limit_its_harm() -> None:
    found = solve()
    y, few = found.y, found.few

    def predicted(line: Line, points: torch.Tensor) -> torch.Tensor:
        return (points @ line[0] + line[1] > 0).long()

    def differ(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a != b).float().mean())

    assert torch.equal(predicted(found.worst, found.x[few]), y[few])
    assert torch.equal(predicted(found.worst_z, found.z[few]), y[few])
    before = differ(predicted(found.worst, found.x), predicted(found.learned, found.x))
    after = differ(predicted(found.worst_z, found.z), predicted(found.learned_z, found.z))
    assert after < before / 2
    assert differ(predicted(found.learned_z, found.z), y) < differ(predicted(found.learned, found.x), y)


@pytest.mark.long
def test_hyperplanes_needs_no_runs_and_other_figures_do(tmp_path: Path) -> None:
    written = draw_figures(["hyperplanes"], [], tmp_path / "drawn.png")
    assert written == [tmp_path / "drawn.png", tmp_path / "drawn.svg"]
    with pytest.raises(UserError, match=r"'algorithm' needs runs\. Make them with: selftrain bench figure/algorithm"):
        draw_figures(["algorithm"], [])


PAGE = Path(__file__).parents[2] / "docs" / "results" / "figures.md"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_in_the_documentation(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f"](figures/{name}.svg)" in section
    alt = section.partition("![")[2].partition("](")[0]
    assert len(alt) > 40
    for line in (bench_command(name), figure_command(name)):
        assert line in section
    for suffix in (".png", ".svg"):
        file = PAGE.parent / "figures" / f"{name}{suffix}"
        assert 5_000 < file.stat().st_size < 150_000


def test_the_image_of_a_report_has_a_text_alternative_and_a_command() -> None:
    text = (PAGE.parents[1] / "how-to" / "report.md").read_text(encoding="utf-8")
    alt, _, after = text.partition("![")[2].partition("](../results/figures/report.png)")
    assert len(alt) > 40
    assert re.search(r"`selftrain train [^`]+`, \d{4}-\d\d-\d\d, revision [0-9a-f]{7}", after)


def test_the_folder_of_figures_holds_nothing_else() -> None:
    kept = {path.stem for path in (PAGE.parent / "figures").iterdir()}
    assert kept == {*FIGURES, "report"}
