"""How threads wait: set while the OpenMP library is loaded, and nowhere left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from selftrain.openmp import CHOICES, wait_passively

ROOT = Path(__file__).parents[1]

found = find_spec("torch")
gnu = [] if found is None else list((Path(str(found.origin)).parent / "lib").glob("libgomp*"))
needs_libgomp = pytest.mark.skipif(not gnu, reason="torch comes without libgomp here")


def spin_count(code: str, **environment: str) -> int:
    """Return how long libgomp's threads spin, as it says itself when it is loaded."""
    kept = {name: value for name, value in os.environ.items() if name not in CHOICES}
    given = {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_DISPLAY_ENV": "verbose", **environment}
    said = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True).stderr
    counts = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", said)
    assert counts, said
    return int(counts[0])


@needs_libgomp
@pytest.mark.long
@pytest.mark.parametrize("entry", ["import selftrain", "from selftrain.methods import DST"])
def test_threads_wait_asleep_and_the_environment_stays(entry: str) -> None:
    unchanged = "import os; before = dict(os.environ); {}; import torch; assert dict(os.environ) == before"
    assert spin_count(unchanged.format(entry)) == 0


@needs_libgomp
def test_the_choice_of_the_user_stays() -> None:
    loads = f"import selftrain, ctypes; ctypes.CDLL({str(gnu[0])!r})"
    assert spin_count(loads) == 0
    assert spin_count(loads, GOMP_SPINCOUNT="1234") == 1234


def test_nothing_is_done_once_torch_is_loaded() -> None:
    import torch

    assert torch is not None
    before = dict(os.environ)
    assert not wait_passively()
    assert dict(os.environ) == before
