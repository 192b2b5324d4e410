"""The environment of a run: package versions, the revision of this code, the machine.

Knows nothing of the run.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from selftrain.version import __version__

PACKAGES = ("selftrain", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn", "pillow")


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """Return names with plain values; None for what is not known."""
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "revision": _revision(Path(__file__).parent),
        "os": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def device_name(kind: str) -> str:
    """Return ``cpu``, or the model of the first GPU."""
    if kind == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    return kind


def _version(package: str) -> str | None:
    if package == "selftrain":
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision(folder: Path) -> str | None:
    """Return the revision of the git checkout that holds this package, with ``-dirty`` if files differ from it."""
    try:
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name], cwd=folder, capture_output=True, timeout=10
        )
        if tracked.returncode:
            return None  # installed, perhaps inside another project's checkout
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder, capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
