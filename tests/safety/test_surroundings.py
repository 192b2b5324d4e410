"""What stands around a command: names that are not UTF-8, the environment, homes that do not exist, limits of files."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selftrain.cli import main
from selftrain.cli.launch import LAUNCHER, end_with_launcher
from selftrain.config.resolve import make_settings
from selftrain.data.cache_folder import cache_root
from selftrain.engine.checkpoint import load_checkpoint, save_checkpoint
from selftrain.engine.distributed import Started, started
from selftrain.engine.runtime import make_fabric
from selftrain.errors import UserError
from selftrain.files import expanded
from selftrain.methods.own import methods_in
from selftrain.nn.backbones import build_backbone
from selftrain.nn.onnx_backbone import open_backbone
from selftrain.nn.tensor_file import read_tensors, write_tensors
from selftrain.runs.places import known_cache
from tests.folders import CLASSES, fill

NOBODY = "~no-such-user-as-this/x"
VARIABLES = (
    "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK", "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
    "SLURM_PROCID",
)  # fmt: skip


def odd(folder: Path, name: bytes) -> Path:
    """Return a path that is not UTF-8, or skip the test where the file system has none."""
    path = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    try:
        path.write_bytes(b"")
    except (OSError, UnicodeError):
        pytest.skip("this file system has UTF-8 names only")
    path.unlink()
    return path


def test_tensors_in_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """They were written, and then called damaged, with the advice to delete them."""
    folder = odd(tmp_path, b"r\xff") / "checkpoints"
    save_checkpoint(folder, {"net": {"w": torch.arange(6.0).view(2, 3), "b": torch.tensor([True])}, "none": {}})
    state = load_checkpoint(folder)
    assert state is not None
    assert torch.equal(state["net"]["w"], torch.arange(6.0).view(2, 3))
    state["net"]["w"] += 1  # as weights are, it can be written
    path = folder / "x.safetensors"
    checksum = write_tensors(path, {"x": torch.ones(3)})
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(UserError, match="is damaged"):
        read_tensors(path, checksum=checksum)


@pytest.mark.timeout(300)
def test_every_command_in_a_folder_whose_name_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = odd(tmp_path, b"h\xff")
    home.mkdir()
    data, out = tmp_path / "data", home / "r\udcfe"
    for part, count in (("train", 4), ("test", 1)):
        fill(data / part, dict.fromkeys(CLASSES, count), side=8)
    few = next((data / "train").glob("*/*.png"))
    few.rename(few.with_name("n\udcff.png"))

    def run(*words: object) -> None:
        monkeypatch.setattr(sys, "argv", ["selftrain", *map(str, words)])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr().err
        assert not code, said
        assert "damaged" not in said

    labels = ("--labels-per-class", 2)
    quick = ("--size", 8, "--steps", 2, "--quiet", "--backbone", "wrn-tiny", "--set", "data.workers=0")
    run("train", data, *labels, *quick, "--out", out)
    (out / "results.json").unlink()
    run("train", "--resume", "--out", out, "--quiet")
    run("predict", out, data / "test", "-o", home / "p\udcff.csv")
    run("evaluate", out, data)
    run("report", out)
    run("check", data, *labels, "-o", home / "c\udcff.html")
    assert len((home / "p\udcff.csv").read_text().splitlines()) == 4
    assert "".join(path.name for path in home.iterdir() if path.suffix == ".html") == "c\udcff.html"
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")


def test_names_of_parts_keep_what_is_utf8(tmp_path: Path) -> None:
    path = odd(tmp_path, b"\xff" + "ü".encode() * 120)
    write_tensors(path, {"x": torch.ones(3)})
    assert torch.equal(read_tensors(path)["x"], torch.ones(3))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SLURM_STEP_NUM_TASKS": "junk"}, "SLURM_STEP_NUM_TASKS='junk': expected a number"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID is not set: expected a number"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "0"}, "SLURM_STEP_NUM_NODES='0'"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "WORLD_SIZE is not set"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "-1"}, "WORLD_SIZE='-1'"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": ""}, "RANK=''"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "GROUP_WORLD_SIZE": "one"}, "GROUP_WORLD_SIZE="),
    ],
)
def test_variables_of_launchers_are_numbers(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert started() == Started()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        started()
    assert said in str(caught.value)
    assert "unset TORCHELASTIC_RUN_ID and SLURM_STEP_NUM_TASKS" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["SLURM_NTASKS", "LT_ACCELERATOR", "LT_DEVICES", "LT_NUM_NODES", "LT_PRECISION", "LT_STRATEGY"]
)
def test_variables_that_lightning_reads_are_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "junk")
    with pytest.raises(UserError, match=f"Check these environment variables, which may be the reason: {name}."):
        make_fabric(make_settings("scratch", {}).train)


def test_a_launcher_that_is_no_process_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCHER, "junk")
    end_with_launcher()


@pytest.mark.parametrize("name", ["SELFTRAIN_CACHE", "XDG_CACHE_HOME"])
def test_the_cache_of_a_user_who_does_not_exist(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("SELFTRAIN_CACHE", raising=False)
    monkeypatch.setenv(name, NOBODY)
    with pytest.raises(UserError, match="there is no such home folder"):
        cache_root()


@pytest.mark.parametrize(
    "read",
    [
        expanded,
        cache_root,
        methods_in,
        lambda path: build_backbone("wrn-tiny", weights=path),
        lambda path: open_backbone(f"{path}.onnx", "imagenet", None),
    ],
)
def test_homes_of_users_who_do_not_exist(read: Any) -> None:
    with pytest.raises(UserError, match="there is no such home folder"):
        read(NOBODY)
    assert known_cache(NOBODY) is None


def test_a_file_size_limit_is_not_reported_as_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the system's own, on a disk that is nearly full."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2_000_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError) as caught:
            save_checkpoint(tmp_path / "checkpoints", {"x": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "see 'ulimit -f'" in str(caught.value)
    assert "MB are free" not in str(caught.value)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_page_of_suggestions_does_not_replace_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "data", dict.fromkeys(CLASSES, 2), side=8)
    monkeypatch.setattr(sys, "argv", ["selftrain", "suggest", str(tmp_path / "data"), "-o", str(tmp_path / "x.html")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "call it" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
