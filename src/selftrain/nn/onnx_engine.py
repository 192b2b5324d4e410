"""Run a network with OpenVINO or onnxruntime, faster on a CPU than torch: exported once, kept in a file and
compared with torch.

Knows nothing of backbones, features or images: it is given a network, an example of its input, and a folder.
"""

from __future__ import annotations

import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from selftrain.errors import UserError, is_of_the_machine, lacks_memory
from selftrain.files import replacing, write_text
from selftrain.nn.fold import fold_batch_norm
from selftrain.nn.runtimes import INPUT, ONNXRUNTIME, OUTPUT, Runs, Runtime
from selftrain.text import first_line

TOLERANCE = {"32": 1e-4, "bf16": 0.25}
"""by precision: largest difference from torch, as a share of the largest number; rounding stays far below it"""
OPSET = 17


def is_exported(folder: Path, name: str) -> bool | None:
    """Return whether a network can be run: True if its file is there, False if that failed, None if it is not known."""
    return True if (folder / f"{name}.onnx").is_file() else False if (folder / f"{name}.txt").is_file() else None


def make_onnx(
    net: nn.Module, example: Tensor, folder: Path, name: str, runtime: Runtime = ONNXRUNTIME, precision: str = "32"
) -> Runs | None:
    """Return a network in a runtime, from its file or exported now; None if it cannot be, or answers differently.

    ``net`` is exported with its batch norms folded, like exported models: both then compute the same.
    ``example`` has the size of every later batch. ``net`` must be in evaluation mode. The answer to ``example`` is
    compared with that of ``net`` each time, so a damaged file is noticed and written again. Too little memory or a
    failing disk is raised: features by torch are rounded differently, and a failure that was written down would last.
    """
    file = folder / f"{name}.onnx"
    with torch.inference_mode():
        expected = net(example).float()
    try:
        found = runtime.load(file, precision) if file.is_file() else None
        if found is not None and _agree(found(example), expected, precision):
            return found
    except Exception as error:  # damaged, or of a version that the runtime does not read
        _raise_if_of_the_machine(error)
    for _ in range(2):  # a failure that does not repeat says nothing about the network
        try:
            exported = _export(net, example, file, runtime, precision)
            if _agree(exported(example), expected, precision):
                return exported
            reason = "its answers differ from those of torch"
        except Exception as error:  # an operation that ONNX lacks, a control flow that cannot be traced, ...
            _raise_if_of_the_machine(error)
            reason = first_line(error)
    with suppress(OSError, UserError):
        file.unlink(missing_ok=True)
        write_text(folder / f"{name}.txt", f"{runtime.library} cannot run this network: {reason}\n")
    return None


def _raise_if_of_the_machine(error: Exception) -> None:
    if lacks_memory(error):
        raise MemoryError(first_line(error)) from error  # onnxruntime has exceptions of its own
    if is_of_the_machine(error):
        raise error


def _agree(found: Tensor, expected: Tensor, precision: str) -> bool:
    most = TOLERANCE[precision] * float(expected.abs().max())
    return found.shape == expected.shape and bool(((found - expected).abs() <= most).all())


def _export(net: nn.Module, example: Tensor, file: Path, runtime: Runtime, precision: str) -> Runs:
    """Write a network to a file, or to a temporary one if the folder cannot be written."""
    try:
        with replacing(file) as temporary:
            _write(net, example, temporary)
    except UserError:
        with tempfile.TemporaryDirectory() as folder:
            _write(net, example, Path(folder, file.name))
            return runtime.load(Path(folder, file.name), precision)
    return runtime.load(file, precision)


def _write(net: nn.Module, example: Tensor, file: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        folded = fold_batch_norm(net, example[:2], pack=False)
        warnings.simplefilter("ignore")  # about the exporter itself, and about shapes, which are fixed here
        torch.onnx.export(
            folded, (example,), str(file), dynamo=False, opset_version=OPSET, input_names=[INPUT], output_names=[OUTPUT]
        )
