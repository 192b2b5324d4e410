"""Runs beside a run: where its errors come from, class by class, and how accurate it is without a test set.

Knows nothing of equations or figures: it trains further runs inside a finished run's folder and compares their results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.split import Split, fold_splits, with_all_labels
from selftrain.data.split_file import load_split
from selftrain.engine.runtime import make_fabric
from selftrain.errors import UserError
from selftrain.files import refuse_links
from selftrain.methods import Method, make_method
from selftrain.runs.fit import fit
from selftrain.runs.layout import FOLDS, REFERENCE, CrossValidated, LabelsOnly, PerClass, Reference, Results, RunLayout
from selftrain.runs.places import known_cache
from selftrain.runs.problem import Problem, read_corpus
from selftrain.runs.process import restored_afterwards
from selftrain.runs.resolve import resolve


def decompose(
    run_folder: str | Path, reporter: Reporter | None = None, *, data: Any = None, test: Any = None
) -> Reference:
    """Return data bias and training bias of every class, as the paper defines them; keep them in ``reference.json``.

    B(f) is the share of each class that f gets wrong. Data bias, B(f_pl(P_n, psi_0)) - B(f*), comes from the few labels
    and the backbone: the error with these labels alone minus the error with all labels. Training bias,
    B(f_pl(P_n, psi_0, S)) - B(f_pl(P_n, psi_0)), is what self-training adds to it; negative values are improvements.

    Two runs are trained with the same split, backbone and settings: ``supervised`` on the labels alone and, where the
    class of every image is known (a benchmark), on all labels, which is as close to f* as these settings come. They
    stay in the run folder under ``reference``. Finished runs are reused, and stopped ones are resumed.

    Parameters
    ----------
    run_folder
        A finished run that was evaluated on a test set or on held-out labels.
    data, test
        The arrays of a run that was trained on arrays.
    """
    run = RunLayout(Path(run_folder))
    if known := run.read_reference():
        return known
    results = _finished(run)
    per_class = results["per_class"]
    if per_class is None:
        raise UserError(
            f"{run.folder}: bias cannot be measured without labels that training has not seen. Train with a test set "
            f"(`test`) or with held-out labels (`data.validation_per_class=1`)."
        )
    origin = _read_origin(run, reporter, data, test)
    if results["evaluated_on"] == "test" and origin.corpus.test is None:
        raise UserError(f"{run.folder}: it was evaluated on arrays. Give them again: test=(x_test, y_test).")
    few = _measured(origin.train(f"{REFERENCE}/labels_only", origin.split, origin.labels_only(origin.split)))
    every = None
    if origin.corpus.is_benchmark:
        split = with_all_labels(origin.split, origin.corpus)
        every = _measured(origin.train(f"{REFERENCE}/all_labels", split, origin.labels_only(split)))
    found: Reference = {
        "labels_only": few,
        "all_labels": every,
        "data_bias": None if every is None else _more_errors(few["per_class"], every["per_class"]),
        "training_bias": _more_errors(per_class, few["per_class"]),
        "evaluated_on": results["evaluated_on"],
    }
    run.write_reference(found)
    return found


def cross_validate(
    run_folder: str | Path,
    reporter: Reporter | None = None,
    *,
    folds: int,
    data: Any = None,
    method: Method | None = None,
) -> CrossValidated:
    """Estimate the accuracy of a run from its labels, and keep the estimate in ``results.json``.

    The run is repeated ``folds`` times, each time with another part of its labels held out, and evaluated on that part.
    These runs have fewer labels than the run itself, so the estimate is usually somewhat too low. The setting
    ``train.folds`` does this at the end of training.

    Parameters
    ----------
    data, method
        The arrays of a run that was trained on arrays; the method, if it is an object of your own class.
    """
    run = RunLayout(Path(run_folder))
    results = _finished(run)
    origin = _read_origin(run, reporter, data)
    accuracies = []
    seen, right = np.zeros((2, len(origin.corpus.classes)))
    for i, split in enumerate(fold_splits(origin.split, origin.corpus, folds), 1):
        fold = origin.train(f"{FOLDS}/{i}-of-{folds}", split, {"data.evaluate_on": "validation"}, method)
        accuracies.append(fold["accuracy"] or 0.0)
        for true, predicted, count in fold["confusion"] or ():
            seen[true] += count
            right[true] += count * (true == predicted)
    estimate: CrossValidated = {
        "folds": folds,
        "labels": int(seen.sum()),
        "accuracy": float(np.mean(accuracies)),
        "accuracy_std": float(np.std(accuracies, ddof=1)),
        "per_class": [r / n if n else None for r, n in zip(right.tolist(), seen.tolist(), strict=True)],
    }
    run.write_results({**results, "cross_validated": estimate})
    mean, std = 100 * estimate["accuracy"], 100 * estimate["accuracy_std"]
    origin.reporter.say(f"accuracy on held-out labels, {folds} folds: {mean:.1f} ± {std:.1f}")
    return estimate


@dataclass(frozen=True)
class _Origin:
    """The corpus, split and settings of a finished run, for runs that are trained beside it, in its folder."""

    run: RunLayout
    given: dict[str, Any]
    corpus: Corpus
    split: Split
    reporter: Reporter

    def labels_only(self, split: Split) -> dict[str, Any]:
        """Return the settings of the labels-only baseline, with the labeled loss of the run's own method."""
        return {"method": self._supervised(), "data.labels_per_class": split.labels_per_class}

    def _supervised(self) -> str:
        try:
            method: Any = make_method(self.given["method"], self.given["regime"])
        except UserError:  # an object of the user's own class
            return "supervised"
        w_strong = getattr(getattr(method, "base", method), "w_strong", None)
        return "supervised" if w_strong is None else f"supervised(w_strong={w_strong})"

    def train(self, name: str, split: Split, values: dict[str, Any], method: Method | None = None) -> Results:
        """Return the results of a run with other values of some settings, on a split of its own; train it if needed."""
        run = self.run.beside(name)
        if not run.finished:
            refuse_links(run.folder, self.run.folder)
            steps = int(self.given["train.steps"])
            every = {"train.eval_every": steps, "train.checkpoint_every": max(1, steps // 10)}
            beside = {"train.folds": 0, "train.logger": "none", "network.save_backbone": False}
            settings, made = resolve({**self.given, **every, **beside, **values}, method)
            self.reporter.say(f"{name}: {len(split.labeled)} labeled images, in {run.folder}")
            with restored_afterwards(threads=settings.train.threads):
                fabric = make_fabric(settings.train, unused=len(made.turns) > 1)
                reporter = Reporter(self.reporter.console.quiet, self.reporter.translate)  # with a log of its own
                fit(settings, made, Problem(self.corpus, split), fabric, reporter, folder=run.folder, resume=run.exists)
        return run.read_results()


def _read_origin(run: RunLayout, reporter: Reporter | None, data: Any = None, test: Any = None) -> _Origin:
    reporter = reporter or Reporter(quiet=True)
    given = run.read_settings()
    given["data.cache"] = known_cache(given.get("data.cache"))
    settings, _ = resolve({**given, "method": "supervised"})
    corpus = read_corpus(settings, data, test, reporter)
    if given.get("data.flip") is None:  # decided by the dataset, or before there was a decision
        given["data.flip"] = corpus.flip
    return _Origin(run, given, corpus, load_split(run.split, corpus), reporter)


def _finished(run: RunLayout) -> Results:
    run.check()
    if not run.finished:
        raise UserError(f"{run.folder}: the run is not finished. Resume it first, with 'selftrain train'.")
    return run.read_results()


def _measured(results: Results) -> LabelsOnly:
    per_class = results["per_class"]
    assert per_class is not None, "a reference is evaluated on what its run was evaluated on"
    return {"accuracy": results["accuracy"], "per_class": per_class}


def _more_errors(one: PerClass, other: PerClass) -> PerClass:
    """Return how much larger the first's share of errors is in each class."""
    return [None if a is None or b is None else b - a for a, b in zip(one, other, strict=True)]
