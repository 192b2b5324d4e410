"""Every method under two ranks that share a batch: both end with the same numbers, buffers and counters included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.spellings import SPELLINGS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("ranks") / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m",
         "tests.contract.two_ranks", str(out)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.exists(), done.stderr[-3000:]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", SPELLINGS)
def test_two_ranks_stay_in_sync(found: dict[str, Any], text: str) -> None:
    assert found[text] == {"differ": [], "moved": True}


def test_flexmatch_counts_what_both_ranks_saw(found: dict[str, Any]) -> None:
    assert found["counts"]
    assert found["selected"] > 0
