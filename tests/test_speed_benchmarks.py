"""The speed benchmarks measure what they claim to measure."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import __main__ as command
from benchmarks import references, start
from benchmarks.engine import STRONG, WEAK, parts
from benchmarks.problems import batch_of, floor_of, image_problem, passes_of
from benchmarks.ratios import Apart, Row, Times, take_turns

pytestmark = pytest.mark.long

SMALL: dict[str, Any] = {"batch": 4, "unlabeled_batch": 6, "pool": 40, "network.backbone": "wrn-tiny", "data.size": 16}


def test_each_round_times_everyone_once_in_changing_order_and_the_first_is_not_counted() -> None:
    order: list[str] = []
    times = take_turns({name: partial(order.append, name) for name in "abc"}, 20)
    rounds = ["".join(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert len(rounds) == 21
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) == 6
    assert {name: len(seconds) for name, seconds in times.seconds.items()} == dict.fromkeys("abc", 20)


def test_ratios_are_medians_of_pairs() -> None:
    times = Times({"ours": np.array([2.0, 40.0, 2.0]), "floor": np.array([1.0, 20.0, 2.0])})
    cost, gain = times.cost("cost", "ours", "floor", 1.9), times.gain("gain", "floor", "ours", 1.9)
    assert (cost.ratio, cost.holds) == (2.0, False)
    assert (gain.ratio, gain.holds) == (2.0, True)
    assert Row("no bar", 1.0).holds is None
    assert set(cost.as_json()) >= {"name", "ratio", "bar", "holds", "median_ms", "spread"}


def test_slower_work_is_measured_as_slower() -> None:
    times = take_turns({"slow": lambda: time.sleep(0.02), "quick": lambda: time.sleep(0.005)}, 3)
    assert times.gain("", "quick", "slow").ratio > 1.5


def test_work_in_another_process_is_timed_there_and_its_death_is_noticed() -> None:
    apart = Apart(partial(partial, time.sleep, 0.01))  # no function of this file: the process need not import it
    assert apart.process.pid != os.getpid()
    assert take_turns({"apart": apart}, 2).seconds["apart"].min() >= 0.01
    assert not apart.process.is_alive()
    with pytest.raises((EOFError, ConnectionError)):
        take_turns({"dead": Apart(partial(sys.exit, 3))}, 2)


def test_the_average_by_state_dict_is_an_average() -> None:
    module = torch.nn.BatchNorm1d(3)
    average = references.StateDictAverage(module)
    torch.nn.init.constant_(module.weight, 2.0)
    module.running_mean.fill_(5.0)  # type: ignore[union-attr]
    average.update()
    torch.testing.assert_close(average.average.weight, torch.full((3,), 0.999 * 1 + 0.001 * 2))
    torch.testing.assert_close(average.average.running_mean, torch.full((3,), 5.0))


@pytest.mark.parametrize(
    ("spelling", "with_gradient", "without"),
    [
        ("fixmatch", 10, 6),
        (STRONG, 10, 6),
        (WEAK, 16, 0),
        ("dst(fixmatch, worst_view=base)", 10, 6),
        ("dst(pseudo_label, worst_view=base)", 10, 0),
    ],
)
def test_a_step_feeds_its_backbone_no_more_than_it_needs(spelling: str, with_gradient: int, without: int) -> None:
    """Labeled and strong views with gradient and weak ones without, in one pass each; DST's worst case on weak views
    needs their gradient."""
    passes = passes_of(image_problem(spelling, **SMALL))
    assert [len(one.x) for one in passes if one.gradient] == [with_gradient]
    assert [len(one.x) for one in passes if not one.gradient] == ([without] if without else [])
    assert all(one.x.is_contiguous(memory_format=torch.channels_last) for one in passes)


def test_floors_and_reference_steps_run() -> None:
    problem = image_problem("dst(fixmatch(w_strong=0.1))", **SMALL)
    floor_of(passes_of(problem))()
    assert all(p.grad is None for p in problem.net.psi.parameters())
    before = [p.detach().clone() for p in problem.net.parameters()]
    l, u = batch_of(problem)
    references.concatenated_fixmatch(problem.net.psi, problem.net.h, l, u)()
    references.concatenated_dst(*parts(problem), l=l, u=u)()
    references.three_pass_dst(*parts(problem), l=l, u=u)()
    for p, q in zip(problem.net.parameters(), before, strict=True):  # the references train copies
        assert torch.equal(p, q)


def test_the_command_writes_what_it_prints(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setattr(start, "rows", lambda: [Row("one", 1.5, 1.2)])
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "start"])
    command.main()
    with open("bench.json", encoding="utf-8") as file:
        (row,) = json.load(file)["rows"]
    assert (row["name"], row["ratio"], row["bar"], row["holds"]) == ("one", 1.5, 1.2, False)
    assert "1 of 1 bars do not hold" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["benchmarks", "--markdown"])
    command.main()
    assert "| one | 1.50 |  | at most 1.2, **missed** |" in capsys.readouterr().out
