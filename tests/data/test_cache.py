"""The cache: computed once, resumed after a kill, shared by processes, and never trusted blindly."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from selftrain.data.features.store import (
    ABOUT,
    ARRAY,
    LOCK,
    PIECES,
    cache_root,
    cached_array,
    clear_caches,
    list_caches,
)
from selftrain.data.images import ArrayImages, FileImages, fingerprint
from selftrain.errors import UserError
from tests.processes import DEADLINE, started, wait_for

SHAPE = (50, 3, 4)


def value(start: int, stop: int) -> np.ndarray:
    rows = np.arange(start, stop, dtype=np.float32)[:, None, None]
    return np.asarray(np.sin(rows + np.arange(12).reshape(3, 4)), np.float32)


class Counter:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, start: int, stop: int) -> np.ndarray:
        self.calls.append(start)
        return value(start, stop)


def cached(root: Path, compute: Any, **options: Any) -> np.ndarray:
    options = {"about": {"x": 1}, "threads": 2, **options}
    return cached_array(root, options.pop("about"), SHAPE, "float32", compute, piece=8, **options)


def only_folder(root: Path) -> Path:
    (folder,) = [path for path in root.iterdir() if path.is_dir()]
    return folder


def test_it_is_computed_once(tmp_path: Path) -> None:
    first, second = Counter(), Counter()
    assert np.array_equal(cached(tmp_path, first), value(0, 50))
    assert sorted(first.calls) == list(range(0, 50, 8))
    assert np.array_equal(cached(tmp_path, second), value(0, 50))
    assert second.calls == []


def test_what_it_depends_on_names_it(tmp_path: Path) -> None:
    cached(tmp_path, value)
    other = Counter()
    cached(tmp_path, other, about={"x": 2})
    assert len(other.calls) == 7
    assert len(list_caches(tmp_path)) == 2


def test_it_is_read_only_and_mapped(tmp_path: Path) -> None:
    array = cached(tmp_path, value)
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_an_error_keeps_what_was_finished(tmp_path: Path) -> None:
    def fails(start: int, stop: int) -> np.ndarray:
        if start >= 32:
            raise RuntimeError("no more")
        return value(start, stop)

    with pytest.raises(RuntimeError, match="no more"):
        cached(tmp_path, fails, threads=1)
    again = Counter()
    assert np.array_equal(cached(tmp_path, again), value(0, 50))
    assert sorted(again.calls) == [32, 40, 48]


def damage_about(folder: Path) -> None:
    (folder / ABOUT).write_text("{")


def foreign_about(folder: Path) -> None:
    (folder / ABOUT).write_text(json.dumps({"key": "another"}))


def cut_array(folder: Path) -> None:
    os.truncate(folder / ARRAY, 100)


def cut_pieces(folder: Path) -> None:
    os.truncate(folder / PIECES, 3)


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / ARRAY).read_bytes())
    data[500] ^= 1
    (folder / ARRAY).write_bytes(data)


def replace_array(folder: Path) -> None:
    (folder / ARRAY).write_bytes(os.urandom(np.prod(SHAPE) * 4))


@pytest.mark.parametrize("harm", [damage_about, foreign_about, cut_array, cut_pieces, flip_a_bit, replace_array])
def test_harm_is_noticed_and_mended(tmp_path: Path, harm: Any) -> None:
    cached(tmp_path, value)
    harm(only_folder(tmp_path))
    again = Counter()
    assert np.array_equal(cached(tmp_path, again), value(0, 50))
    assert len(again.calls) == (1 if harm is flip_a_bit else 7)


def test_a_full_disk_is_said_at_once_and_harms_no_other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, value)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    never = Counter()
    with pytest.raises(UserError, match=r"needs .* GB, but only .* GB are free.*SELFTRAIN_CACHE"):
        cached(tmp_path, never, about={"x": 2})
    assert never.calls == []
    assert len(list_caches(tmp_path)) == 1
    kept = Counter()
    cached(tmp_path, kept)
    assert kept.calls == []


def test_names_of_caches_never_change(tmp_path: Path) -> None:
    """Another name would recompute the features of every user."""

    def zeros(start: int, stop: int) -> np.ndarray:
        return np.zeros((stop - start, 1, 2))

    cached_array(tmp_path, {"x": 1, "views": ["clean"]}, (5, 1, 2), "float16", zeros, piece=2)
    assert only_folder(tmp_path).name == "016dcb11ee931e917405d220"
    images = ArrayImages(np.arange(32, dtype=np.uint8).reshape(2, 4, 4))
    assert fingerprint(images) == "fe10b18adb417da5838f5c0aab157c89e31cdb3d5c712ae97897ffabdafd2247"
    (tmp_path / "a.png").write_bytes(b"content")
    os.utime(tmp_path / "a.png", ns=(10**18, 10**18))
    files = FileImages(tmp_path, ["a.png"])
    assert fingerprint(files) == "5af7ffd8a0d4851268495252806b79106d3ec5dd0654cc7c469a7da747016f8d"
    assert fingerprint(files, times=False) == "3327db7e575898e739abc622038bc97dcdfa2c77efe4faea7cadcbea315f8705"


SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from selftrain.data.features.store import cached_array
def compute(start, stop):
    time.sleep(0.05)
    with open(sys.argv[2], "a") as log:
        log.write(f"{start}\\n")
    rows = np.arange(start, stop, dtype=np.float32)[:, None, None]
    return np.sin(rows + np.arange(12).reshape(3, 4))
cached_array(Path(sys.argv[1]), {"x": 1}, (50, 3, 4), "float32", compute, piece=2, threads=2)
"""


