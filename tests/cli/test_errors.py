"""Arguments that the library names in backticks reach a user of the command line as options."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import typer

from selftrain.cli.app import app, main
from selftrain.cli.errors import SECTIONS, SETTINGS, Translator, translator_of
from selftrain.config import settings
from selftrain.console import Reporter
from selftrain.errors import UserError

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def translated(command: str, text: str) -> str:
    return translator_of(COMMANDS[command])(text)


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        # arguments
        ("train", "`out` runs/a: it exists already.", "--out runs/a: it exists already."),
        ("train", "Pass `labels_per_class` or `labels`.", "Pass --labels-per-class or --labels."),
        ("train", "`data` is missing.", "DATA is missing."),
        ("predict", "`images` is empty.", "IMAGES is empty."),
        ("predict", "`run` a: not a run folder.", "RUN a: not a run folder."),
        ("report", "`out` a/b.html: cannot be written.", "--output a/b.html: cannot be written."),
        ("train", "`settings`: expected a mapping.", "--set: expected a mapping."),
        # values
        ("train", "`labels_per_class=4`: too many.", "--labels-per-class 4: too many."),
        ("train", "Pass `labels_per_class=N`.", "Pass --labels-per-class N."),
        ("train", '`regime="frozen"`: no.', "--regime frozen: no."),
        ("train", "`regime='frozen'`: no.", "--regime frozen: no."),
        ("train", '`method="dst(fixmatch, tau=1)"`: no.', "--method 'dst(fixmatch, tau=1)': no."),
        ("sweep", '`search="optim.lr=0..1 log"`: no.', "--search 'optim.lr=0..1 log': no."),
        ("evaluate", "`data=photos`: no.", "DATA photos: no."),
        # booleans
        ("train", "Pass `resume=True` to resume it.", "Pass --resume to resume it."),
        ("train", "Run `selftrain.train` `resume=True` `out='a'`.", "Run selftrain train --resume --out a."),
        ("train", "Needs `strict=False`.", "Needs no --strict."),
        ("sweep", "Needs `prune=False`.", "Needs --no-prune."),
        # settings
        ("train", "`optim.lr=0.003`: too low.", "--set optim.lr=0.003: too low."),
        ("train", "A smaller `train.batch` fits.", "A smaller train.batch fits."),
        ("train", "`data.flip=True`: no.", "--set data.flip=true: no."),
        ("train", '`data.fold="1/5"`: no.', "--set data.fold=1/5: no."),
        ("train", "`data.size=None`: no.", "--set data.size=none: no."),
        ("train", "`optim.lr=`: no.", "--set optim.lr=: no."),
        ("bench", "`labels_per_class=4`: too many.", "--set data.labels_per_class=4: too many."),
        ("bench", "Pass `labels_per_class`.", "Pass data.labels_per_class."),
        ("bench", '`regime="frozen"`: no.', "--set regime=frozen: no."),
        # options of methods
        ("train", "`method.base.tau=0.9`: no.", "--set method.base.tau=0.9: no."),
        ("train", "`dst.width=-1`: no.", "dst.width=-1: no."),
        ("bench", "`method.tau`: no.", "method.tau: no."),
        # unknown words, several in a sentence, and text without any
        ("train", "`foo` and `bar=3`, (`out`).", "foo and bar=3, (--out)."),
        ("train", "Nothing to translate: out, resume=True.", "Nothing to translate: out, resume=True."),
    ],
)  # fmt: skip
def test_translation(command: str, text: str, expected: str) -> None:
    assert translated(command, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "photos/a`b.png: cannot be read.",
        "photos/a`b.png and photos/c`d.png: cannot be read.",
        "photos/`out`.png: cannot be read.",
        "x`out`y.png, `out`y.png and x`out`: cannot be read.",
        "`out`/a.png: cannot be read.",
        "a`b=c.png and d`e.png: cannot be read.",
        "`my file`: cannot be read.",
        "a ` alone, `` two of them, ```.",
    ],
)
def test_file_names_with_backticks_survive(text: str) -> None:
    assert translated("train", text) == text
    assert Translator()(text) == text


def test_without_a_command_only_the_backticks_go() -> None:
    assert translator_of(None)("`out` and `labels_per_class=4`") == "out and labels_per_class=4"


def test_every_option_of_every_command_is_translated() -> None:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            text = translated(name, f"`{parameter.name.rstrip('_')}`")
            known = [*parameter.opts, parameter.name.upper()]
            assert text in known, (name, parameter.name)


def test_the_tables_agree_with_the_settings() -> None:
    assert set(SECTIONS) == {*settings.SECTIONS, "method"}
    assert set(SETTINGS.values()) <= set(settings.known_settings())


def test_main_prints_the_translation_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise UserError("`out` runs/a:\nthe folder exists already. Pass `resume=True`, or `optim.lr=0.1`.")

    monkeypatch.setattr("selftrain.runs.trainer.train", fail)
    monkeypatch.setattr(sys, "argv", ["selftrain", "train", "digits"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    expected = "error: --out runs/a: the folder exists already. Pass --resume, or --set optim.lr=0.1."
    assert said == f"{expected}\n"


def test_a_reporter_translates_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(translate=translator_of(COMMANDS["train"]))
    reporter.warn("left out 3 images; pass `strict=True` to stop instead")
    assert capsys.readouterr().err == "warning: left out 3 images; pass --strict to stop instead\n"
    Reporter().say("pass `strict=True` to stop instead")
    assert capsys.readouterr().err == "pass `strict=True` to stop instead\n"
