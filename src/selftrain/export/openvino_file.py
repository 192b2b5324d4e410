"""A trained model as OpenVINO's own format: ``model.xml`` and ``model.bin``, crops in, calibrated probabilities out.

Knows nothing of run folders. The format computes in single precision at most, in which the coordinates of resizing are
not exact, so the file takes crops that Pillow has made.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from selftrain.errors import UserError
from selftrain.export.description import CROPS, Description
from selftrain.files import check_writable, replacing
from selftrain.nn.runtimes import openvino_core

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
"""otherwise OpenVINO computes with 16 bits where the processor has them, and probabilities differ by some percent"""
MARK = b"<selftrain>"
"""where our description begins"""


def read_graph(graph: onnx.ModelProto, description: Description) -> Any:
    """Return an ONNX graph as a model of OpenVINO, with its description inside."""
    model = openvino_core().read_model(graph.SerializeToString(), b"")
    model.input(0).get_tensor().set_names({CROPS if description.crops else "features"})
    for name, text in description.metadata().items():
        model.set_rt_info(text, ["selftrain", name])
    return model


def answers_of(model: Any, batches: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the first output of a model, batch by batch."""
    compiled = openvino_core().compile_model(model, "CPU", EXACT)
    return [np.array(compiled([batch])[0]) for batch in batches]


def weights_of(path: Path) -> Path:
    """Return the file of the weights that belong to a file of this name."""
    return path.with_suffix(".bin")


def check_weights(path: Path) -> None:
    """Raise a UserError if the weights would replace a file that is not of an export, or cannot be written."""
    weights = weights_of(path)
    try:
        ours = not weights.exists() or (path.is_file() and MARK in path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    if not ours:
        raise UserError(
            f"{weights}: this file exists and was not written by 'selftrain export'. The weights of {path.name} would "
            f"replace it. Choose another name."
        )
    check_writable(weights)


def write_openvino(path: Path, model: Any) -> None:
    """Write ``path`` and, beside it, its weights in a file of the same name that ends in .bin."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "model.xml")
        openvino.save_model(model, made, compress_to_fp16=False)
        for file, source in ((weights_of(path), weights_of(made)), (path, made)):  # a graph that is there is whole
            with replacing(file) as temporary:
                temporary.write_bytes(source.read_bytes())
