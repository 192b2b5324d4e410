"""The command line: its output, the files it writes, and one line with exit code 2 for every mistake."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selftrain.cli import main
from selftrain.console import ProgressLines
from selftrain.engine.checkpoint import save_checkpoint
from selftrain.runs.extractor import Extractor
from tests.folders import CLASSES, fill, layout_1, layout_2, layout_3

QUICK = [
    "--backbone", "wrn-tiny", "--steps", "4", "--quiet", "--set", "train.batch=4", "--set", "train.unlabeled_batch=4",
    "--set", "data.workers=0",
]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["selftrain", *map(str, words)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images ``data`` and a run on them, ``run``, shared by all tests."""
    home = tmp_path_factory.mktemp("trained")
    data = layout_2(home / "data")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run(monkeypatch, "train", data, "--labels-per-class", 2, "--out", home / "run", *QUICK) == 0
    return home


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """The run, copied for the test together with its images."""
    for name in ("data", "run"):
        shutil.copytree(trained_once / name, tmp_path / name)
    return tmp_path / "run"


def odd_images(folder: Path) -> list[str]:
    """Save one image of every kind that is hard to read, some of them deep in the tree."""
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (20, 24), dtype=np.uint8)
    colour = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
    alpha = rng.integers(0, 256, (20, 24, 4), dtype=np.uint8)
    (folder / "a" / "b c" / "ü").mkdir(parents=True)
    Image.fromarray(alpha).save(folder / "alpha.png")
    Image.fromarray(grey).save(folder / "a" / "grey.jpg")
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / "a" / "b c" / "deep16.png")
    Image.fromarray(colour).save(folder / "a" / "b c" / "ü" / "web.webp")
    frames = [Image.fromarray(255 - colour), Image.fromarray(colour)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    return ["a/b c/deep16.png", "a/b c/ü/web.webp", "a/grey.jpg", "alpha.png", "moving.gif"]


@pytest.mark.long
def test_help_teaches_without_importing_torch() -> None:
    code = """
import sys
sys.argv = ["selftrain", "train", "--help"]
from selftrain.cli import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for word in ("labeled/<class>", "--labels-per-class", "dst(fixmatch", "--resume", "--set"):
        assert word in done.stdout


def test_predict_writes_every_kind_of_image(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = odd_images(tmp_path / "new")
    (tmp_path / "new" / "broken.png").write_bytes(b"not an image")
    out = tmp_path / "deep" / "predictions.csv"
    assert run(monkeypatch, "predict", trained, tmp_path / "new", "-o", out) == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == names
    assert list(rows[0]) == ["path", "label", "confidence", *(f"prob_{name}" for name in CLASSES)]
    for row in rows:
        p = [float(row[f"prob_{name}"]) for name in CLASSES]
        assert sum(p) == pytest.approx(1, abs=1e-4)
        assert float(row["confidence"]) == max(p)
        assert row["label"] == CLASSES[int(np.argmax(p))]
    assert "broken.png" in capsys.readouterr().err


def test_predict_writes_the_same_table_as_parquet(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    odd_images(tmp_path / "new")
    for suffix in ("csv", "parquet"):
        out = tmp_path / f"p.{suffix}"
        assert run(monkeypatch, "predict", trained, tmp_path / "new", "-o", out, "--threshold", 0.5) == 0
        assert f"5 images labeled in {out}" in " ".join(capsys.readouterr().err.split())
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert found.column_names == list(rows[0])
    assert str(found.schema.field("confidence").type) == "float"
    for name in found.column_names:
        in_csv = [row[name] for row in rows]
        if name in ("path", "label"):
            assert found[name].to_pylist() == in_csv
        else:
            assert found[name].to_pylist() == pytest.approx([float(value) for value in in_csv], abs=1e-4)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(monkeypatch, "predict", trained, tmp_path / "none", "-o", tmp_path / "q.parquet") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "q.parquet: Parquet files need pyarrow. Run pip install pyarrow, or write a .csv file." in said


def test_predict_takes_tar_files(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "new"
    fill(new, {"ant": 3}, seed=3)
    for number, image in enumerate(sorted(new.rglob("*.png"))):
        with tarfile.open(tmp_path / f"new-{number}.tar", "w") as tar:
            tar.add(image, "image.png")
    found: list[list[dict[str, str]]] = []
    for images in (new, f"{tmp_path}/new-{{0..2}}.tar"):
        out = tmp_path / f"{len(found)}.csv"
        assert run(monkeypatch, "predict", trained, images, "-o", out) == 0
        with out.open(encoding="utf-8", newline="") as file:
            found.append([{k: v for k, v in row.items() if k != "path"} for row in csv.DictReader(file)])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_predict_strict_stops_at_a_broken_image(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd_images(tmp_path / "new")
    (tmp_path / "new" / "broken.png").write_bytes(b"not an image")
    out = tmp_path / "predictions.csv"
    assert run(monkeypatch, "predict", trained, tmp_path / "new", "-o", out, "--strict") == 2
    assert "broken.png" in capsys.readouterr().err
    assert not out.exists()


def test_nothing_is_predicted_if_the_output_cannot_be_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("selftrain.runs.run.Run.predict", lambda *args, **options: pytest.fail("too late"))
    for place, reason in ((tmp_path, "it is a folder"), (tmp_path / "file" / "p.csv", "is not a folder")):
        assert run(monkeypatch, "predict", trained, tmp_path / "data", "-o", place) == 2
        assert reason in capsys.readouterr().err.replace("\n", " ")


def test_evaluate(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "evaluate", trained, tmp_path / "data", "--json") == 0
    measures = json.loads(capsys.readouterr().out)
    assert measures["accuracy"] == json.loads((trained / "results.json").read_text())["accuracy"]
    assert measures["images"] == 12
    fill(tmp_path / "more", dict.fromkeys(CLASSES, 2), seed=7)
    assert run(monkeypatch, "evaluate", trained, tmp_path / "more") == 0
    shown = capsys.readouterr().out
    assert "worst fifth" in shown
    assert "calibration error" in shown
    rows = "".join(f"{name}/{name}000.png,{name}\n" for name in CLASSES)
    (tmp_path / "some.csv").write_text(f"path,label\n{rows}")
    assert run(monkeypatch, "evaluate", trained, tmp_path / "more", "--labels", tmp_path / "some.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["images"] == len(CLASSES)
    assert run(monkeypatch, "evaluate", trained, "digits", "--labels", tmp_path / "some.csv") == 2


@pytest.mark.parametrize("words", [["predict", "-o", "/dev/null"], ["evaluate"]])
def test_progress_reaches_the_end(
    words: list[str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: dict[str, list[int]] = {}

    def reach(self: ProgressLines, done: int, total: int | None = None) -> None:
        reached.setdefault(self._what, []).append(done)

    monkeypatch.setattr(ProgressLines, "reach", reach)
    assert run(monkeypatch, words[0], trained, tmp_path / "data" / "test", *words[1:]) == 0
    assert list(reached) == ["reading images", "predicting" if words[0] == "predict" else "evaluating"]
    assert all(done == sorted(done) and done[-1] == 12 for done in reached.values())


@pytest.mark.parametrize("what", ["methods", "datasets", "backbones", "settings"])
def test_list(what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "list", what) == 0
    word = {"methods": "fixmatch", "datasets": "digits", "backbones": "wrn-28-2", "settings": "optim.lr"}[what]
    assert word in capsys.readouterr().out


def test_train_reports_its_data_and_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data, labels = layout_3(tmp_path / "photos")
    words = [word for word in QUICK if word != "--quiet"]
    assert run(monkeypatch, "train", data, "--labels", labels, *words) == 0
    captured = capsys.readouterr()
    assert "6 labeled and 30 unlabeled images" in captured.err
    assert "Not evaluated" in captured.out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["photos-dst-fixmatch-seed0"]


@pytest.mark.long
def test_train_continues_when_its_output_pipe_is_closed(tmp_path: Path) -> None:
    data, out = layout_2(tmp_path / "data"), tmp_path / "run"
    words = ["train", data, "--labels-per-class", 2, "--out", out, *(word for word in QUICK if word != "--quiet")]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "selftrain", *map(str, words)], stdout=writer, stderr=writer, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert (out / "results.json").exists()
    assert len((out / "log.txt").read_text().splitlines()) > 1


@pytest.mark.long
def test_ctrl_c_keeps_the_features_extracted_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    data, extract = layout_2(tmp_path / "data", per_class=16), Extractor.__call__
    calls = iter(range(1000))

    def interrupted(self: Extractor, pixels: torch.Tensor) -> torch.Tensor:
        if next(calls) == 2:  # the last of three pieces
            raise KeyboardInterrupt
        return extract(self, pixels)

    monkeypatch.setattr(Extractor, "__call__", interrupted)
    words = ["train", data, "--labels-per-class", 2, "--regime", "frozen", "--size", 32, "--steps", 2, "--out"]
    assert run(monkeypatch, *words, tmp_path / "run") == 130
    said = capsys.readouterr().err
    assert "stopped while extracting features; finished pieces are kept" in said.replace("\n", " ")
    assert run(monkeypatch, *words, tmp_path / "run") == 0
    assert "images are already in" in capsys.readouterr().err.replace("\n", " ")


def test_train_asks_about_a_label_that_may_be_misspelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data, labels = layout_3(tmp_path / "photos")
    last = f"shots/{CLASSES[0]}/{CLASSES[0]}005.png"
    labels.write_text(f"{labels.read_text()}{last},{CLASSES[0]}s\n")
    words = [word for word in QUICK if word != "--quiet"]
    command = ("train", data, "--labels", labels, *words)
    question = f"Only one image has the label '{CLASSES[0]}s': did you mean '{CLASSES[0]}'?"
    assert run(monkeypatch, *command) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{question} Correct the file, or add --yes if that is meant." in said
    assert run(monkeypatch, *command, "--yes") == 0
    assert f"warning: {labels}: {question}" in " ".join(capsys.readouterr().err.split())


def broken_csv(data: Path, text: str) -> Path:
    path = data / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def bad_inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[object], list[str]]]:
    """By name, the arguments of a command with a mistake, and words that its one-line error must have."""
    tmp_path = tmp_path_factory.mktemp("bad")
    good = layout_2(tmp_path / "good")
    empty = tmp_path / "empty"
    empty.mkdir()
    odd = tmp_path / "odd"
    fill(odd / "pictures", {"ant": 2})
    hollow = layout_2(tmp_path / "hollow")
    (hollow / "train" / "dog").mkdir()
    unreadable = layout_1(tmp_path / "unreadable")
    (unreadable / "labeled" / "dog").mkdir()
    (unreadable / "labeled" / "dog" / "x.png").write_bytes(b"no")
    tree, _ = layout_3(tmp_path / "tree")
    unknown = broken_csv(tree, "path,label\nshots/ant/ant00.png,ant\nshots/bee/bee001.png,bee\n")
    twice_tree, _ = layout_3(tmp_path / "twice")
    row = "shots/ant/ant001.png,ant\n"
    twice = broken_csv(twice_tree, f"path,label\n{row}{row}shots/bee/bee001.png,bee\n")
    corrupt = layout_2(tmp_path / "corrupt")
    (corrupt / "train" / "ant" / "bad.png").write_bytes(b"no")
    latin = layout_2(tmp_path / "latin")
    for part in ("train", "test"):
        os.rename(latin / part / "cat", os.fsencode(latin / part) + b"/\xff")
    label = ["--labels-per-class", 2]
    return {
        "unknown method": ([good, *label, "--method", "fixmtch"], ["fixmtch", "fixmatch"]),
        "method option": ([good, *label, "--method", "fixmatch(tua=1)"], ["tua", "tau"]),
        "unknown backbone": ([good, *label, "--backbone", "wrn-28-3"], ["wrn-28-3", "wrn-28-"]),
        "unknown regime": ([good, *label, "--regime", "scrtch"], ["scrtch", "scratch"]),
        "unknown setting": ([good, *label, "--set", "optim.lrr=1"], ["lrr", "lr"]),
        "unknown section": ([good, *label, "--set", "optm.lr=1"], ["optm.lr"]),
        "no value": ([good, *label, "--set", "optim.lr"], ["name=value"]),
        "bad value": ([good, *label, "--set", "optim.lr=fast"], ["fast", "a number"]),
        "out of range": ([good, *label, "--set", "optim.momentum=2"], ["optim.momentum=2"]),
        "no such data": ([tmp_path / "nowhere"], ["nowhere"]),
        "dataset name": (["digit", *label], ["digit", "digits"]),
        "empty folder": ([empty, *label], ["empty", "no image"]),
        "layout": ([odd, *label], ["odd"]),
        "empty class": ([hollow, *label], ["dog"]),
        "unreadable class": ([unreadable], ["dog"]),
        "unknown path": ([tree, "--labels", unknown], ["line 2", "ant00.png", "Did you mean"]),
        "duplicate row": ([twice_tree, "--labels", twice], ["ant001.png"]),
        "no such labels": ([tree, "--labels", tmp_path / "no.csv"], ["no.csv"]),
        "strict": ([corrupt, *label, "--strict"], ["bad.png"]),
        "labels per class": ([good], ["--labels-per-class"]),
        "too many": ([good, "--labels-per-class", 99], ["99"]),
        "no unlabeled": ([good, "--labels-per-class", 12, "--set", "data.include_labeled=false"], ["supervised"]),
        "no data": ([], ["DATA"]),
        "no config": ([good, "--config", tmp_path / "no.yaml"], ["no.yaml"]),
        "resume nothing": ([good, *label, "--resume"], ["config.yaml"]),
        "no weights file": ([good, *label, "--set", "network.weights=no.pth"], ["no.pth"]),
        "not finite": ([good, *label, "--set", "optim.clip=nan"], ["optim.clip=nan", "a number"]),
        "infinite": ([good, *label, "--set", "train.eval_batch=inf"], ["train.eval_batch=inf"]),
        "huge size": ([good, *label, "--set", "data.size=1e9"], ["8 to 4096"]),
        "huge seed": ([good, *label, "--seed", 2**70], ["--seed 11"]),
        "negative option": ([good, *label, "--method", "dst(fixmatch, width=-1)"], ["dst(width=-1)"]),
        "dropout": ([good, *label, "--method", "dst(fixmatch, dropout=1)"], ["dst(dropout=1)"]),
        "wrong base": ([good, *label, "--set", "method.base=supervised"], ["cannot wrap"]),
        "deep method": ([good, *label, "--method", "dst(" * 2000], ["brackets"]),
        "no gpu": ([good, *label, "--set", "train.accelerator=mps"], ["train.accelerator=mps"]),
        "latin-1 class": ([latin, *label], ["UTF-8"]),
    }


@pytest.mark.parametrize(
    "what",
    [
        "unknown method", "method option", "unknown backbone", "unknown regime", "unknown setting", "unknown section",
        "no value", "bad value", "out of range", "no such data", "dataset name", "empty folder", "layout",
        "empty class", "unreadable class", "unknown path", "duplicate row", "no such labels", "strict",
        "labels per class", "too many", "no unlabeled", "no data", "no config", "resume nothing", "no weights file",
        "not finite", "infinite", "huge size", "huge seed", "negative option", "dropout", "wrong base",
        "deep method", "no gpu", "latin-1 class",
    ],
)  # fmt: skip
def test_bad_input_takes_one_line_and_leaves_nothing(
    what: str,
    bad_inputs: dict[str, tuple[list[object], list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, expected = bad_inputs[what]
    quick = [word for word in QUICK if "--backbone" not in words or word not in ("--backbone", "wrn-tiny")]
    out = tmp_path / "out" / "run"
    assert run(monkeypatch, "train", *words, "--out", out, *quick) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.strip()]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    for word in expected:
        assert word in lines[0]
    assert not (tmp_path / "out").exists()


def test_without_network_the_error_names_another_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    data = layout_2(tmp_path / "data")
    words = ["train", data, "--labels-per-class", 2, "--backbone", "resnet18", "--out", tmp_path / "run", "--quiet"]
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert "resnet18" in error
    assert "Choose backbone lite" in error
    assert not (tmp_path / "run").exists()


def test_an_unreadable_image_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = layout_2(tmp_path / "data")
    (data / "train" / "ant" / "bad.png").write_bytes(b"no")
    words = [word for word in QUICK if word != "--quiet"]
    assert run(monkeypatch, "train", data, "--labels-per-class", 2, "--out", tmp_path / "run", *words) == 0
    assert (
        "left out 1 image that cannot be read: train/ant/bad.png (--strict stops at the first)"
        in capsys.readouterr().err
    )


def test_an_existing_run_is_not_overwritten(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "results.json").read_text()
    assert run(monkeypatch, "train", tmp_path / "data", "--labels-per-class", 2, "--out", trained, *QUICK) == 2
    assert "--resume" in capsys.readouterr().err
    assert (trained / "results.json").read_text() == before


@pytest.mark.parametrize("words", [["predict", "no-run", "."], ["evaluate", "no-run", "."]])
def test_a_folder_that_is_not_a_run(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_predict_on_nothing(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "predict", trained, tmp_path / "nowhere") == 2
    (tmp_path / "bare").mkdir()
    assert run(monkeypatch, "predict", trained, tmp_path / "bare") == 2
    assert "no image" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["file/run", "link", "x" * 300, "/proc/none/run"])
def test_a_run_folder_that_cannot_be_created(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = layout_2(tmp_path / "data")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    assert run(monkeypatch, "train", data, "--labels-per-class", 2, "--out", out, *QUICK) == 2
    assert capsys.readouterr().err.startswith("error: --out ")


@pytest.mark.parametrize("content", [b"", b"junk", "cut", "foreign"])
def test_a_damaged_checkpoint_is_named(
    content: bytes | str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((trained / "checkpoints").glob("state-*.safetensors"))
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    else:
        save_checkpoint(path.parent, {"a": 1})
    assert run(monkeypatch, "train", "--resume", "--out", trained, "--quiet") == 2
    said = capsys.readouterr().err
    assert "to start the run again from its first step" in said
    assert ("not a checkpoint of this run" if content == "foreign" else f"{path.name}: ") in said


def test_predict_where_nothing_can_be_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (trained / "results.json" / "p.csv", trained, ""):
        assert run(monkeypatch, "predict", trained, tmp_path / "data" / "test", "-o", out) == 2
        assert "error: " in capsys.readouterr().err


def test_file_names_that_are_not_utf8(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    fill(new, {"ant": 1})
    os.rename(new / "ant" / "ant000.png", os.fsencode(new) + b"/\xff.png")
    (new / "ant" / "x.png").write_bytes(b"no")
    os.rename(new / "ant" / "x.png", os.fsencode(new) + b"/\xfe.png")
    assert run(monkeypatch, "predict", trained, new, "-o", tmp_path / "p.csv") == 0
    assert b"\xff.png," in (tmp_path / "p.csv").read_bytes()
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_fails_in_training_is_named(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = layout_2(tmp_path / "data")
    for path in (data / "train" / "ant").iterdir():
        path.write_bytes(path.read_bytes()[:300])  # the header is whole
    words = [*QUICK, "--set", "data.check=header", "--set", f"data.workers={workers}"]
    assert run(monkeypatch, "train", data, "--labels-per-class", 2, "--out", tmp_path / "run", *words) == 2
    assert "train/ant/ant" in capsys.readouterr().err


def test_predict_follows_links_and_fills_pipes(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    images = tmp_path / "data" / "test"
    assert run(monkeypatch, "predict", trained, images, "-o", tmp_path / "link.csv") == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("path,label")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit((tmp_path / "pipe").read_text)
        assert run(monkeypatch, "predict", trained, images, "-o", tmp_path / "pipe") == 0
        assert read.result() == (tmp_path / "real.csv").read_text()
    assert (tmp_path / "pipe").is_fifo()
    assert run(monkeypatch, "predict", trained, images, "-o", "/dev/null") == 0


def test_predict_to_standard_output(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = tmp_path / "data" / "test"
    assert run(monkeypatch, "predict", trained, images, "-o", "wanted.csv") == 0
    wanted = (tmp_path / "wanted.csv").read_bytes().decode()
    assert capfd.readouterr().out == ""
    assert run(monkeypatch, "predict", trained, images, "-o", "-") == 0
    captured = capfd.readouterr()
    assert captured.out == wanted
    assert "12 images labeled" in captured.err
    assert not (tmp_path / "-").exists()


def test_predictions_never_overwrite_an_image(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = next((tmp_path / "data" / "test").rglob("*.png"))
    before = photo.read_bytes()
    for name, right in ((photo, f"{photo.stem}.csv"), (tmp_path / "p.json", "p.csv")):
        assert run(monkeypatch, "predict", trained, tmp_path / "data" / "test", "-o", name) == 2
        assert f"call the file {right}" in " ".join(capsys.readouterr().err.split())
    assert photo.read_bytes() == before
    assert run(monkeypatch, "predict", trained, "", "-o", tmp_path / "p.csv") == 2
    assert "IMAGES is empty" in capsys.readouterr().err


def test_options_that_contradict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = layout_2(tmp_path / "data"), tmp_path / "run"
    assert run(monkeypatch, "train", data, "--steps", 2, "--set", "train.steps=5", "--out", out) == 2
    assert "--set: train.steps=5 conflicts with 2, which was also given" in capsys.readouterr().err
    assert not out.exists()


def test_an_option_of_a_method_without_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for spelling, said in (("fixmatch(tau)", "write tau=VALUE"), ("fixmatch(uda)", "it wraps no other method")):
        assert run(monkeypatch, "train", "digits", "--method", spelling) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_run_without_its_split_is_not_resumed(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / "split.json").unlink()
    assert run(monkeypatch, "train", "--out", trained, "--resume") == 2
    assert "has no split.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("40 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory"),
    ],
)
def test_too_little_memory_is_one_line_and_exit_code_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("selftrain.runs.trainer.train", fail)
    assert run(monkeypatch, "train", "digits") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: not enough memory")
    assert "--set train.batch=N" in said


def test_torch_and_torchvision_that_do_not_fit_are_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("selftrain.runs.trainer.train", fail)
    assert run(monkeypatch, "train", "digits") == 2
    assert "from the same index" in " ".join(capsys.readouterr().err.split())


def test_overwrite_replaces_a_run_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, labels = layout_3(tmp_path / "photos")
    command = ("train", data, "--labels", labels, *QUICK, "--out", tmp_path / "run")
    assert run(monkeypatch, *command) == 0
    before = (tmp_path / "run" / "results.json").read_text()
    right = labels.read_text()
    labels.write_text("path,label\nnowhere.png,a\n")
    assert run(monkeypatch, *command, "--overwrite") == 2  # the data has a problem: nothing is lost
    assert (tmp_path / "run" / "results.json").read_text() == before
    labels.write_text(right)
    assert run(monkeypatch, *command, "--overwrite", "--seed", 1) == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["seed"] == 1
    (tmp_path / "run" / "notes.txt").write_text("mine")
    capsys.readouterr()
    assert run(monkeypatch, *command, "--overwrite") == 2
    assert "holds 'notes.txt', which no run writes. Nothing was deleted" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "run" / "results.json").exists()
    assert run(monkeypatch, *command, "--overwrite", "--resume") == 2


def test_all_problems_of_a_label_file_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, labels = layout_3(tmp_path / "photos")
    first = labels.read_text().splitlines()[1]
    labels.write_text(f"path,label\n{first}\n{first}\n,a\nb.png,\nnowhere.png,{first.split(',')[1].upper()}\n")
    assert run(monkeypatch, "train", data, "--labels", labels, *QUICK) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{labels}: 5 problems. Line 3: " in said
    for part in ("already has a row, line 2", "Line 4: no path", "Line 5: no label for 'b.png'", "Line 6: "):
        assert part in said
    assert said.count("Line 6: ") == 2  # there is no such image, and the label differs in case only
