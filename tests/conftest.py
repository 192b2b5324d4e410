"""What every test shares: one thread (two tests at once would fight for the cores), tiny networks and batches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.browser import browser as browser

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what runs remember of images in a folder of this session, unless another one is given."""
    os.environ.setdefault("SELFTRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _no_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run backbones in torch: each test with a cache of its own would export its network, which takes seconds."""
    monkeypatch.setattr("selftrain.runs.extractor.is_installed", lambda _: False)


@pytest.fixture(autouse=True)
def _fresh_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that holds cifar10-mini and ucmerced; tests that want it are skipped where it is not set."""
    folder = os.environ.get("SELFTRAIN_DATA")
    if not folder:
        pytest.skip("SELFTRAIN_DATA is not set to the folder of the benchmark images")
    return Path(folder)
