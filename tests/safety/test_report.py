"""A report on a stranger's run opens nothing outside the run folder, and never the network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from selftrain.data.sources import download
from selftrain.errors import UserError
from selftrain.report import write_report
from selftrain.report.examples import find_examples
from selftrain.report.run_data import read_runs
from selftrain.runs.layout import RunLayout
from tests.report.made import make_run


def private_images(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (200, 10, 10)).save(folder / name)


def change_settings(run: Path, **values: str) -> None:
    layout = RunLayout(run)
    text = layout.config.read_text()
    for name, value in values.items():
        lines = [line for line in text.splitlines() if not line.startswith(f"  {name}:")]
        lines.insert(lines.index("data:") + 1, f"  {name}: {value!r}")
        text = "\n".join(lines) + "\n"
    layout.config.write_text(text)


@pytest.mark.parametrize("prefix", ["", "unlabeled:"])
def test_images_of_places_that_the_run_names_are_not_read(tmp_path: Path, prefix: str) -> None:
    run = make_run(tmp_path / "run", truth=False)
    arrays = RunLayout(run).read_outputs()
    private_images(tmp_path / "private", [str(name) for name in arrays["pool_names"]])
    arrays["pool_names"] = np.array([f"{prefix}{name}" for name in arrays["pool_names"]])
    RunLayout(run).write_outputs(arrays)
    change_settings(run, path=str(tmp_path / "private"), unlabeled=str(tmp_path / "private"))
    assert "data:image/" not in write_report([run]).read_text()
    found = find_examples(read_runs([run])[0])
    assert "--images FOLDER" in found.missing
    shown = find_examples(read_runs([run], [tmp_path / "private"])[0])
    assert all(example.thumbnail for example in shown.to_label)
    assert not shown.missing


def test_a_label_file_that_the_run_names_is_not_printed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("root:x:very-secret\n")
    run = make_run(tmp_path / "run", data=str(tmp_path))
    change_settings(run, labels=str(secret))
    assert "very-secret" not in write_report([run]).read_text()


@pytest.mark.parametrize("data", ["sun397", "cifar10", "hf:someone/something"])
def test_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(download, "make_ready", refuse)
    run = make_run(tmp_path / "run", data=data)
    assert "data:image/" not in write_report([run]).read_text()


@pytest.mark.parametrize(
    "name", ["../private/1.jpg", "/etc/passwd", "a/../../private/1.jpg", "unlabeled:../private/1.jpg"]
)
def test_names_do_not_lead_out_of_the_folder_that_the_user_names(tmp_path: Path, name: str) -> None:
    private_images(tmp_path, ["private/1.jpg", "photos/a/1.jpg"])
    run = make_run(tmp_path / "run", truth=False)
    arrays = RunLayout(run).read_outputs()
    arrays["pool_names"] = np.array([name] * len(arrays["pool_names"]))
    RunLayout(run).write_outputs(arrays)
    found = find_examples(read_runs([run], [tmp_path / "photos"])[0])
    assert found.to_label
    assert not any(example.thumbnail for example in found.to_label)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`images` .*nothing: there is no such folder"):
        write_report([make_run(tmp_path / "run")], images=tmp_path / "nothing")


def test_a_measure_that_cannot_be_is_refused_or_left_out(tmp_path: Path) -> None:
    """Found by hostile inputs: an accuracy above 1 has no margin, and text is no point of a curve."""
    run = make_run(tmp_path / "run")
    results = json.loads((run / "results.json").read_text())
    results["per_class"][0] = 7.0
    (run / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match=r"per_class\[0\]: expected a number from 0 to 1"):
        write_report([run])
    results["per_class"][0] = 1.0
    whole = json.dumps(results)
    results["calibration"] = [[3, 0.5, 0.4], [2, None, 0.9], [0, None, None]]
    (run / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match="calibration: each entry must hold three numbers"):
        write_report([run])
    (run / "results.json").write_text(whole)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    (run / "metrics.jsonl").write_text("\n".join([json.dumps({**first, "loss_labeled": "x" * 100}), *lines[1:]]) + "\n")
    write_report([run])


def test_a_reference_of_other_classes_is_left_out(tmp_path: Path) -> None:
    """Found by hostile inputs: an accuracy is missing for a class that the run has."""
    run = make_run(tmp_path / "run", "dst(fixmatch)", reference=True)
    reference = json.loads((run / "reference.json").read_text())
    reference["all_labels"]["per_class"].pop()
    (run / "reference.json").write_text(json.dumps(reference))
    assert "Data bias is not shown" in write_report([run]).read_text()