@pytest.mark.long
def test_killed_while_it_is_filled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(log)]
    with started(command) as process:
        wait_for("eight pieces", lambda: log.exists() and len(log.read_text().split()) >= 8, of=process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE) == -signal.SIGKILL
    before = len(log.read_text().split())
    folder = only_folder(tmp_path / "cache")
    finished = int((np.fromfile(folder / PIECES, np.uint32) != 0).sum())
    assert 0 < finished < 25
    subprocess.run(command, check=True, timeout=DEADLINE)
    assert len(log.read_text().split()) - before == 25 - finished  # nothing finished is computed again
    array = np.fromfile(folder / ARRAY, np.float32).reshape(SHAPE)
    assert np.array_equal(array, value(0, 50))


@pytest.mark.long
def test_two_processes_share_the_work_of_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(log)]
    with started(command) as first, started(command) as second:
        assert [process.wait(DEADLINE) for process in (first, second)] == [0, 0]
    assert sorted(map(int, log.read_text().split())) == list(range(0, 50, 2))


def test_list_and_clear(tmp_path: Path) -> None:
    for x in (1, 2):
        cached(tmp_path, value, about={"x": x})
    infos = list_caches(tmp_path)
    assert [info.done for info in infos] == [1.0, 1.0]
    name = infos[0].folder.name
    assert [info.folder.name for info in clear_caches(tmp_path, name[:8])[0]] == [name]
    assert len(list_caches(tmp_path)) == 1
    assert len(clear_caches(tmp_path)[0]) == 1
    assert list_caches(tmp_path) == []


def test_what_is_not_ours_is_neither_listed_nor_deleted(tmp_path: Path) -> None:
    cached(tmp_path, value)
    foreign = tmp_path / "mine" / ABOUT
    inside = only_folder(tmp_path) / "thesis.txt"
    foreign.parent.mkdir()
    for file in (foreign, inside):
        file.write_text("years of work")
    assert len(clear_caches(tmp_path)[0]) == 1
    assert list_caches(tmp_path) == []
    assert foreign.read_text() == inside.read_text() == "years of work"


def test_an_empty_variable_is_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_root() == Path.home() / ".cache" / "selftrain"


def test_files_of_another_user_are_read_if_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, value)
    theirs = {str(only_folder(tmp_path) / name) for name in (ARRAY, PIECES, ABOUT, LOCK)}
    access = os.access
    monkeypatch.setattr(
        "selftrain.data.features.store.os.access", lambda p, mode: str(p) not in theirs and access(p, mode)
    )
    monkeypatch.setattr("selftrain.data.features.store.FileLock", None)
    assert np.array_equal(cached(tmp_path, None), value(0, 50))


@pytest.mark.parametrize("text", ["{}", "[]", "{", None])
def test_a_damaged_cache_is_listed_and_cleared(tmp_path: Path, text: str | None) -> None:
    cached(tmp_path, value)
    about = only_folder(tmp_path) / ABOUT
    about.unlink()
    if text is not None:
        about.write_text(text)
    (info,) = list_caches(tmp_path)
    assert (info.about, info.done) == ({}, 0.0)
    assert len(clear_caches(tmp_path)[0]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_cache_in_use_is_left_alone(tmp_path: Path) -> None:
    cached(tmp_path, value)
    with FileLock(only_folder(tmp_path) / LOCK):
        gone, left = clear_caches(tmp_path)
    assert (len(gone), len(left)) == (0, 1)
    assert np.array_equal(cached(tmp_path, None), value(0, 50))


def test_a_cache_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, value)
    monkeypatch.setattr("selftrain.data.features.store.os.access", lambda path, mode: False)
    monkeypatch.setattr("selftrain.data.features.store.FileLock", None)  # there is no place for a lock
    assert np.array_equal(cached(tmp_path, None), value(0, 50))
    pieces = only_folder(tmp_path) / PIECES
    pieces.write_bytes(bytes(len(pieces.read_bytes())))
    with pytest.raises(UserError, match="incomplete, and cannot be written"):
        cached(tmp_path, None)
