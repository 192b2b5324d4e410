"""A search for good settings with Optuna, on labels that are held out; many processes and machines share one study.

Knows nothing of which settings there are (see ``space``). The test set is never looked at.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from selftrain.config.options import flatten, spell
from selftrain.config.resolve import dump_settings
from selftrain.console import Reporter
from selftrain.data.source import DATASETS
from selftrain.errors import DivergedError, UserError
from selftrain.files import write_text
from selftrain.runs.folder import make_folder
from selftrain.runs.run import CONFIG, RESULTS, Run
from selftrain.runs.trainer import settle, train
from selftrain.sweep.space import Range, Space, size, usual_space

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

ATTEMPTS = 3
"""how often a trial is tried whose process dies"""
HELD_OUT = ("data.fold", "data.validation_per_class", "data.evaluate_on")
MEASURED_ON = ("data.path", "data.labels", "data.test", "data.split_seed", "data.labels_per_class", "seed")


class _SurplusError(Exception):
    """Several processes asked for the last trial at once, or for the same one."""


@dataclass(frozen=True)
class Sweep:
    given: Mapping[str, Any]
    """settings that are the same for all trials, by their dotted names; data.path among them"""
    out: Path
    """a run folder for each trial, best.yaml and the table of trials"""
    space: Space = field(default_factory=dict)
    """empty: the paper's grid for the method"""
    trials: int = 20
    """of all processes together"""
    folds: int = 0
    """parts that the labels are cut into, each held out once; 0: data.validation_per_class labels are held out"""
    storage: str | None = None
    """an SQLAlchemy URL; unset: an SQLite file in ``out``"""
    study: str = "selftrain"
    prune: bool = True
    """end a trial that does worse than half of the others did at that step"""
    grace: int = 60
    """seconds of silence after which another process counts as dead, and its trial is tried again"""

    def run(self, reporter: Reporter) -> Result:
        optuna = _optuna()
        base = self._settings()
        chosen, _ = settle(base)
        space = self.space or usual_space(str(base.get("method", chosen.method)), chosen.regime, self.given)
        if not space:
            raise UserError("sweep: there is nothing to search; give --search or --space.")
        self._check(base, space)
        trials = int(min(self.trials, size(space)))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        make_folder(self.out)
        storage = self._storage(optuna)
        try:
            study = self._open(optuna, storage, base, space, trials, reporter)
            self._search(optuna, study, _Objective(self, base, space, trials, optuna, reporter))
            return self._finish(study)
        finally:
            storage.remove_session()
            storage.engine.dispose()

    def _search(self, optuna: Any, study: Study, objective: _Objective) -> None:
        """Trial after trial, until all that were asked for are finished, here or elsewhere."""
        said = 0
        while True:
            self._fail_stale(optuna, study)
            known = study.get_trials(deepcopy=False)
            counted = [trial for trial in known if _counts(trial)]
            states = optuna.trial.TrialState
            if len(counted) < objective.trials or any(trial.state == states.WAITING for trial in known):
                self._one(study, objective)
            elif running := sum(trial.state == states.RUNNING for trial in counted):
                if said != running:
                    objective.reporter.say(f"waiting for {running} trials of other processes")
                said = running
                time.sleep(min(2.0, self.grace / 3))
            else:
                return

    # --- settings -------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """Those of every trial: nothing is ever measured on the test set."""
        settings = settle(self.given)[0]
        data = settings.data
        if (settings.train.devices or 1) > 1:
            raise UserError(f"train.devices={settings.train.devices}: a trial is one process; leave it out.")
        if data.evaluate_on == "test":
            raise UserError(
                "data.evaluate_on=test: a sweep never looks at the test set. Leave it out; "
                "hold labels out with --folds K or --set data.validation_per_class=N."
            )
        if data.fold is not None:
            raise UserError(f"data.fold={data.fold}: a sweep takes all folds; give their number with --folds.")
        if self.folds and data.validation_per_class:
            raise UserError(
                f"--folds {self.folds}: the folds are what is held out; leave out data.validation_per_class."
            )
        if not self.folds and not data.validation_per_class:
            raise UserError("sweep: nothing is held out; give --folds K or --set data.validation_per_class=N.")
        small = {"network.save_backbone": False}
        return {**small, **self.given, "data.evaluate_on": "validation"}

    def _check(self, base: Mapping[str, Any], space: Space) -> None:
        """A typo is told before anything runs."""
        for name, values in space.items():
            if name in HELD_OUT or name in MEASURED_ON:
                raise UserError(f"--search {name}: cannot be searched; it decides what a trial is measured on.")
            for value in (values.low, values.high) if isinstance(values, Range) else values:
                settle({**base, name: value})

    # --- the study ------------------------------------------------------------------------------------------------

    def _open(
        self, optuna: Any, storage: Any, base: Mapping[str, Any], space: Space, trials: int, reporter: Reporter
    ) -> Study:
        exhaustive = trials == size(space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # constant_liar: what other processes are trying is not tried again
            sampler: Any = (
                optuna.samplers.BruteForceSampler()
                if exhaustive
                else optuna.samplers.TPESampler(constant_liar=True, n_startup_trials=min(10, max(2, trials // 3)))
            )
            pruner: Any = (
                optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
                if self.prune
                else optuna.pruners.NopPruner()
            )
            study: Study = optuna.create_study(
                storage=storage, study_name=self.study, sampler=sampler, pruner=pruner, direction="maximize",
                load_if_exists=True,
            )  # fmt: skip
        about = json.loads(
            json.dumps(
                {"settings": dict(base), "folds": self.folds, "space": {n: _words(v) for n, v in space.items()}},
                default=str,
            )
        )
        saved = study.user_attrs.get("about", about)
        if saved != about and any(_counts(trial) for trial in study.get_trials(deepcopy=False)):
            then, now = flatten(saved), flatten(about)
            name = next(name for name in {**then, **now} if then.get(name) != now.get(name))
            raise UserError(
                f"--study {self.study} in {self.shown} was started with {name}={then.get(name)}, not {now.get(name)}. "
                "Leave that as it was to go on, or choose another --study or --out."
            )
        study.set_user_attr("about", about)
        reporter.say(
            f"study {self.study} in {self.shown}: {trials} trials over {', '.join(space)}"
            + (", all there are" if exhaustive else f", of {size(space):g}" if size(space) < math.inf else "")
        )
        return study

    @property
    def url(self) -> str:
        return self.storage or f"sqlite:///{(self.out / 'study.db').resolve()}"

    @property
    def shown(self) -> str:
        """The address without a password."""
        return re.sub(r"(://[^:/@]+):[^@]*@", r"\1:***@", self.url)

    def _storage(self, optuna: Any) -> Any:
        """Several processes may make the tables at once; all but one of them have to try again."""
        url = self.url
        options: dict[str, Any] = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
        for patience in (0.5, 1.0, 2.0, 0.0):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                    return optuna.storages.RDBStorage(
                        url,
                        engine_kwargs=options,
                        heartbeat_interval=max(1, self.grace // 4),
                        grace_period=self.grace,
                        heartbeat_stale_trial_callback=_again,
                    )
            except Exception as error:  # sqlalchemy's, a driver's, an import that is missing
                if not patience:
                    lines = str(error).strip().splitlines() or [type(error).__name__]
                    raise UserError(f"--storage {self.shown}: cannot be opened ({lines[0]}).") from None
                time.sleep(patience)
        raise AssertionError

    def _fail_stale(self, optuna: Any, study: Study) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)

    def _one(self, study: Study, objective: _Objective) -> None:
        objective.trial = None
        try:
            study.optimize(objective, n_trials=1, catch=(_SurplusError, DivergedError))
        except KeyboardInterrupt:  # the trial goes on from its checkpoint when the sweep does
            if objective.trial is not None:
                _again(study, study.get_trials(deepcopy=False)[objective.trial.number])
            raise

    # --- results --------------------------------------------------------------------------------------------------

    def _finish(self, study: Study) -> Result:
        trials = sorted((t for t in study.get_trials(deepcopy=False) if _counts(t)), key=lambda t: t.number)
        complete = [trial for trial in trials if trial.value is not None and trial.state.name == "COMPLETE"]
        if not complete:
            reasons = [t.user_attrs["reason"] for t in trials if "reason" in t.user_attrs]
            raise UserError(f"sweep: none of {len(trials)} trials finished" + (f": {reasons[0]}" if reasons else "."))
        best = max(complete, key=lambda trial: (trial.value, -trial.number))
        kept = {name: value for name, value in self.given.items() if name not in HELD_OUT}
        settings, _ = settle({**kept, **best.params})
        body = dump_settings(settings).partition("\n")[2]
        head = f"# The best of {len(trials)} trials, on all labels: selftrain train --config best.yaml --out RUN\n"
        write_text(self.out / "best.yaml", head + body)
        result = Result(best.number, float(best.value or 0), best.params, [_line(trial) for trial in trials])
        write_text(self.out / "trials.csv", result.csv())
        write_text(self.out / "trials.md", result.markdown() + "\n")
        return result


@dataclass(frozen=True)
class Result:
    number: int
    value: float
    best: dict[str, Any]
    """the settings that did best"""
    trials: list[dict[str, Any]]
    """one entry a trial"""

    def csv(self) -> str:
        names = list(dict.fromkeys(name for trial in self.trials for name in trial))
        file = io.StringIO()
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.trials)
        return file.getvalue()

    def markdown(self) -> str:
        """The best first."""
        names = [name for name in dict.fromkeys(n for trial in self.trials for n in trial) if name != "reason"]
        ranked = sorted(self.trials, key=lambda t: (t["state"] != "complete", -(t["value"] or 0), t["trial"]))
        lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        for trial in ranked:
            words = ["-" if trial.get(name) in (None, "") else _word(name, trial[name]) for name in names]
            lines.append("| " + " | ".join(words) + " |")
        return "\n".join(lines)


def _word(name: str, value: Any) -> str:
    return f"{100 * value:.1f}" if name == "value" else spell(value)


class _Objective:
    """One trial: a run, or one for each fold."""

    def __init__(
        self, sweep: Sweep, base: Mapping[str, Any], space: Space, trials: int, optuna: Any, reporter: Reporter
    ):
        self.sweep, self.base, self.space, self.trials = sweep, base, space, trials
        self.optuna, self.reporter = optuna, reporter
        self.trial: Trial | None = None
        self.metric = getattr(DATASETS.get(str(base["data.path"])), "metric", None) or "accuracy"

    def __call__(self, trial: Trial) -> float:
        earlier = [t for t in trial.study.get_trials(deepcopy=False) if t.number < trial.number and _counts(t)]
        if len(earlier) >= self.trials:
            raise _SurplusError
        values = {name: _suggest(trial, name, choice) for name, choice in self.space.items()}
        if same := [t for t in earlier if t.params == trial.params]:
            if self.trials == size(self.space):
                raise _SurplusError  # every point of the grid has its turn
            if finished := [t for t in same if t.state.name == "COMPLETE"]:
                trial.set_user_attr("folder", finished[0].user_attrs.get("folder", ""))
                return float(finished[0].value or 0)
        self.trial = trial
        home = trial.user_attrs.get("folder") or f"trial-{trial.number:04d}"
        trial.set_user_attr("folder", home)
        words = ", ".join(f"{name} {spell(value)}" for name, value in values.items())
        try:
            value = self._run(trial, values, self.sweep.out / home)
        except self.optuna.TrialPruned:
            self.reporter.say(f"trial {trial.number}: pruned ({words})")
            raise
        except DivergedError as error:
            trial.set_user_attr("reason", str(error))
            self.reporter.warn(f"trial {trial.number}: {error} ({words})")
            raise
        self.reporter.say(f"trial {trial.number}: {100 * value:.1f} ({words})")
        return value

    def _run(self, trial: Trial, values: Mapping[str, Any], home: Path) -> float:
        scores: list[float] = []
        step = 0

        def watch(row: dict[str, Any]) -> None:
            nonlocal step
            if row[self.metric] is None:
                return
            step += 1
            trial.report(mean([*scores, row[self.metric]]), step)
            if self.sweep.prune and trial.should_prune():
                raise self.optuna.TrialPruned

        for fold in range(max(1, self.sweep.folds)):
            folder = home / f"fold{fold}" if self.sweep.folds else home
            if (folder / RESULTS).exists():
                run = Run(folder)
                for row in run.metrics:
                    watch(row)
            else:
                part = {"data.fold": f"{fold + 1}/{self.sweep.folds}"} if self.sweep.folds else {}
                settings = {**self.base, **values, **part}
                begun = (folder / CONFIG).exists()
                run = train(settings=settings, out=folder, resume=begun, quiet=True, watch=watch)
            scores.append(float(run.results[self.metric]))
        return mean(scores)


def _suggest(trial: Trial, name: str, choice: tuple[Any, ...] | Range) -> Any:
    if not isinstance(choice, Range):
        return trial.suggest_categorical(name, choice)
    if choice.whole:
        return trial.suggest_int(name, int(choice.low), int(choice.high), log=choice.log)
    return trial.suggest_float(name, choice.low, choice.high, log=choice.log)


def _counts(trial: FrozenTrial) -> bool:
    """Whether it is one of those asked for; a trial whose process died is not, another takes its place."""
    return trial.state.name in ("COMPLETE", "PRUNED", "RUNNING") or "reason" in trial.user_attrs


def _again(study: Study, trial: FrozenTrial) -> None:
    """Put a trial that was cut off back into the queue; it goes on in its folder."""
    tries = trial.user_attrs.get("attempt", 1)
    if trial.params and tries < ATTEMPTS:
        attributes = {"folder": trial.user_attrs.get("folder", ""), "attempt": tries + 1}
        study.enqueue_trial(trial.params, user_attrs=attributes)


def _words(choice: tuple[Any, ...] | Range) -> Any:
    return str(choice) if isinstance(choice, Range) else list(choice)


def _line(trial: FrozenTrial) -> dict[str, Any]:
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


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError('sweep: Optuna is not installed; pip install "selftrain[sweep]".') from None
    return optuna
