"""What a sweep tries: settings, search space and number of trials, checked before anything runs.

Knows nothing of Optuna, nor of how a trial is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selftrain.errors import UserError
from selftrain.runs.resolve import resolve
from selftrain.sweep.space import Range, Space, size, usual_space

HELD_OUT = ("data.fold", "data.validation_per_class", "data.evaluate_on")
"""settings that decide which labels are held out"""
MEASURED_ON = ("data.path", "data.labels", "data.test", "data.split_seed", "data.labels_per_class", "seed")
"""settings that decide what a trial is measured on"""


@dataclass(frozen=True)
class Plan:
    settings: Mapping[str, Any]
    """shared by all trials"""
    space: Space
    trials: int
    folds: int
    """0: no folds, ``data.validation_per_class`` labels are held out instead"""
    prune: bool

    @property
    def exhaustive(self) -> bool:
        """Whether every point of the space is tried."""
        return self.trials == size(self.space)

    def describe(self) -> str:
        points = size(self.space)
        total = ", the whole grid" if self.exhaustive else f" of {points:g}" if points < math.inf else ""
        return f"{self.trials} trials{total} over {', '.join(self.space)}"

    def record(self) -> dict[str, Any]:
        """Return what has to stay the same when a study is resumed, as JSON values."""
        space = {n: str(values) if isinstance(values, Range) else list(values) for n, values in self.space.items()}
        about = {"settings": dict(self.settings), "folds": self.folds, "space": space}
        record: dict[str, Any] = json.loads(json.dumps(about, default=str))
        return record


def make_plan(given: Mapping[str, Any], space: Space, *, trials: int, folds: int, prune: bool) -> Plan:
    """Return a plan without mistakes; an empty space stands for the paper's grid for the method."""
    _check_held_out(given, folds)
    # The test set is never used, and the backbone's weights are not kept with every trial.
    settings = {"network.save_backbone": False, **given, "data.evaluate_on": "validation"}
    chosen, _ = resolve(settings)
    space = space or usual_space(str(settings.get("method", chosen.method)), chosen.regime, given)
    if not space:
        raise UserError("sweep: there is nothing to search; pass `search` or `space`.")
    _check_space(settings, space)
    return Plan(settings, space, int(min(trials, size(space))), folds, prune)


def _check_held_out(given: Mapping[str, Any], folds: int) -> None:
    settings = resolve(given)[0]
    data = settings.data
    if (settings.train.devices or 1) > 1:
        raise UserError(f"`train.devices={settings.train.devices}`: a trial is one process; leave it out.")
    if data.evaluate_on == "test":
        raise UserError(
            '`data.evaluate_on="test"`: a sweep never uses the test set. Leave it out; '
            "hold out labels with `folds=K` or `data.validation_per_class=N`."
        )
    if data.fold is not None:
        raise UserError(f"`data.fold={data.fold}`: a sweep runs all folds; pass their number as `folds`.")
    if folds and data.validation_per_class:
        raise UserError(
            f"`folds={folds}`: conflicts with `data.validation_per_class={data.validation_per_class}`, since the "
            "folds are the labels held out. Keep one of them."
        )
    if not folds and not data.validation_per_class:
        raise UserError("sweep: no labels are held out; pass `folds=K` or `data.validation_per_class=N`.")


def _check_space(settings: Mapping[str, Any], space: Space) -> None:
    for name, values in space.items():
        if name in HELD_OUT or name in MEASURED_ON:
            raise UserError(f"`search` {name}: cannot be searched; it decides what a trial is measured on.")
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            resolve({**settings, name: value})
