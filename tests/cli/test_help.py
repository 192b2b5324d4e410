"""Help that teaches: groups, examples that can be typed, the version, and what a bug report needs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from selftrain.cli import doctor
from selftrain.cli.app import GROUPS, app
from selftrain.cli.examples import EXAMPLES
from selftrain.version import __version__

COMMANDS = {name for group in GROUPS.values() for name in group}


def said(*words: str) -> str:
    found = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert found.exit_code == 0, found.output
    return found.output


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_examples_end_the_help_and_can_be_typed(name: str) -> None:
    text = " ".join(said(name, "--help").split())
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    for example in EXAMPLES[name]:
        assert example in text
        words = [word for word in shlex.split(example)[1:] if word != "--offline"]
        assert words[0] == name
        command.make_context(name, words[1:], resilient_parsing=False).close()  # a wrong option or value is an error


def test_the_first_page_groups_commands_by_task() -> None:
    text = said("--help")
    places = [text.index(title) for title in GROUPS]
    assert places == sorted(places)


def test_version() -> None:
    assert said("--version").strip() == f"selftrain {__version__}"


def test_doctor_says_what_it_finds_and_what_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "1")

    def broken() -> str:
        raise RuntimeError("no driver\nat all")

    monkeypatch.setattr(doctor, "_device", broken)
    text = " ".join(re.sub("[│|]", " ", said("doctor")).split())
    assert f"selftrain {__version__}" in text
    assert "failed: RuntimeError: no driver" in text
    assert "GB free" in text
    assert "forbidden (--offline or SELFTRAIN_OFFLINE=1)" in text
