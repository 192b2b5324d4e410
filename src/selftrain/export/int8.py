"""A network's convolutions and matrix products in 8-bit integers, with ranges measured on images.

Knows nothing of resizing or of files of images: it is given the crops that the network sees.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from selftrain.errors import UserError
from selftrain.export.onnx_file import INNER
from selftrain.text import first_line


def quantised(network: onnx.ModelProto, crops: Sequence[NDArray[Any]]) -> onnx.ModelProto:
    """Return a network whose convolutions take 8-bit weights and activations; ``crops`` are batches of its input.

    Heads and neighbours stay in float32: they are small, and similarities need their digits. Weights have 7 bits,
    because sums of 8 bits overflow on processors without VNNI.
    """
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is untyped
        def __init__(self) -> None:
            self.batches: Iterator[NDArray[Any]] = iter(crops)

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            batch = next(self.batches, None)
            return None if batch is None else {INNER: batch}

    level = logging.getLogger().level
    try:
        logging.getLogger().setLevel(logging.ERROR)  # advice of onnxruntime to prepare the model, which has no effect
        with tempfile.TemporaryDirectory() as folder:
            before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
            before.write_bytes(network.SerializeToString())
            quantization.quantize_static(
                before, after, Reader(), quant_format=quantization.QuantFormat.QDQ, per_channel=True, reduce_range=True,
                op_types_to_quantize=["Conv"], activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )  # fmt: skip
            return onnx.load_model_from_string(after.read_bytes())
    except Exception as error:  # onnxruntime raises whatever an operation without a quantised form raises
        raise UserError(f"`int8`: this network cannot be quantised ({first_line(error)}).") from error
    finally:
        logging.getLogger().setLevel(level)
