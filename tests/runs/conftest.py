"""What the tests of runs share: one finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.folders import layout_2
from tests.runs.small_runs import train_small


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of DST(FixMatch); not to be changed."""
    data = layout_2(tmp_path_factory.mktemp("data") / "data")
    return train_small(data, tmp_path_factory.mktemp("runs") / "run", labels_per_class=2).folder
