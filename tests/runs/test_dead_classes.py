"""The alarm rings when a class dies, once, and says what helps."""

from __future__ import annotations

from typing import Any

import pytest

from selftrain.methods import make_method
from selftrain.runs.dead_classes import advice, alarm, dead_classes, new_alarms

ALL = [True] * 3


def rows(*predicted: list[int], name: str = "predicted") -> list[dict[str, Any]]:
    return [{name: counts} for counts in predicted]


def test_no_alarm_at_the_first_evaluation() -> None:
    assert new_alarms([], ALL) == []
    assert new_alarms(rows([9, 0, 0]), ALL) == []


def test_an_alarm_is_raised_once_and_again_after_recovery() -> None:
    history = [[5, 4, 0], [9, 0, 0], [9, 0, 0], [8, 1, 0], [9, 0, 0]]
    rung = [new_alarms(rows(*history[: i + 1]), ALL) for i in range(len(history))]
    assert rung == [[], [1], [], [], [1]]  # class 2 was never predicted, so it did not stop
    assert dead_classes(rows(*history), ALL) == {1}


def test_no_alarm_for_a_class_that_is_not_in_the_evaluated_set() -> None:
    assert new_alarms(rows([5, 4, 1], [9, 0, 1]), [True, False, True]) == []


def test_without_an_evaluated_set_pseudo_labels_decide() -> None:
    def made(*counts: list[int]) -> list[dict[str, Any]]:
        return [{"predicted": None, **row} for row in rows(*counts, name="pseudo_predicted")]

    assert new_alarms(made([50, 30, 20], [70, 0, 30]), ALL) == [1]
    assert new_alarms(made([50, 1, 49], [50, 0, 50]), ALL) == []  # one in a hundred: no news
    assert new_alarms(made([50, 30, 20], [5, 0, 5]), ALL) == []  # ten labels: too few to tell
    assert new_alarms([{"predicted": None}, {"predicted": None}], ALL) == []
    assert new_alarms([*made([50, 30, 20]), {"pseudo_predicted": None}], ALL) == []


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fixmatch", 'train with DST (`method="dst(fixmatch)"`), lower the threshold (`method.tau=0.75`) or label'),
        ("dst(fixmatch(tau=0.6))", "lower the threshold (`method.base.tau=0.5`) or label more images of it"),
        ("dst(mean_teacher)", "label more images of it"),
        ("supervised", "label more images of it"),
    ],
)
def test_the_advice_fits_the_method(method: str, said: str) -> None:
    assert advice(make_method(method, "scratch")).startswith(said)


def test_the_warning_names_the_classes() -> None:
    method = make_method("supervised", "scratch")
    one = alarm(["cat"], method, "step 5", "not predicted any more")
    assert one == "step 5: class 'cat' is not predicted any more. Label more images of it."
    assert "'f0', 'f1', 'f2', 'f3', 'f4' and 3 more are" in alarm([f"f{i}" for i in range(8)], method, "x", "y")
