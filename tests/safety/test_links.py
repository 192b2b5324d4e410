"""Nothing is written through links out of a run folder, and what a killed process was writing is swept away."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import selftrain
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.files import append_text, is_part, replacing, write_text
from selftrain.report import write_report
from selftrain.runs.layout import RunLayout
from tests.folders import layout_2
from tests.report.made import make_run
from tests.runs.small_runs import train_small


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layout_2(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def stop(row: dict[str, object]) -> None:
        raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(KeyboardInterrupt):
        train_small(data, out, labels_per_class=2, watch=stop, settings={"train.checkpoint_every": 2})
    return out


NAMES = [
    "log.txt", "results.json", "config.yaml", "split.json", "metrics.jsonl", "outputs.npz", "thumbnails.npz",
    "seen.npz", ".lock", "model", "checkpoints", "model/model.json", "model/model.safetensors",
    "model/novelty.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_links_is_not_resumed(stopped: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    outside = tmp_path / "outside"
    place = run / name
    if name in ("model", "checkpoints"):
        if place.exists():
            shutil.move(place, outside)
        outside.mkdir(exist_ok=True)
        (outside / "mine").write_text("mine")
        kept = outside / "mine"
    else:
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            shutil.move(place, outside)
        else:
            outside.write_text("mine")
        kept = outside
    place.symlink_to(outside)
    before = kept.read_bytes()
    with pytest.raises(UserError, match="is a link"):
        selftrain.train(out=run, resume=True, quiet=True)
    assert kept.read_bytes() == before
    assert not outside.is_dir() or {path.name for path in outside.iterdir()} <= {
        "mine", "last.json", *(path.name for path in outside.glob("state-*.safetensors")),
    }  # fmt: skip


def test_a_report_does_not_replace_the_target_of_a_link(tmp_path: Path) -> None:
    run, mine = make_run(tmp_path / "run"), tmp_path / "mine.txt"
    mine.write_text("mine")
    (run / "report.html").symlink_to(mine)
    with pytest.raises(UserError, match=r"report\.html: is a link"):
        write_report([run])
    assert mine.read_text() == "mine"
    other = tmp_path / "page.html"
    other.symlink_to(mine)  # a link that the user names is the user's own
    write_report([run], other)
    assert other.is_symlink()
    assert "<!doctype html>" in mine.read_text()


def test_log_lines_are_not_appended_through_links(tmp_path: Path) -> None:
    shell = tmp_path / "startup"
    shell.write_text("")
    (tmp_path / "log.txt").symlink_to(shell)
    reporter = Reporter(quiet=True)
    reporter.log = tmp_path / "log.txt"
    reporter.say("left out a.jpg\ntouch /tmp/owned\n")
    assert shell.read_text() == ""
    with pytest.raises(UserError, match="it is a link"):
        append_text(tmp_path / "log.txt", "x")


def test_a_folder_that_a_link_leads_to_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="model: is a link"):
        write_text(tmp_path / "run" / "model" / "model.json", "x", within=tmp_path / "run")
    assert list((tmp_path / "outside").iterdir()) == []


def test_temporary_names_cannot_be_foreseen_and_modes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    seen = set()
    for _ in range(3):
        with replacing(path) as temporary:
            seen.add(temporary.name)
            assert is_part(temporary.name)
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
            temporary.write_text("new")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(seen) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure, a name whose content was not synced may stand for zeros, and a rename may be lost."""
    done: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(first: Any, *more: Any) -> Any:
            kind = "folder" if name == "sync" and stat.S_ISDIR(os.fstat(first).st_mode) else "file"
            done.append(f"{name} {kind}")
            return call(first, *more)

        return wrapped

    monkeypatch.setattr(os, "fsync", noted("sync", os.fsync))
    monkeypatch.setattr(os, "replace", noted("rename", os.replace))
    write_text(tmp_path / "file", "new")
    assert done == ["sync file", "rename file", "sync folder"]


def test_what_a_killed_process_was_writing_is_swept_and_blocks_nothing(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".config.yaml.x7k2.part").write_text("half a")
    run = train_small(data, out, labels_per_class=2)
    assert not any(is_part(path.name) for path in run.folder.rglob("*"))
    (out / "model" / ".model.json.abc.part").write_text("half")
    (out / "results.json").unlink()
    selftrain.train(out=out, resume=True, quiet=True)
    assert not any(is_part(path.name) for path in run.folder.rglob("*"))


def test_a_cache_that_a_run_names_is_used_only_if_it_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selftrain.data.cache_folder import cache_root
    from selftrain.runs.places import known_cache

    assert known_cache(str(tmp_path / "anywhere")) is None
    (tmp_path / "some" / "features" / ("0" * 24)).mkdir(parents=True)
    assert known_cache(str(tmp_path / "some")) is None
    assert not (tmp_path / "anywhere").exists()
    assert known_cache(None) is None
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "own"))
    assert known_cache(str(cache_root() / "x")) is None


def test_the_lock_of_a_run_is_not_opened_through_a_link(stopped: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    mine = tmp_path / "mine"
    mine.write_text("mine")
    os.symlink(mine, RunLayout(run).lock)
    with pytest.raises(UserError, match="is a link"):
        selftrain.train(out=run, resume=True, quiet=True)
    assert mine.read_text() == "mine"
