"""Runs as the report sees them: broken files, names, references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from selftrain.errors import UserError
from selftrain.report import write_report
from selftrain.report.reference import baseline_of, training_bias
from selftrain.report.run_data import read_run, read_runs
from tests.report.made import CIFAR, make_run


def test_reference_and_bias_agree_with_hand_computed_values(tmp_path: Path) -> None:
    own = read_run(make_run(tmp_path / "a", "dst(fixmatch)", reference=True))
    beside = read_runs([make_run(tmp_path / "b", "dst(fixmatch)"), make_run(tmp_path / "c", "supervised")])
    assert own.reference is not None
    found = baseline_of(own, [])
    assert found is not None
    assert found[0] == own.reference["labels_only"]["per_class"]
    assert training_bias(own, []) == own.reference["training_bias"]
    assert baseline_of(beside[0], []) is None
    bias = training_bias(beside[0], beside)
    assert bias is not None
    assert beside[0].per_class is not None
    assert beside[1].per_class is not None
    assert np.allclose(np.array(bias, float), np.array(beside[1].per_class) - np.array(beside[0].per_class))
    other = read_run(make_run(tmp_path / "d", "supervised", classes=CIFAR[::-1]))
    assert baseline_of(beside[0], [other]) is None  # other classes, other images


@pytest.mark.parametrize(
    ("method", "name", "labels_only"),
    [
        ("dst(fixmatch)", "DST(FixMatch)", False),
        ("dst(fixmatch, worst=false)", "DST(FixMatch) without worst case", False),
        ("dst(fixmatch(tau=0.9), worst=false)", "DST(FixMatch) without worst case", False),
        ("supervised", "Labels only", True),
        ("supervised(w_strong=1.0)", "Labels only", True),
        ("my_method.py:Mine", "Mine", False),
    ],
)
def test_runs_are_named_by_the_title_of_their_method(tmp_path: Path, method: str, name: str, labels_only: bool) -> None:
    (run,) = read_runs([make_run(tmp_path / "run", method)])
    assert run.name == name
    assert run.labels_only == labels_only


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"r{i}", method, seed=seed) for i, (method, seed) in enumerate(
        (("fixmatch", 0), ("fixmatch", 1), ("dst(fixmatch)", 0)))]  # fmt: skip
    names = [run.name for run in read_runs([*folders, folders[0]])]
    assert len(set(names)) == 4
    assert names[1] == "FixMatch, seed 1, r1"
    options = [make_run(tmp_path / f"tau{tau}", f"fixmatch(tau={tau})") for tau in (0.8, 0.9)]
    assert [run.name for run in read_runs(options)] == ["FixMatch(tau=0.8)", "FixMatch(tau=0.9)"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 2}\n', "line 2: not a row of metrics"),
        ("metrics.jsonl", b"[1]\n", "line 1: not a row of metrics"),
        ("metrics.jsonl", b"\xff\xfe\n", "cannot be read"),
        ("results.json", b"{", "not a JSON file"),
        ("results.json", b"[]", "expected a record"),
        ("config.yaml", b"[1, 2]", "expected settings"),
        ("config.yaml", b"a: [", "not a YAML file"),
        ("outputs.npz", b"PK\x03\x04 broken", "not a file written by numpy"),
        ("outputs.npz", b"", "not a file written by numpy"),
    ],
)
def test_an_error_names_the_broken_file(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        write_report([folder])
    assert file in str(error.value)


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report([tmp_path])
    with pytest.raises(UserError, match="the folder does not exist"):
        write_report([tmp_path / "nothing"])
    folder = make_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="has not been evaluated yet"):
        write_report([folder])
