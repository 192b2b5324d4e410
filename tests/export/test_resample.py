"""Resizing inside exported models gives the same pixels as Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, checker, helper
from PIL import Image

from selftrain.data.views.augment import CentreResize
from selftrain.errors import UserError
from selftrain.export.exported import load
from selftrain.export.graph import OPSET, Graph
from selftrain.export.onnx_file import IR_VERSION
from selftrain.export.resample import centre_crop
from selftrain.export.torch_program import CentreCrop

SIZE = 32
# small, exact, odd, reduced by an integer factor, wide, tall (Pillow resizes the rows of these first)
SHAPES = ((16, 20), (32, 32), (64, 64), (50, 40), (61, 63), (140, 333), (500, 200), (257, 389), (31, 150), (33, 36))


def session(interpolation: str, share: float) -> Any:
    graph = Graph()
    out = centre_crop(graph, graph.value("images"), SIZE, interpolation, share)
    image = helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", "H", "W", 3])
    result = helper.make_tensor_value_info(str(out), TensorProto.FLOAT, ["n", "c", "h", "w"])
    made = helper.make_graph(graph.nodes, "crop", [image], [result], graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    checker.check_model(model, full_check=True)
    return load(model.SerializeToString())


def expected(pixels: np.ndarray, interpolation: str, share: float) -> np.ndarray:
    resized: np.ndarray = np.asarray(CentreResize(SIZE, interpolation, share)(Image.fromarray(pixels))).transpose(
        2, 0, 1
    )
    return resized


@pytest.mark.parametrize("share", [1.0, 0.75, 0.875])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos", "box"])
def test_every_pixel_is_pillows(interpolation: str, share: float) -> None:
    rng = np.random.default_rng(0)
    model = session(interpolation, share)
    for width, height in SHAPES:
        pixels = rng.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        found = model.run(None, {"images": pixels})[0]
        for image, crop in zip(pixels, found, strict=True):
            assert np.array_equal(crop, expected(image, interpolation, share)), (width, height)


@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_torchs_pixels_are_pillows_but_for_rounding(interpolation: str, share: float) -> None:
    rng = np.random.default_rng(0)
    crop = CentreCrop(SIZE, interpolation, share)
    for width, height in SHAPES:
        pixels = rng.integers(60, 190, (height, width, 3), dtype=np.uint8)
        found = crop(torch.from_numpy(pixels).permute(2, 0, 1)[None].double())[0].numpy()
        apart = np.abs(found - expected(pixels, interpolation, share)).max()
        tall = height > SIZE and height - SIZE > 2 * (width - SIZE)
        exact = min(width, height) * share < 4 * SIZE and not tall
        assert apart <= (0 if exact else 1), (width, height)


def test_other_interpolations_are_an_error() -> None:
    graph = Graph()
    with pytest.raises(UserError, match="'nearest' cannot be exported"):
        centre_crop(graph, graph.value("images"), SIZE, "nearest", 1.0)
    with pytest.raises(UserError, match="'lanczos' cannot be exported to torch"):
        CentreCrop(SIZE, "lanczos", 1.0)
