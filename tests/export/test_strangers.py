"""ONNX files of strangers: what is not opened, and why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from selftrain.data.images.pixel_budget import MOST_PIXELS
from selftrain.errors import UserError
from selftrain.export import standalone
from selftrain.export.exported import ExportedModel
from selftrain.nn import onnx_file
from selftrain.nn.onnx_file import check_onnx, read_onnx


def model(*nodes: onnx.NodeProto, weights: list[onnx.TensorProto] | None = None, domain: str = "") -> onnx.ModelProto:
    image = helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", "H", "W", 3])
    p = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", "K"])
    made = helper.make_graph(list(nodes), "graph", [image], [p], weights or [])
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def constant(value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["probabilities"], value=numpy_helper.from_array(value))


def external(name: str) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    return tensor


def described(path: Path, made: onnx.ModelProto, **changes: object) -> Path:
    about = {"input": "images", "dim": 0, "least_side": 0, "novelty": False, "format": 1, **changes}
    helper.set_model_props(made, {"classes": json.dumps(["a", "b"]), "selftrain": json.dumps(about)})
    path.write_bytes(made.SerializeToString())
    return path


def test_external_data_is_refused_wherever_it_is() -> None:
    check_onnx(model(constant(np.zeros((1, 2), np.float32))).SerializeToString(), "m")
    with pytest.raises(UserError, match=r"m\.onnx: its weights are in other files"):
        check_onnx(model(weights=[external("w")]).SerializeToString(), "m.onnx")
    inside = helper.make_node("Constant", [], ["w"], value=external("w"))
    branch = helper.make_graph([inside], "branch", [], [helper.make_tensor_value_info("w", TensorProto.FLOAT, [3])])
    node = helper.make_node("If", ["c"], ["probabilities"], then_branch=branch, else_branch=branch)
    with pytest.raises(UserError, match="external data"):
        check_onnx(model(node).SerializeToString(), "m.onnx")


def test_operators_of_others_are_refused() -> None:
    node = helper.make_node("Run", ["images"], ["probabilities"], domain="evil.ops")
    for made in (model(node), model(domain="evil.ops")):
        with pytest.raises(UserError, match=r"operators of 'evil\.ops'"):
            check_onnx(made.SerializeToString(), "m.onnx")


@pytest.mark.parametrize("data", [b"not a model", b"\xff" * 40, b"\x3a\xff\xff\xff\x7f", b"\x3a\x02\x0b\x0b"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UserError, match="not an ONNX model"):
        check_onnx(data, "m.onnx")


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 10)
    with pytest.raises(UserError, match="are not opened"):
        read_onnx(tmp_path / "m.onnx")
    with pytest.raises(UserError, match=r"none\.onnx: cannot be read"):
        read_onnx(tmp_path / "none.onnx")


def test_a_model_that_selftrain_did_not_write_is_refused(tmp_path: Path) -> None:
    made = model(constant(np.full((1, 2), 0.5, np.float32)))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    images = np.zeros((1, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="selftrain did not write this model"):
        ExportedModel(tmp_path / "m.onnx").predict(images)
    assert ExportedModel(described(tmp_path / "m.onnx", made)).predict(images).labels == ["a"]
    crops = {"size": 8, "channels": 3, "interpolation": "bicubic", "shares": [9]}
    for wrong in (
        {"crops": crops},
        {"input": "sound"},
        {"dim": "3"},
        {"least_side": -1},
        {"novelty": "x"},
        {"card": [1]},
        {"crops": {"size": 0}},
    ):
        with pytest.raises(UserError, match="selftrain did not write this model"):
            ExportedModel(described(tmp_path / "m.onnx", made, **wrong)).predict(images)
    with pytest.raises(UserError, match="newer"):
        ExportedModel(described(tmp_path / "m.onnx", made, format=99)).predict(images)


def test_outputs_must_fit_the_classes(tmp_path: Path) -> None:
    made = model(constant(np.full((1, 3), 0.5, np.float32)))
    with pytest.raises(UserError, match="do not fit its 2 classes"):
        ExportedModel(described(tmp_path / "m.onnx", made)).predict(np.zeros((1, 8, 8, 3), np.uint8))


def test_a_model_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(UserError, match="it is a pipe"):
        read_onnx(tmp_path / "m.onnx")


def test_names_that_are_not_utf8_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(constant(np.full((1, 2), 0.5, np.float32)))
    path = described(tmp_path / "m.onnx", made)
    whole = path.read_bytes()
    for name in (b"probabilities", b"selftrain"):
        path.write_bytes(whole.replace(name, b"\xff" * len(name)))
        with pytest.raises(UserError, match=r"UTF-8|cannot load it|not those of"):
            ExportedModel(path).predict(np.zeros((1, 8, 8, 3), np.uint8))
    assert "EP Error" not in capsys.readouterr().out


def test_the_script_obeys_no_name_and_unpacks_no_bomb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """predict.py stands alone, and has the same limits as ``selftrain predict``."""
    assert [standalone.cell(text) for text in ("=1+1", "-x.jpg", "-1.5", "a.jpg", "")] == [
        "'=1+1", "'-x.jpg", "-1.5", "a.jpg", ""
    ]  # fmt: skip
    assert standalone.LARGEST == MOST_PIXELS
    os.mkfifo(tmp_path / "pipe.jpg")
    Image.new("1", (8000, 7000)).save(tmp_path / "bomb.png")
    (tmp_path / "line\n\x1b[2J.png").write_bytes(b"not an image")
    _, names = standalone.find_images([str(tmp_path)])
    model = cast(Any, SimpleNamespace(least_side=8, at_once=2, crops_of=None))
    assert list(standalone.answers(model, tmp_path, names)) == []
    said = capsys.readouterr().err
    assert "56,000,000 pixels, more than 50,000,000" in said
    assert "not a regular file" in said
    assert "\x1b" not in said
    assert len(said.splitlines()) == 3


def test_the_script_keeps_no_whole_images_of_a_batch(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 30)).save(tmp_path / name)

    class Small(standalone.Model):
        crops: dict[str, Any] = {"size": 8, "channels": 3, "interpolation": "bicubic", "shares": [1.0, 0.75]}  # noqa: RUF012
        least_side = 8

        def __init__(self) -> None: ...

        def __call__(self, crops: list[Any]) -> list[Any]:
            assert [one.shape for one in crops] == [(2, 3, 8, 8)] * 2
            return [np.eye(2)]

    found = standalone.answered(Small(), tmp_path, ["a.png", "b.png"])
    assert [(name, p.tolist()) for name, (p,) in found] == [("a.png", [1, 0]), ("b.png", [0, 1])]
