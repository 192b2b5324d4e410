"""Names of files and classes do not control terminals, logs or spreadsheets; errors stay one line."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from selftrain.cli.app import _no_memory
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.files import append_text, cannot_write
from selftrain.network_access import check_online
from selftrain.runs.predict import Predictions
from selftrain.text import printable, spreadsheet_safe

HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\nrm -rf\u202egpj.exe\u2028x\x9b31m"


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    reporter = Reporter()
    reporter.log = tmp_path / "log.txt"
    reporter.warn(f"left out {HOSTILE}.jpg")
    reporter.say("f\udcffo")
    shown, logged = capsys.readouterr().err, reporter.log.read_text()
    for text in (shown, logged):
        assert not set(text) & set("\x1b\x07\r\u202e\u2028\x9b")
        assert "\\x1b[2J" in text
    assert len(logged.splitlines()) == 2
    assert "f?o" in logged


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("", "plain", "Grüße, 猫, שלום", "👩\u200d🔬", "a\u200cb"):
        assert printable(text) == text


def test_formulas_in_predictions_are_text() -> None:
    names = ("=cmd|' /C calc'!A0", "+1+1.jpg", "-5", "@SUM(A1)", "fine.jpg", "\tx.jpg")
    found = Predictions(names, ("=HYPERLINK()", "-1"), np.tile([0.9, 0.1], (len(names), 1)))
    file = io.StringIO()
    found.write(file)
    rows = list(csv.reader(io.StringIO(file.getvalue())))[1:]
    assert [row[0] for row in rows] == ["'=cmd|' /C calc'!A0", "'+1+1.jpg", "-5", "'@SUM(A1)", "fine.jpg", "'\tx.jpg"]
    assert {row[1] for row in rows} == {"'=HYPERLINK()"}
    assert spreadsheet_safe("-1e5") == "-1e5"


def test_advice_about_memory_fits_the_command() -> None:
    assert "train.batch" in _no_memory(MemoryError(), ["train", "x"])
    assert "train.batch" not in _no_memory(MemoryError(), ["predict", "x"])


def test_a_file_size_limit_is_not_called_a_full_disk(tmp_path: Path) -> None:
    error = OSError(27, "File too large")
    assert "ulimit -f" in str(cannot_write(tmp_path / "x", error))
    with pytest.raises(UserError, match="cannot be written"):
        append_text(tmp_path / "no" / "x", "y")


def test_the_network_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    check_online("weights")
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "1")
    with pytest.raises(UserError, match="weights: would have to be downloaded, but the network is forbidden"):
        check_online("weights")
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "perhaps")
    with pytest.raises(UserError, match="expected 1"):
        check_online("weights")


@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "words", "said"),
    [
        ({"PYTHONIOENCODING": "ascii"}, ["predict", "r\u00fcn\u732b", "x"], "error: "),
        ({"SELFTRAIN_OFFLINE": "perhaps"}, ["list", "methods"], "SELFTRAIN_OFFLINE='perhaps'"),
        (
            {"COLUMNS": "junk", "LINES": "-3", "TERM": "\x1b"},
            ["report", "nothing\nat\x1ball"],
            "error: nothing at\\x1ball",
        ),
        ({"SELFTRAIN_OFFLINE": "1"}, ["evaluate", "nothing", "sun397"], "error: "),
    ],
)
def test_junk_around_a_command_is_no_traceback(variables: dict[str, str], words: list[str], said: str) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-m", "selftrain", *words], capture_output=True, env=environment, timeout=120
    )
    shown = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 2
    assert "Traceback" not in shown
    assert said in shown
