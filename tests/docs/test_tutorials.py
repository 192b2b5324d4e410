"""The tutorials run from an empty folder, with small values, and show what a named revision printed."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from selftrain.methods.own import allow_method_file
from selftrain.runs import method_checks
from tests.docs.test_docs import ROOT, check_public_names

SMALL: dict[str, dict[str, Any]] = {
    "photos": {"photos_wanted": 300, "steps": 30, "labels_wanted": 60},
    "embeddings": {"rows": 3000, "spread_rows": 1000, "steps": 30, "labels_per_class": 4},
    "own-method": {"steps": 20, "seeds": (0,), "labels_per_class": 4},
}
FOLDER = ROOT / "docs" / "tutorials"


def cells(name: str, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_every_tutorial_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SMALL)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SMALL)
def test_tutorials_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "1")
    run = runpy.run_path(str(ROOT / "docs" / "run_notebooks.py"))["run"]
    notebook = run(nbformat.read(FOLDER / f"{name}.ipynb", as_version=4), tmp_path, SMALL[name])
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.long
def test_the_method_of_the_tutorial_passes_the_checks(tmp_path: Path) -> None:
    (cell,) = [source(cell) for cell in cells("own-method", "code") if source(cell).startswith("%%writefile")]
    first, _, code = cell.partition("\n")
    file = tmp_path / first.split()[1]
    file.write_text(code, encoding="utf-8")
    allow_method_file(file)
    for check in method_checks.CHECKS:
        if "two processes" not in check.what:
            check.run(f"{file}:MarginMatch")


@pytest.mark.parametrize("name", SMALL)
def test_tutorials_can_be_run_anywhere_and_show_their_outputs(name: str) -> None:
    code = cells(name, "code")
    assert "%pip install" in source(code[0])  # Colab
    (parameters,) = [cell for cell in code if "parameters" in cell["metadata"].get("tags", ())]
    assert set(re.findall(r"^(\w+) = ", source(parameters), flags=re.MULTILINE)) == set(SMALL[name])
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    shown = json.dumps(outputs)
    assert str(Path.home()) not in shown
    assert "/tmp/" not in shown
    last = source(cells(name, "markdown")[-1])
    made = re.search(rf"`python docs/run_notebooks.py {name}`, revision [0-9a-f]{{7}}, \d{{4}}-\d\d-\d\d", last)
    assert bool(outputs) == bool(made)
    assert made or "have not been made yet" in last


@pytest.mark.parametrize("name", SMALL)
def test_tutorials_use_public_names_and_links_that_exist(name: str) -> None:
    for cell in cells(name, "code"):
        check_public_names(re.sub(r"^(\s*)%.*$", r"\1pass", source(cell), flags=re.MULTILINE))
    for cell in cells(name, "markdown"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", source(cell)):
            assert (FOLDER / target).exists(), target
