"""What runs a network in a file of ONNX on a CPU: OpenVINO or onnxruntime, whichever is installed.

Knows nothing of where files come from, nor of what a network is for.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

INPUT, OUTPUT = "pixels", "features"
Runs = Callable[[Tensor], Tensor]
"""a network that runs: on one thread per call, and in several threads at a time"""


@dataclass(frozen=True)
class Runtime:
    """A library that runs files of ONNX on a CPU, an optional dependency."""

    key: str
    """its name in ``data.engine``, and the extra that installs it"""
    library: str
    load: Callable[[Path, str], Runs]
    """a network in a file, at a precision"""

    def __str__(self) -> str:
        """Return the library with its version; features of other versions may be rounded differently."""
        return f"{self.library} {version(self.library)}"


def is_installed(runtime: Runtime) -> bool:
    """Return whether a runtime and what exporting needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in (runtime.library, "onnx"))


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


class OpenVinoNetwork:
    """A network in a file of ONNX, on one thread per call; safe to call from several threads at a time."""

    def __init__(self, file: Path, precision: str):
        asked = os.environ.get("OMP_NUM_THREADS", "")  # which a cluster sets for its workers
        core, cores = openvino_core(), int(asked) if asked.isdigit() and int(asked) else os.cpu_count() or 1
        options = {
            "INFERENCE_PRECISION_HINT": {"32": "f32", "bf16": "bf16"}[precision], "ENABLE_CPU_PINNING": False,
            "NUM_STREAMS": cores, "INFERENCE_NUM_THREADS": cores,
        }  # fmt: skip
        self.compiled: Any = core.compile_model(core.read_model(file.read_bytes(), b""), "CPU", options)

    def __call__(self, x: Tensor) -> Tensor:
        request = self.compiled.create_infer_request()
        found = request.infer([np.ascontiguousarray(x.numpy())])[0]
        return torch.from_numpy(np.array(found))  # the request owns what it returns


@cache
def openvino_core() -> Any:
    """Return OpenVINO, loaded without the package that tells its makers of each import over the network."""
    telemetry = "openvino_telemetry"
    loaded = sys.modules.get(telemetry)
    sys.modules[telemetry] = None  # type: ignore[assignment]  # as if it were not installed, which OpenVINO allows
    try:
        import openvino
    finally:
        del sys.modules[telemetry]
        if loaded is not None:
            sys.modules[telemetry] = loaded
    return openvino.Core()


OPENVINO = Runtime("openvino", "openvino", OpenVinoNetwork)
ONNXRUNTIME = Runtime("onnx", "onnxruntime", lambda file, _: OnnxNetwork(file))
RUNTIMES = (ONNXRUNTIME, OPENVINO)
"""in the order in which they are taken; exported models run in the first, so predictions are the same"""


def why_not_bf16(engine: str, device: str, trainable: bool = True) -> str:
    """Return why a backbone cannot compute with numbers of 16 bits here, and what to do; empty if it can."""
    if not trainable:
        return "a backbone in a file computes as the file says. Leave the setting out."
    if device != "cpu":
        return ""
    if engine not in ("auto", OPENVINO.key):
        return f"on a CPU it needs data.engine=openvino, not {engine}."
    if not is_installed(OPENVINO):
        return 'on a CPU it needs OpenVINO. Run pip install "selftrain[openvino]", or use data.precision=32.'
    if "BF16" not in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return "the processor has no such numbers (AVX-512 BF16 or AMX). Use data.precision=32."
    return ""
