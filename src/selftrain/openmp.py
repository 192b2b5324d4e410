"""How the threads of torch wait for each other: asleep, so that busy processes on one machine do not slow each other.

Knows nothing of what is computed, and does not import torch. By default, threads that wait for others occupy a core for
milliseconds. On a machine with other work, a step on small matrices then takes ten times as long. The OpenMP library
reads the policy once, when it is loaded, so ``import selftrain`` loads the one that torch will use.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

POLICY = "OMP_WAIT_POLICY"
CHOICES = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""variables by which a user chooses; then nothing is changed"""
LIBRARIES = ("libgomp*.so*", "libomp*.dylib", "libiomp*")


def wait_passively() -> bool:
    """Load the OpenMP library of torch with passive waiting; return whether that was done.

    The environment is the same afterwards: processes that this one starts choose for themselves. Nothing is done if
    torch is loaded already, or if the user has chosen.
    """
    if "torch" in sys.modules or any(name in os.environ for name in CHOICES):
        return False
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    folder = Path(found.origin).parent / "lib"
    files = [file for pattern in LIBRARIES for file in sorted(folder.glob(pattern))]
    os.environ[POLICY] = "PASSIVE"
    try:
        for file in files:
            ctypes.CDLL(str(file)).omp_get_max_threads()  # some read the environment at their first call
    except (OSError, AttributeError):
        return False
    finally:
        os.environ.pop(POLICY, None)
    return bool(files)
