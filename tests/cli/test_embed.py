"""``selftrain embed``, and files of features as arguments of the other commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import run
from tests.folders import CLASSES, fill, layout_2


@pytest.mark.long
def test_features_go_out_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    photos = layout_2(tmp_path / "photos") / "train"
    (photos / CLASSES[0] / "broken.png").write_bytes(b"not an image")
    assert run(monkeypatch, "embed", photos, "-o", "x.npz", "--size", 32) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "left out" in said
    assert "images as features of 1280 numbers (lite0 at 32 px) in x.npz, 1 unreadable left out" in said
    with np.load("x.npz", allow_pickle=False) as file:
        names = file["names"].tolist()
    rows = [f"{name},{name.partition('/')[0]}" for name in names]
    Path("labels.csv").write_text("\n".join(["path,label", *rows[::3]]) + "\n")
    quick = ["--steps", 4, "--set", "train.batch=4", "--set", "train.unlabeled_batch=4", "--out", "run"]
    assert run(monkeypatch, "train", "x.npz", "--labels", "labels.csv", *quick) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "features of 1280 numbers" in said
    assert " px" not in said
    assert run(monkeypatch, "predict", "run", "x.npz", "-o", "of_features.csv") == 0
    assert f"{len(names)} rows labeled in of_features.csv" in capfd.readouterr().err
    assert run(monkeypatch, "predict", "run", photos, "-o", "of_images.csv") == 0
    assert Path("of_features.csv").read_text() == Path("of_images.csv").read_text()
    Path("labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    assert run(monkeypatch, "evaluate", "run", "x.npz", "--labels", "labels.csv", "--json") == 0
    assert json.loads(capfd.readouterr().out)["images"] == len(names)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("embed photos -o x.csv", "error: --output x.csv: features are written to a .npz file or to a folder"),
        ("embed photos -o full", "error: --output full: exists already."),
        ("embed photos --weak 2", "error: --weak 2: methods compare weak views with strong ones. Add --strong 4"),
        ("embed nothing", "error: nothing: there is no such folder or image"),
        ("embed photos --dtype int8", "error: --dtype int8: expected float32 or float16."),
        ("embed photos --backbone wrn-28-2", "error: --backbone wrn-28-2: has random weights"),
        ("embed photos --set data.siez=3", "error: --set: there is no setting 'data.siez'. Did you mean 'data.size'?"),
        ("embed x.npz", "error: IMAGES x.npz: these are features already."),
        ("train x.npz", "there are no labels. Give a CSV file with the columns path,label as --labels"),
        ("train x.npz --labels labels.csv", "labels.csv, line 2: there is no row '9' in"),
        ("train x.npz --labels labels.csv --backbone lite0", "holds features already. Leave --backbone out."),
        (
            "train x.npz --labels labels.csv --unlabeled photos",
            "error: --unlabeled: with features, put the unlabeled rows",
        ),
        ("train none.npz --labels labels.csv", "error: DATA 'none.npz': there is no such file."),
        ("train claim.npy --labels labels.csv", "claim.npy: not an array written by numpy.save"),
    ],
)
def test_mistakes_with_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    fill(tmp_path / "photos", dict.fromkeys(CLASSES, 1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    np.savez("x.npz", features=np.ones((4, 3)))
    np.save("claim.npy", np.ones((4, 3)))
    with open("claim.npy", "r+b") as file:
        file.truncate(150)
    Path("labels.csv").write_text("path,label\n9,a\n1,b\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(monkeypatch, *words.split()) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert error in said
    assert said.count("error:") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == before


def test_stored_features_are_listed_verified_shrunk_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("selftrain.data.images.content.SETTLED", -1e9)
    data = layout_2(tmp_path / "data", per_class=2)
    assert run(monkeypatch, "embed", data / "train", "-o", tmp_path / "x.npz", "--size", 32, "--quiet") == 0
    capsys.readouterr()
    assert run(monkeypatch, "cache") == 0
    listed = capsys.readouterr().out
    assert "lite0" in listed
    assert str(data / "train") in listed
    assert run(monkeypatch, "cache", "--verify") == 0
    assert "1 pieces are whole, 0 are damaged" in capsys.readouterr().out
    (rows,) = (tmp_path / "cache" / "features").glob("*/*.rows")
    rows.write_bytes(b"\1" + rows.read_bytes()[1:])
    assert run(monkeypatch, "cache", "--verify", "lite") == 1
    assert "0 pieces are whole, 1 are damaged" in capsys.readouterr().out
    assert run(monkeypatch, "cache", "--shrink") == 0
    assert "freed" in capsys.readouterr().out
    assert run(monkeypatch, "cache", "--clear", "--shrink") == 2
    assert run(monkeypatch, "cache", "--clear") == 0
    assert "deleted 1 caches" in capsys.readouterr().out
