"""From a run to a file and back to predictions: the same ones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import selftrain
from selftrain.errors import UserError
from selftrain.export.export import export
from selftrain.export.exported import ExportedModel
from tests.folders import layout_2
from tests.runs.small_runs import train_small

pytestmark = pytest.mark.long

ONLY_THESE = """
import sys, runpy
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "timm", "selftrain", "sklearn", "scipy", "onnx"):
            raise ImportError(name + " is not installed here")
sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layouts of images in several formats and sizes."""
    folder = layout_2(tmp_path_factory.mktemp("data") / "data", per_class=8)
    rng = np.random.default_rng(0)
    odd = folder / "odd"
    odd.mkdir()
    for name, shape in (("large.jpg", (700, 500, 3)), ("grey.png", (40, 30)), ("clear.png", (33, 47, 4))):
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(odd / name)
    Image.fromarray(rng.integers(0, 65536, (20, 24), dtype=np.uint16)).save(odd / "wide.png")
    turned = Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(odd / "turned.jpg", exif=exif)
    (odd / "broken.jpg").write_bytes(b"not an image")
    return folder


@pytest.fixture(scope="module")
def scratch(data: Path, tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    return train_small(data, tmp_path_factory.mktemp("runs") / "scratch", labels_per_class=2)


@pytest.fixture(scope="module")
def frozen(data: Path, tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    """A run whose model is a blend with neighbours, on two crops, with novelty."""
    settings = {"train.batch": 6, "train.unlabeled_batch": 8, "network.bottleneck": 32}
    out = tmp_path_factory.mktemp("runs") / "frozen"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFTRAIN_CACHE", str(out.parent / "cache"))
        return selftrain.train(data, out=out, labels_per_class=2, size=32, steps=30, quiet=True, settings=settings)


@pytest.fixture(scope="module")
def exported(frozen: selftrain.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return frozen.export(tmp_path_factory.mktemp("exported") / "deep" / "model.onnx")


def same(run: selftrain.Run, model: ExportedModel, images: Path) -> None:
    ours, theirs = run.predict(images), model.predict(images)
    assert theirs.paths == ours.paths
    assert theirs.labels == ours.labels
    assert np.abs(theirs.probabilities - ours.probabilities).max() < 1e-4
    assert [error.path for error in theirs.unreadable] == [error.path for error in ours.unreadable]
    assert (theirs.novelty is None) is (ours.novelty is None)
    if ours.novelty is not None and theirs.novelty is not None:
        assert np.abs(theirs.novelty - ours.novelty).max() < 1e-3


def test_a_trained_network_predicts_the_same_as_a_file(scratch: selftrain.Run, data: Path, tmp_path: Path) -> None:
    path = scratch.export(tmp_path / "model.onnx")
    model = ExportedModel(path)
    same(scratch, model, data / "test")
    same(scratch, model, data / "odd")
    card = path.with_name("README.md").read_text()
    assert card.startswith("---\nlibrary_name: selftrain")
    assert "python predict.py new/" in card  # and not how to use a model folder, which is not there
    assert "MODEL_FOLDER" not in card
    assert model.evaluate(data)["accuracy"] == scratch.evaluate(data)["accuracy"]
    assert len(model.predict(data / "odd").unreadable) == 1
    with pytest.raises(UserError, match="broken"):
        model.predict(data / "odd", strict=True)


def test_a_blend_on_two_crops_predicts_the_same_as_a_file(
    frozen: selftrain.Run, exported: Path, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    card = json.loads((frozen.model / "model.json").read_text())
    assert card["neighbours"]
    assert card["preprocessing"]["zoom"] == 0.75
    model = ExportedModel(exported)
    assert model.description.novelty
    assert model.description.card is not None
    assert model.description.card["backbone"] == "lite0"
    assert model.classes == ("ant", "bee", "cat")
    same(frozen, model, data / "test")
    same(frozen, model, data / "odd")


def test_a_model_for_openvino_has_the_same_answers(
    frozen: selftrain.Run, exported: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    from selftrain.nn.runtimes import openvino_core

    path = frozen.export(tmp_path / "out" / "model.xml")
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.bin", "model.xml"]
    model = openvino_core().read_model(path)
    assert json.loads(model.get_rt_info(["selftrain", "classes"]).astype(str)) == ["ant", "bee", "cat"]
    like = json.loads(model.get_rt_info(["selftrain", "selftrain"]).astype(str))["crops"]
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    reference = ExportedModel(exported)
    fed: list[np.ndarray] = []
    run = reference._run

    def recorded(inputs: dict[str, np.ndarray]) -> Any:
        fed.append(inputs["crops"])
        return run(inputs)

    monkeypatch.setattr(reference, "_run", recorded)
    expected = reference.predict(data / "test").probabilities
    assert fed[0].shape[1:] == (len(like["shares"]), like["channels"], like["size"], like["size"])
    found = np.concatenate([compiled({"crops": crops})["probabilities"] for crops in fed])
    assert np.abs(found - expected).max() < 1e-3


def test_the_graph_resizes_as_pillow_does(exported: Path, data: Path) -> None:
    model = ExportedModel(exported)
    for path in ("odd/large.jpg", "odd/grey.png"):
        with Image.open(data / path) as image:
            pixels = np.asarray(image.convert("RGB"))
        by_pillow = model.predict(data / path).probabilities
        assert np.array_equal(model.run(pixels[None]).probabilities, by_pillow)
        assert model.description.crops is not None
    older = ExportedModel(exported)
    older.description = replace(model.description, crops=None)
    assert np.abs(older.predict(data / "odd").probabilities - model.predict(data / "odd").probabilities).max() < 1e-6


def test_the_script_needs_neither_torch_nor_selftrain(exported: Path, data: Path, tmp_path: Path) -> None:
    script = exported.with_name("predict.py")
    assert json.loads(exported.with_name("classes.json").read_text()) == ["ant", "bee", "cat"]
    for images in (data / "test", data / "odd"):
        out = tmp_path / f"{images.name}.csv"
        command = [sys.executable, "-c", ONLY_THESE, str(script), str(images), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("broken.jpg" in done.stderr) is (images.name == "odd")
        expected = ExportedModel(exported).predict(images).save(tmp_path / "expected.csv")
        assert out.read_text() == expected.read_text()


def test_the_command_line_takes_a_file_for_a_run(exported: Path, data: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from selftrain.cli.app import app

    out = tmp_path / "p.csv"
    done = CliRunner().invoke(app, ["predict", str(exported), str(data / "test"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_text() == ExportedModel(exported).predict(data / "test").save(tmp_path / "e.csv").read_text()
    done = CliRunner().invoke(app, ["evaluate", str(exported), str(data), "--json"])
    assert json.loads(done.stdout)["images"] == len(list((data / "test").rglob("*.png")))


def test_a_program_of_torch_predicts_the_same(scratch: selftrain.Run, data: Path, tmp_path: Path) -> None:
    path = scratch.export(tmp_path / "model.pt2")
    files = {"classes": "", "selftrain": ""}
    program = torch.export.load(path, extra_files=files).module()
    assert json.loads(files["classes"]) == ["ant", "bee", "cat"]
    names = sorted(str(one.relative_to(data / "test")) for one in (data / "test").rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(data / "test" / name).convert("RGB")) for name in names])
    for images in (pixels, np.tile(pixels[:1], (1, 3, 2, 1))):
        (p,) = program(torch.from_numpy(images))
        assert np.abs(p.numpy() - scratch.predict(images).probabilities).max() < 1e-4


def test_eight_bit_integers_keep_most_labels(scratch: selftrain.Run, data: Path, tmp_path: Path) -> None:
    small = scratch.export(tmp_path / "model.onnx", int8=data / "train")
    model = ExportedModel(small)
    measured = model.description.int8
    assert measured is not None
    assert measured.compared_on > 0
    assert measured.same_label > 0.8
    before, after = (one.predict(data / "test").probabilities for one in (scratch, model))
    assert 0 < np.abs(before - after).max() < 0.3
    with pytest.raises(UserError, match=r"`int8`: 5 readable images .* at least 16"):
        scratch.export(tmp_path / "model.onnx", int8=data / "odd")


def test_errors_name_the_file_and_what_would_be_right(scratch: selftrain.Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`out` .*model\.txt: the name must end in \.onnx"):
        scratch.export(tmp_path / "model.txt")
    with pytest.raises(UserError, match=r"must end in \.pt2 \(torch\)"):
        scratch.export(tmp_path / "model.onnx", format="torch")
    with pytest.raises(UserError, match=r"`format` 'tflite': choose onnx, torch or openvino"):
        scratch.export(tmp_path / "model.onnx", format="tflite")
    with pytest.raises(UserError, match=r"`int8`: only ONNX"):
        scratch.export(tmp_path / "model.pt2", int8=tmp_path)
    (tmp_path / "predict.py").write_text("print('mine')\n")
    with pytest.raises(UserError, match=r"predict\.py: this file exists and was not written by 'selftrain export'"):
        scratch.export(tmp_path / "model.onnx")
    with pytest.raises(UserError, match="no trained model here"):
        export(tmp_path, tmp_path / "sub" / "model.onnx")
    with pytest.raises(UserError, match=r"expected an \.onnx file"):
        ExportedModel(tmp_path / "model.pt2")


def test_weights_of_others_are_not_replaced(scratch: selftrain.Run, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    mine = tmp_path / "pytorch_model.bin"
    mine.write_bytes(b"mine")
    with pytest.raises(UserError, match=r"pytorch_model\.bin: this file exists and was not written by 'selftrain exp"):
        scratch.export(tmp_path / "pytorch_model.xml")
    assert mine.read_bytes() == b"mine"
    for _ in range(2):  # its own are
        scratch.export(tmp_path / "Model.XML")
    assert {file.name for file in tmp_path.iterdir()} == {"pytorch_model.bin", "Model.XML", "Model.bin"}
