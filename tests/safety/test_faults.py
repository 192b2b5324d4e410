"""A seeded sample of the fault injection; ``python -m tests.safety.faults`` runs every case."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.safety.forks import lose_power


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_sample_of_faults_ends_as_an_undisturbed_run() -> None:
    only = [word for name in ("frozen", "full disk", "power failure, unsynced files lost") for word in ("--only", name)]
    words = [sys.executable, "-m", "tests.safety.faults", *only, "--sample", "1", "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cases, 0 bad" in done.stdout


def test_a_power_failure_loses_what_was_not_synced(tmp_path: Path) -> None:
    """The simulated disk: of two files that were replaced, the one whose folder was synced stays."""
    backups, lines = tmp_path / "backups", []
    for folder in ("backups", "synced", "unsynced"):
        (tmp_path / folder).mkdir()
    for number, name in enumerate(("synced", "unsynced"), 1):
        (backups / str(number)).write_text("old")
        (tmp_path / name / "file").write_text("new")
        lines += [f"W\t0\t{tmp_path}/{name}/part\t", f"S\t0\t{tmp_path}/{name}/part\t",
                  f"R\t{number}\t{tmp_path}/{name}/part\t{tmp_path}/{name}/file"]  # fmt: skip
        lines += [f"S\t0\t{tmp_path}/{name}\t"] if name == "synced" else []
    (tmp_path / "log.txt").write_text("kept, and lost")
    lines.append(f"W\t4\t{tmp_path}/log.txt\t")
    assert lose_power(lines, backups, "data")
    assert (tmp_path / "log.txt").read_bytes() == b"kept" + bytes(10)
    assert lose_power(lines, backups, "all")
    assert (tmp_path / "log.txt").read_text() == "kept"
    assert (tmp_path / "synced/file").read_text() == "new"
    assert (tmp_path / "unsynced/file").read_text() == "old"
