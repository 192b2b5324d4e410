"""The documentation is right: its code runs, its commands exist, and its tables match the code."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import selftrain
from selftrain.cli.app import app
from selftrain.cli.listing import setting_row
from selftrain.config.options import field_types, spell
from selftrain.config.settings import known_settings
from selftrain.methods.dst import DST, PRESETS

ROOT = Path(__file__).parents[2]
NEEDS_FILES = ("paths", "X_held_out")
"""names in arrays.md that are not made on the page"""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def rows(page: Path) -> dict[str, list[str]]:
    """Return the rows of a page's tables by their first cell, which is in backticks: `optim.lr`."""
    found = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            found[cells[0].strip("`")] = cells[1:]
    return found


def run(code: list[str], names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run blocks of code one after another, as a reader would, and return the names they define."""
    names = {"__name__": "documentation"} if names is None else names
    for block in code:
        exec(compile(block, "documentation", "exec", dont_inherit=True), names)
    return names


def test_the_loop_in_own_loop_md_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(ROOT / "docs" / "how-to" / "own-loop.md", "python")
    names = run(code[:1])
    assert int(names["net"].step) == names["steps"]
    assert names["losses"].total.isfinite()
    assert float(capsys.readouterr().out.split()[-1]) > 0.5  # the accuracy
    for block in code[1:]:
        assert run([block], names)["losses"].total.isfinite()


@pytest.mark.long
def test_the_code_in_start_embeddings_md_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(blocks(ROOT / "docs" / "start" / "embeddings.md", "python"))
    printed = capsys.readouterr().out.split()
    assert float(printed[0]) > 0.7
    assert float(printed[-2]) > 0.5  # held-out labels
    assert "blend" in printed or "labels_only" in printed


@pytest.mark.long
def test_the_code_in_arrays_md_runs() -> None:
    code = [
        text
        for text in blocks(ROOT / "docs" / "how-to" / "arrays.md", "python")
        if not any(name in text for name in NEEDS_FILES)
    ]
    assert len(code) == 4
    names = run(code)
    assert names["clf"].score(names["X"], names["truth"]) > 0.8
    assert names["search"].best_score_ > 0.5


@pytest.mark.parametrize("module", ["classifier", "folds", "frozen"])
def test_examples_in_docstrings_run(module: str) -> None:
    found = doctest.testmod(import_module(f"selftrain.estimator.{module}"))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            name, *words = [*shlex.split(line, comments=True), ""]
            if name != "selftrain":
                continue
            known = {option for parameter in commands[words[0]].params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= known, line
            for i, word in enumerate(words):
                if word == "--set":
                    setting = words[i + 1].split("=")[0]
                    assert setting in known_settings() or setting.startswith("method."), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_setting_is_explained() -> None:
    found = rows(ROOT / "docs" / "reference" / "settings.md")
    for name in known_settings():
        assert found.get(name) == setting_row(name), f"{name}: run python docs/update_settings.py"


def test_every_option_of_dst_is_explained() -> None:
    found = rows(ROOT / "docs" / "concepts" / "dst.md")
    for name in field_types(DST):
        assert name in found, name
    for preset, column in (("paper", 1), ("released", 2)):
        for name, value in PRESETS[preset].items():
            assert found[name][column] == spell(value), (name, preset)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_uses_public_names_only(page: Path) -> None:
    for block in blocks(page, "python"):
        check_public_names(block)


def check_public_names(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
        if isinstance(node, ast.Import):
            assert {name for name in names if name.startswith("selftrain")} <= set(selftrain.PUBLIC_MODULES)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("selftrain"):
            assert node.module in selftrain.PUBLIC_MODULES
            assert all(hasattr(import_module(str(node.module)), name) for name in names), names
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "selftrain":
            assert node.attr in selftrain.__all__


def test_the_public_names_are_there() -> None:
    assert dir(selftrain) == sorted(selftrain.__all__)
    for name in selftrain.__all__:
        assert getattr(selftrain, name) is not None
    for module in selftrain.PUBLIC_MODULES:
        import_module(module)
