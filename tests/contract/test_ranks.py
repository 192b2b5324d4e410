"""Every method on two ranks that share a batch: both end with the same state, buffers and counters included, and with
that of one rank that has the whole batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.spellings import IN_TURNS, SPELLINGS
from tests.tiny import AVERAGED, SAME_ON_ANY_RANKS, trajectory

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # as in test_runs.py


@pytest.fixture(scope="module")
def found(two_ranks: Path) -> dict[str, Any]:
    return json.loads((two_ranks / "found.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", [*SPELLINGS, *IN_TURNS])
def test_two_ranks_stay_in_sync(found: dict[str, Any], text: str) -> None:
    assert found[text] == {"differ": [], "moved": True}


def test_flexmatch_counts_what_both_ranks_saw(found: dict[str, Any]) -> None:
    assert found["counts"]
    assert found["selected"] > 0


@pytest.mark.parametrize("text", SAME_ON_ANY_RANKS)
def test_two_ranks_with_half_the_batch_are_one_with_the_whole(found: dict[str, Any], text: str) -> None:
    losses, *_ = trajectory(text)
    assert found["losses"][text] == pytest.approx(losses, abs=1e-4)
    assert abs(losses[-1] - losses[0]) > 0.01, "something was learned"


def test_batch_norm_over_halves_is_that_over_the_whole(found: dict[str, Any]) -> None:
    assert found["norm"] < 1e-10


def test_ranks_stop_at_the_same_step(found: dict[str, Any]) -> None:
    first, second = found["stops"]
    assert first == second >= 3


def test_a_shared_backbone_learns_the_same(found: dict[str, Any], two_ranks: Path) -> None:
    losses, loop, _ = trajectory(SAME_ON_ANY_RANKS[3], **AVERAGED)
    assert found["sharded"]["shares"] > 0
    assert found["sharded"]["losses"] == pytest.approx(losses, abs=1e-4)
    weights = {name: torch.tensor(value) for name, value in found["sharded"]["resumed"].items()}
    torch.testing.assert_close(weights, dict(loop.predictor.state_dict()), rtol=0, atol=1e-3, check_dtype=False)
    saved = torch.load(two_ranks / "sharded.pt", weights_only=True)
    torch.testing.assert_close(saved["net"], dict(loop.net.state_dict()), rtol=0, atol=1e-3)
    loop.load_state_dict(saved)
