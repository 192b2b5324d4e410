"""Run a network with onnxruntime, faster on a CPU than torch: exported once, kept in a file, compared with torch.

Knows nothing of backbones, features or images: it is given a network, an example of its input, and a folder.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.errors import UserError, is_of_the_machine, lacks_memory
from selftrain.files import replacing, write_text
from selftrain.text import first_line

TOLERANCE = 1e-4  # of the largest number: rounding stays far below it
OPSET = 17
INPUT, OUTPUT = "pixels", "features"


def is_installed() -> bool:
    """Return whether onnxruntime and what exporting needs are installed (the extra ``onnx``)."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnx"))


def engine_name() -> str:
    """Return the engine with its version; features of other versions may be rounded differently."""
    return f"onnxruntime {version('onnxruntime')}"


class OnnxNetwork:
    """A network in a file of ONNX, on one thread; safe to call from several threads at a time."""

    def __init__(self, file: Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        providers = ["CPUExecutionProvider"]
        self.session: Any = onnxruntime.InferenceSession(str(file), options, providers=providers, enable_fallback=0)
        self.input = self.session.get_inputs()[0].name

    def __call__(self, x: Tensor) -> Tensor:
        (found,) = self.session.run(None, {self.input: np.ascontiguousarray(x.numpy())})
        return torch.from_numpy(found)


def is_exported(folder: Path, name: str) -> bool | None:
    """Return whether a network can be run: True if its file is there, False if that failed, None if it is not known."""
    return True if (folder / f"{name}.onnx").is_file() else False if (folder / f"{name}.txt").is_file() else None


def make_onnx(net: nn.Module, example: Tensor, folder: Path, name: str) -> OnnxNetwork | None:
    """Return a network in onnxruntime, from its file or exported now; None if it cannot be, or answers differently.

    ``example`` has the size of every later batch. ``net`` must be in evaluation mode. The answer to ``example`` is
    compared with that of ``net`` each time, so a damaged file is noticed and written again. Too little memory or a
    failing disk is raised: features by torch are rounded differently, and a failure that was written down would last.
    """
    file = folder / f"{name}.onnx"
    with torch.inference_mode():
        expected = net(example).float()
    try:
        found = OnnxNetwork(file) if file.is_file() else None
        if found is not None and _agree(found(example), expected):
            return found
    except Exception as error:  # damaged, or of a version that onnxruntime does not read
        _raise_if_of_the_machine(error)
    for _ in range(2):  # a failure that does not repeat says nothing about the network
        try:
            exported = _export(net, example, file)
            if _agree(exported(example), expected):
                return exported
            reason = "its answers differ from those of torch"
        except Exception as error:  # an operation that ONNX lacks, a control flow that cannot be traced, ...
            _raise_if_of_the_machine(error)
            reason = first_line(error)
    with suppress(OSError, UserError):
        file.unlink(missing_ok=True)
        write_text(folder / f"{name}.txt", f"onnxruntime cannot run this network: {reason}\n")
    return None


def _raise_if_of_the_machine(error: Exception) -> None:
    if lacks_memory(error):
        raise MemoryError(first_line(error)) from error  # onnxruntime has exceptions of its own
    if is_of_the_machine(error):
        raise error


def _agree(found: Tensor, expected: Tensor) -> bool:
    largest = float(expected.abs().max())
    return found.shape == expected.shape and bool(((found - expected).abs() <= TOLERANCE * largest).all())


def _export(net: nn.Module, example: Tensor, file: Path) -> OnnxNetwork:
    """Write a network to a file, or to a temporary one if the folder cannot be written."""
    try:
        with replacing(file) as temporary:
            _write(net, example, temporary)
    except UserError:
        with tempfile.TemporaryDirectory() as folder:
            _write(net, example, Path(folder, file.name))
            return OnnxNetwork(Path(folder, file.name))
    return OnnxNetwork(file)


def _write(net: nn.Module, example: Tensor, file: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about the exporter itself, and about shapes, which are fixed here
        torch.onnx.export(
            net, (example,), str(file), dynamo=False, opset_version=OPSET, input_names=[INPUT], output_names=[OUTPUT]
        )
