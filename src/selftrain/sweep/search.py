"""Search for good settings with Optuna, on held-out labels; many processes and machines can share one study.

Knows nothing of which settings there are (see ``space``). The test set is never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.runs.folder import make_folder
from selftrain.sweep.plan import HELD_OUT, make_plan
from selftrain.sweep.results import Result
from selftrain.sweep.space import Space


@dataclass(frozen=True)
class Sweep:
    given: Mapping[str, Any]
    """settings shared by all trials, by their dotted names; data.path among them"""
    out: Path
    """folder for one run folder per trial, best.yaml and the table of trials"""
    space: Space = field(default_factory=dict)
    """empty: the paper's grid for the method"""
    trials: int = 20
    """number of trials of all processes together"""
    folds: int = 0
    """parts that the labels are cut into, each held out once; 0: data.validation_per_class labels are held out"""
    storage: str | None = None
    """an SQLAlchemy URL; unset: an SQLite file in ``out``"""
    study: str = "selftrain"
    """name of the study in its database"""
    prune: bool = True
    """end a trial that is worse than half of the others were at that step"""
    grace: int = 60
    """seconds of silence after which another process counts as dead, and its trial is tried again"""

    def run(self, reporter: Reporter) -> Result:
        """Run trials until there are enough, write the files, and return the best settings."""
        if find_spec("optuna") is None:
            raise UserError('sweep: Optuna is not installed. Run: pip install "selftrain[sweep]"')
        from selftrain.sweep.study import Address, result_of, run_trials
        from selftrain.sweep.trial import Objective

        plan = make_plan(self.given, self.space, trials=self.trials, folds=self.folds, prune=self.prune)
        make_folder(self.out)
        url = self.storage or f"sqlite:///{(self.out / 'study.db').resolve()}"
        address = Address(url, self.study, self.grace)
        with address.open(plan) as study:
            reporter.say(f"study {self.study} in {address}: {plan.describe()}")
            run_trials(study, Objective(plan, self.out, reporter), self.grace)
            result = result_of(study)
        result.write(self.out, {name: value for name, value in self.given.items() if name not in HELD_OUT})
        return result
