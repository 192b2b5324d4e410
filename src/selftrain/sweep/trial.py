"""One trial of a sweep: a run, or one run per fold, measured on held-out labels.

Knows nothing of where the study is stored.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from selftrain.config.options import spell
from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.errors import DivergedError
from selftrain.runs.layout import RunLayout
from selftrain.runs.trainer import train
from selftrain.sweep.plan import Plan
from selftrain.sweep.space import Range, Space, size

DRAWS = 100
"""random points that are drawn in search of one that was not tried"""


class SurplusError(Exception):
    """Several processes asked for the last trial at once, or the point was tried before."""


def counts(trial: FrozenTrial) -> bool:
    """Return whether a trial is one of those asked for; a trial whose process died is not, another replaces it."""
    wanted = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    return trial.state in wanted or "reason" in trial.user_attrs


@dataclass
class Objective:
    """Called by Optuna with a trial, returns its accuracy."""

    plan: Plan
    out: Path
    reporter: Reporter
    trial: optuna.Trial | None = None
    """the one that is running"""

    def __call__(self, trial: optuna.Trial) -> float:
        earlier = [t for t in trial.study.get_trials(deepcopy=False) if t.number < trial.number and counts(t)]
        if len(earlier) >= self.plan.trials:
            raise SurplusError
        values = {name: _suggest(trial, name, choice) for name, choice in self.plan.space.items()}
        if any(t.params == trial.params for t in earlier):
            if not self.plan.exhaustive and (other := untried(self.plan.space, earlier, trial.number)):
                trial.study.enqueue_trial(other)
            raise SurplusError  # it does not count; in a grid that is searched whole, every point has its turn
        self.trial = trial
        name = trial.user_attrs.get("folder") or f"trial-{trial.number:04d}"
        trial.set_user_attr("folder", name)
        return self._announced(trial, values, self.out / name)

    def _announced(self, trial: optuna.Trial, values: Mapping[str, Any], folder: Path) -> float:
        """Run a trial and say how it ended."""
        words = ", ".join(f"{name} {spell(value)}" for name, value in values.items())
        try:
            value = self._run(trial, values, folder)
        except optuna.TrialPruned:
            self.reporter.say(f"trial {trial.number}: pruned ({words})")
            raise
        except DivergedError as error:
            trial.set_user_attr("reason", str(error))
            self.reporter.warn(f"trial {trial.number}: {error} ({words})")
            raise
        self.reporter.say(f"trial {trial.number}: {100 * value:.1f} ({words})")
        return value

    @property
    def metric(self) -> str:
        """The measure that is reported for the dataset."""
        given = self.plan.settings
        spec = Source.from_settings(
            given["data.path"], root=given.get("data.root"), labels=given.get("data.labels")
        ).spec
        return "accuracy" if spec is None else spec.metric

    def _run(self, trial: optuna.Trial, values: Mapping[str, Any], home: Path) -> float:
        metric, folds = self.metric, self.plan.folds
        scores: list[float] = []
        evaluations = 0

        def watch(row: Mapping[str, Any]) -> None:
            nonlocal evaluations
            if row[metric] is None:
                return
            evaluations += 1
            trial.report(mean([*scores, row[metric]]), evaluations)
            if self.plan.prune and trial.should_prune():
                raise optuna.TrialPruned

        for fold in range(max(1, folds)):
            run = RunLayout(home / f"fold{fold}" if folds else home)
            if run.finished:
                for row in run.read_metrics().rows:
                    watch(row)
            else:
                part = {"data.fold": f"{fold + 1}/{folds}"} if folds else {}
                settings = {**self.plan.settings, **values, **part}
                train(settings=settings, out=run.folder, resume=run.exists, quiet=True, watch=watch)
            results: Mapping[str, Any] = run.read_results()
            scores.append(float(results[metric]))
        return mean(scores)


def untried(space: Space, earlier: Sequence[FrozenTrial], seed: int) -> dict[str, Any] | None:
    """Return a random point that no trial has had; None if there seems to be none."""
    rng, tried = random.Random(seed), [trial.params for trial in earlier]
    for _ in range(DRAWS):
        point = {name: _draw(rng, choice) for name, choice in space.items()}
        if point not in tried:
            return point
    if size(space) == math.inf:
        return None
    names = list(space)
    points = (dict(zip(names, values, strict=True)) for values in itertools.product(*map(_values, space.values())))
    return next((point for point in points if point not in tried), None)


def _values(choice: tuple[Any, ...] | Range) -> tuple[Any, ...]:
    return () if isinstance(choice, Range) else choice


def _draw(rng: random.Random, choice: tuple[Any, ...] | Range) -> Any:
    if not isinstance(choice, Range):
        return rng.choice(choice)
    low, high = (math.log(choice.low), math.log(choice.high)) if choice.log else (choice.low, choice.high)
    value = rng.uniform(low, high)
    value = min(max(math.exp(value) if choice.log else value, choice.low), choice.high)
    return round(value) if choice.whole else value


def _suggest(trial: optuna.Trial, name: str, choice: tuple[Any, ...] | Range) -> Any:
    if not isinstance(choice, Range):
        return trial.suggest_categorical(name, choice)
    if choice.whole:
        return trial.suggest_int(name, int(choice.low), int(choice.high), log=choice.log)
    return trial.suggest_float(name, choice.low, choice.high, log=choice.log)
