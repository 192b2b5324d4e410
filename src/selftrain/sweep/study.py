"""The Optuna study that processes and machines share: its database, and trials that a dead process left behind.

Knows nothing of how a trial is run.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from selftrain.config.options import flatten
from selftrain.errors import DivergedError, UserError
from selftrain.sweep.plan import Plan
from selftrain.sweep.results import Result
from selftrain.sweep.trial import Objective, SurplusError, counts
from selftrain.text import first_line

ATTEMPTS = 3
"""how often a trial is tried if its process dies"""
WAITS = (0.5, 1.0, 2.0)
"""seconds between attempts to open a database"""


@dataclass(frozen=True)
class Address:
    """Where a study is stored."""

    url: str
    """an SQLAlchemy URL"""
    name: str
    grace: int
    """seconds of silence after which another process counts as dead"""

    def __str__(self) -> str:
        """Return the URL without a password."""
        return re.sub(r"(://[^:/@]+):[^@]*@", r"\1:***@", self.url)

    @contextmanager
    def open(self, plan: Plan) -> Iterator[optuna.Study]:
        """Open the study, or create it; refuse one that was started with another plan."""
        storage = self._storage()
        try:
            study = _make_study(storage, self.name, plan)
            self._check_unchanged(study, plan)
            yield study
        finally:
            storage.remove_session()
            storage.engine.dispose()

    def _storage(self) -> optuna.storages.RDBStorage:
        options: dict[str, Any] = {"connect_args": {"timeout": 60}} if self.url.startswith("sqlite") else {}
        # Several processes may create the tables at once; all but one of them have to try again.
        for wait in (*WAITS, None):
            try:
                with _quiet_optuna():
                    return optuna.storages.RDBStorage(
                        self.url,
                        engine_kwargs=options,
                        heartbeat_interval=max(1, self.grace // 4),
                        grace_period=self.grace,
                        heartbeat_stale_trial_callback=requeue,
                    )
            except Exception as error:  # from sqlalchemy, from a driver, or a missing package
                if wait is None:
                    raise UserError(f"`storage` {self}: cannot be opened ({first_line(error)}).") from None
                time.sleep(wait)
        raise AssertionError

    def _check_unchanged(self, study: optuna.Study, plan: Plan) -> None:
        record = plan.record()
        saved = study.user_attrs.get("about", record)
        if saved != record and any(counts(trial) for trial in study.get_trials(deepcopy=False)):
            then, now = flatten(saved), flatten(record)
            name = next(name for name in {**then, **now} if then.get(name) != now.get(name))
            raise UserError(
                f"`study` {self.name} in {self}: it was started with {name}={then.get(name)}, not {now.get(name)}. "
                "Keep that value to resume the study, or choose another `study` or `out`."
            )
        study.set_user_attr("about", record)


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Inside, Optuna does not warn that heartbeats and its grid sampler are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _make_study(storage: optuna.storages.RDBStorage, name: str, plan: Plan) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler: optuna.samplers.BaseSampler
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    with _quiet_optuna():
        if plan.exhaustive:
            sampler = optuna.samplers.BruteForceSampler()
        else:  # constant_liar: do not try again what other processes are trying
            startup = min(10, max(2, plan.trials // 3))
            sampler = optuna.samplers.TPESampler(constant_liar=True, n_startup_trials=startup)
        if plan.prune:
            pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
        return optuna.create_study(
            storage=storage, study_name=name, sampler=sampler, pruner=pruner, direction="maximize", load_if_exists=True
        )


def run_trials(study: optuna.Study, objective: Objective, grace: int) -> None:
    """Run trial after trial until all of them are finished, here or in other processes."""
    announced = 0
    while True:
        with _quiet_optuna():
            optuna.storages.fail_stale_trials(study)
        known = study.get_trials(deepcopy=False)
        counted = [trial for trial in known if counts(trial)]
        if len(counted) < objective.plan.trials or any(trial.state == TrialState.WAITING for trial in known):
            _run_one(study, objective)
        elif running := sum(trial.state == TrialState.RUNNING for trial in counted):
            if announced != running:
                objective.reporter.say(f"waiting for {running} trials of other processes")
            announced = running
            time.sleep(min(2.0, grace / 3))
        else:
            return


def _run_one(study: optuna.Study, objective: Objective) -> None:
    objective.trial = None
    try:
        study.optimize(objective, n_trials=1, catch=(SurplusError, DivergedError))
    except KeyboardInterrupt:  # the trial resumes from its checkpoint when the sweep does
        if objective.trial is not None:
            requeue(study, study.get_trials(deepcopy=False)[objective.trial.number])
        raise


def requeue(study: optuna.Study, trial: FrozenTrial) -> None:
    """Put an interrupted trial back into the queue; it resumes in its folder."""
    tries = trial.user_attrs.get("attempt", 1)
    if trial.params and tries < ATTEMPTS:
        attributes = {"folder": trial.user_attrs.get("folder", ""), "attempt": tries + 1}
        study.enqueue_trial(trial.params, user_attrs=attributes)


def result_of(study: optuna.Study) -> Result:
    """Return the best of the finished trials, and all trials."""
    trials = sorted((t for t in study.get_trials(deepcopy=False) if counts(t)), key=lambda t: t.number)
    complete = [trial for trial in trials if trial.value is not None and trial.state == TrialState.COMPLETE]
    if not complete:
        reasons = [t.user_attrs["reason"] for t in trials if "reason" in t.user_attrs]
        raise UserError(f"sweep: none of {len(trials)} trials finished" + (f": {reasons[0]}" if reasons else "."))
    best = max(complete, key=lambda trial: (trial.value, -trial.number))
    return Result(best.number, float(best.value or 0), best.params, [_entry(trial) for trial in trials])


def _entry(trial: FrozenTrial) -> dict[str, Any]:
    seconds = trial.duration.total_seconds() if trial.duration else None
    state = "diverged" if "reason" in trial.user_attrs else trial.state.name.lower()
    return {
        "trial": trial.number,
        "value": trial.value if state == "complete" else None,
        "state": state,
        **trial.params,
        "seconds": None if seconds is None else round(seconds, 1),
        "folder": trial.user_attrs.get("folder", ""),
        "reason": trial.user_attrs.get("reason", ""),
    }
