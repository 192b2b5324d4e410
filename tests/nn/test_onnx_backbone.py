"""Backbones in files: the features of the file's network, kept in the model, and clear errors for other files."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import selftrain
from selftrain.errors import UserError
from selftrain.nn.backbones import build_backbone
from selftrain.nn.onnx_backbone import pixel_statistics
from tests import folders

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
SIDE = 16


class Small(nn.Module):
    """Images -> 12 pooled features, or a map of them, or tokens."""

    def __init__(self, output: str = "pooled") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.output = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU()), output

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return {"map": x, "pooled": x.mean(dim=(2, 3)), "tokens": x.flatten(2).transpose(1, 2)}[self.output]


def onnx_file(
    path: Path, net: nn.Module, *, batch: int = 2, dynamic: bool = True, shape: tuple[int, ...] = (3, SIDE, SIDE)
) -> Path:
    axes = {"x": {0: "batch", 2: "height", 3: "width"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporter itself
        example = (torch.zeros(batch, *shape),)
        torch.onnx.export(net.eval(), example, str(path), dynamo=False, input_names=["x"], dynamic_axes=axes)
    return path


@pytest.mark.parametrize("output", ["pooled", "map"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["any batch", "batches of 2"])
def test_features_are_those_of_the_network(tmp_path: Path, output: str, dynamic: bool) -> None:
    net = Small(output).eval()
    backbone = build_backbone(str(onnx_file(tmp_path / "net.onnx", net, dynamic=dynamic)), size=SIDE)
    x = torch.randn(5, 3, SIDE, SIDE)
    expected = net(x) if output == "pooled" else net(x).mean(dim=(2, 3))
    torch.testing.assert_close(backbone(x), expected.detach(), atol=1e-5, rtol=1e-5)
    assert (backbone.dim, backbone.weights, backbone.trainable) == (12, "file", False)
    assert not backbone(x.requires_grad_()).requires_grad
    for again in (copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):
        assert torch.equal(again(x), backbone(x))


def test_a_program_of_torch_export_is_a_backbone_too(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    net, x = Small().eval(), torch.randn(4, 3, SIDE, SIDE)
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=({0: batch},)), tmp_path / "net.pt2")
    backbone = build_backbone(str(tmp_path / "net.pt2"))
    assert backbone.preprocessing.size == SIDE  # it is fixed in the program
    torch.testing.assert_close(backbone(x), net(x).detach(), atol=1e-5, rtol=1e-5)


def test_a_run_keeps_the_network_of_the_file(tmp_path: Path) -> None:
    data = folders.layout_2(tmp_path / "data")
    file = onnx_file(tmp_path / "net.onnx", Small())
    run = selftrain.train(
        data, backbone=str(file), labels_per_class=2, size=SIDE, steps=5, out=tmp_path / "run", quiet=True,
        settings={"data.cache": str(tmp_path / "cache"), "network.pixels": "half"},
    )  # fmt: skip
    before = run.predict(data / "test").probabilities
    file.rename(tmp_path / "moved.onnx")
    (tmp_path / "net.onnx").write_bytes(b"something else")
    after = selftrain.Run(tmp_path / "run").predict(data / "test").probabilities
    assert (after == before).all()
    card = (tmp_path / "run" / "model" / "model.json").read_text()
    assert '"net.onnx"' in card
    assert str(tmp_path) not in card
    with pytest.raises(UserError, match="cannot be exported"):
        run.export(tmp_path / "out" / "model.onnx")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda path: None, {}, "there is no such file"),
        (lambda path: path.write_bytes(b"not onnx" * 9), {}, "not an ONNX model"),
        (lambda path: onnx_file(path, Small("tokens")), {"size": SIDE}, "its first output has the shape"),
        (lambda path: onnx_file(path, Small(), dynamic=False), {"size": 32}, "takes images of 16 px only"),
        (lambda path: onnx_file(path, nn.Conv2d(1, 4, 3), shape=(1, 9, 9), dynamic=False), {}, "expected one input of"),
        (lambda path: onnx_file(path, Small()), {"pixels": "grey"}, "network.pixels=grey: expected imagenet"),
        (lambda path: onnx_file(path, Small()), {"weights": "none"}, "is a file that holds its weights"),
    ],
    ids=["missing", "no model", "tokens", "other size", "one channel", "pixels", "weights"],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, make: Any, options: dict[str, Any], message: str) -> None:
    path = tmp_path / "net.onnx"
    make(path)
    with pytest.raises(UserError, match=message):
        build_backbone(str(path), **options)


def test_a_file_is_not_trained_and_does_not_stand_beside_others(tmp_path: Path) -> None:
    data, file = folders.layout_2(tmp_path / "data"), onnx_file(tmp_path / "net.onnx", Small())
    with pytest.raises(UserError, match="cannot be trained"):
        selftrain.train(data, backbone=str(file), regime="finetune", labels_per_class=2, out=tmp_path / "run")
    with pytest.raises(UserError, match="cannot stand beside"):
        build_backbone(f"lite0+{file}")


def test_pixel_statistics_are_names_or_numbers() -> None:
    assert pixel_statistics("half") == ((0.5,) * 3, (0.5,) * 3)
    assert pixel_statistics("0,0.1,0.2,1,2,3") == ((0.0, 0.1, 0.2), (1.0, 2.0, 3.0))
    for wrong in ("0,0,0,1,1", "0,0,0,1,1,0", "0,0,0,1,1,nan"):
        with pytest.raises(UserError, match=r"network\.pixels"):
            pixel_statistics(wrong)
