"""Files are written completely or not at all, errors name the file; progress without a terminal."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.engine.checkpoint import save_checkpoint
from selftrain.errors import UserError
from selftrain.files import append_text, replacing
from selftrain.runs.model import make_card, save_model


def test_files_have_the_mode_of_the_users_mask(tmp_path: Path) -> None:
    def private(path: Path) -> None:
        path.write_text("x")
        path.chmod(0o600)

    mask = os.umask(0o022)
    try:
        with replacing(tmp_path / "file") as temporary:
            private(temporary)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


@pytest.mark.long
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_open_files_and_pipes_are_appended_to(tmp_path: Path, name: str) -> None:
    code = f"from pathlib import Path; from selftrain.files import *; p = Path({name!r}); check_writable(p); "
    command = [sys.executable, "-c", code + "write_text(p, 'new\\n')"]
    kept = tmp_path / "all.csv"
    kept.write_text("old\n")
    with kept.open("a") as file:
        subprocess.run(command, check=True, stdout=file)
    assert kept.read_text() == "old\nnew\n"
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout == b"new\n"  # into a pipe
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]


def test_a_full_disk_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", no_room)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2_000_000))
    with pytest.raises(UserError, match=r"state-.*cannot be written .*No space left.* 2\.0 MB are free"):
        save_checkpoint(tmp_path / "checkpoints", {"x": torch.zeros(3)})
    (tmp_path / "checkpoints").rmdir()
    card = make_card(make_settings("frozen", {}).network, None, ("a", "b"), 0, frozen=True, features=4)
    with pytest.raises(UserError, match=r"model\.safetensors: cannot be written .*No space left"):
        save_model(tmp_path, torch.nn.Linear(2, 2), card, {})
    with pytest.raises(UserError, match="cannot be written"):
        append_text(tmp_path / "no" / "file", "x")
    assert list(tmp_path.iterdir()) == []


def test_progress_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    reporter = Reporter(quiet=True)
    monkeypatch.setattr(reporter, "say", said.append)
    now = iter([0.0, 30.0, 60.0, 90.0, 130.0, 200.0])
    monkeypatch.setattr("selftrain.console.time.monotonic", lambda: next(now))
    with reporter.progress("extracting", 100, "images") as bar:
        for done in (10, 25, 40, 50, 100):
            bar.reach(done)
    assert said == ["extracting: 25 of 100 images, 3 minutes left", "extracting: 50 of 100 images, 2 minutes left"]
