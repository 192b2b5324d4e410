"""ONNX files of strangers: what is not opened, and why."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from selftrain.errors import UserError
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
    for wrong in ({"input": "sound"}, {"dim": "3"}, {"least_side": -1}):
        with pytest.raises(UserError, match="selftrain did not write this model"):
            ExportedModel(described(tmp_path / "m.onnx", made, **wrong)).predict(images)
    with pytest.raises(UserError, match="newer"):
        ExportedModel(described(tmp_path / "m.onnx", made, format=99)).predict(images)


def test_outputs_must_fit_the_classes(tmp_path: Path) -> None:
    made = model(constant(np.full((1, 3), 0.5, np.float32)))
    with pytest.raises(UserError, match="do not fit its 2 classes"):
        ExportedModel(described(tmp_path / "m.onnx", made)).predict(np.zeros((1, 8, 8, 3), np.uint8))
