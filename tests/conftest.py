"""What every test shares: one thread (two tests at once would fight for the cores), tiny networks and batches."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fresh_seed() -> None:
    torch.manual_seed(0)
