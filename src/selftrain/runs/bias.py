"""Where the errors of a run come from, class by class, and how good it is where there is no test set.

Knows nothing of equations or figures: it trains further runs beside a finished one and compares their results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from selftrain.config.resolve import dump_settings, read_config
from selftrain.console import Reporter
from selftrain.data.split import Split, fold_splits, load_split, save_split, with_all_labels
from selftrain.errors import UserError
from selftrain.files import read_json, write_json, write_text
from selftrain.methods import Method, make_method
from selftrain.runs import trainer as training
from selftrain.runs.run import CONFIG, REFERENCE, RESULTS, SPLIT, Run

PerClass = list[float | None]


def decompose(
    run_folder: str | Path, reporter: Reporter | None = None, *, data: Any = None, test: Any = None
) -> dict[str, Any]:
    """Data bias and training bias of every class, as the paper defines them; kept in the run's ``reference.json``.

    B(f) is the share of each class that f gets wrong. Data bias, B(f_pl(P_n, psi_0)) - B(f*), is what the few labels
    and the backbone bring along: the error of the labels alone above that of all labels. Training bias,
    B(f_pl(P_n, psi_0, S)) - B(f_pl(P_n, psi_0)), is what self-training adds to it, or takes away.

    Two runs are made for it with the same split, backbone and settings: ``supervised`` on the labels alone, and, where
    the class of every picture is known (a benchmark), on all of them, which is as near to f* as these settings come.
    They stay in the run folder under ``reference``; what is there already is not made again, and what was stopped goes
    on.

    Parameters
    ----------
    run_folder
        A finished run that was evaluated on a test set or on held-out labels.
    data, test
        The arrays of a run that was trained on arrays.
    """
    run = Run(run_folder)
    if (run.folder / REFERENCE).exists():
        known: dict[str, Any] = read_json(run.folder / REFERENCE)
        return known
    results = _finished(run)
    if results["per_class"] is None:
        raise UserError(
            f"{run.folder}: bias can't be told without labels that training has not seen. Train with a test set "
            f"(--test DIR) or with held-out labels (--set data.validation_per_class=1)."
        )
    origin = _Origin(run, reporter, data, test)
    if results["evaluated_on"] == "test" and origin.corpus.test is None:
        raise UserError(f"{run.folder}: it was evaluated on arrays: give them again, as test=(x_test, y_test).")
    labels = {"labels_only": origin.split, "all_labels": None}
    if origin.corpus.is_benchmark:
        labels["all_labels"] = with_all_labels(origin.split, origin.corpus)
    found: dict[str, Any] = {}
    for name, split in labels.items():
        found[name] = None
        if split is not None:
            values = {"method": origin.supervised(), "data.labels_per_class": split.labels_per_class}
            made = origin.train(f"reference/{name}", split, values)
            found[name] = {key: made[key] for key in ("accuracy", "per_class")}
    few, every = found["labels_only"], found["all_labels"]
    document = {
        **found,
        "data_bias": None if every is None else _more_errors(few["per_class"], every["per_class"]),
        "training_bias": _more_errors(results["per_class"], few["per_class"]),
        "evaluated_on": results["evaluated_on"],
    }
    write_json(run.folder / REFERENCE, document)
    return document


def cross_validate(
    run_folder: str | Path,
    reporter: Reporter | None = None,
    *,
    folds: int,
    data: Any = None,
    method: Method | None = None,
) -> dict[str, Any]:
    """An estimate of accuracy from the few labels themselves, kept in the run's ``results.json``.

    The run is repeated ``folds`` times, each time with another part of its labels held out, and judged on that part.
    Those runs have fewer labels than the run itself, so that the estimate is rather too low. The setting
    ``train.folds`` does this at the end of training.

    Parameters
    ----------
    data, method
        The arrays of a run that was trained on arrays; the method, where its class is the user's own.
    """
    run = Run(run_folder)
    results = _finished(run)
    origin = _Origin(run, reporter, data)
    accuracies = []
    seen, right = np.zeros((2, len(origin.corpus.classes)))
    for i, split in enumerate(fold_splits(origin.split, origin.corpus, folds), 1):
        made = origin.train(f"folds/{i}-of-{folds}", split, {"data.evaluate_on": "validation"}, method)
        accuracies.append(made["accuracy"])
        for true, predicted, count in made["confusion"]:
            seen[true] += count
            right[true] += count * (true == predicted)
    estimate: dict[str, Any] = {
        "folds": folds,
        "labels": int(seen.sum()),
        "accuracy": float(np.mean(accuracies)),
        "accuracy_std": float(np.std(accuracies, ddof=1)),
        "per_class": [r / n if n else None for r, n in zip(right.tolist(), seen.tolist(), strict=True)],
    }
    write_json(run.folder / RESULTS, {**results, "cross_validated": estimate})
    mean, std = 100 * estimate["accuracy"], 100 * estimate["accuracy_std"]
    origin.reporter.say(f"accuracy on held-out labels, {folds} folds: {mean:.1f} ± {std:.1f}")
    return estimate


class _Origin:
    """The data, split and settings of a finished run, for runs that are made beside it, in its folder."""

    def __init__(self, run: Run, reporter: Reporter | None, data: Any = None, test: Any = None):
        self.run, self.data, self.test = run, data, test
        self.reporter = reporter or Reporter(quiet=True)
        self.given = read_config(run.folder / CONFIG)
        settings, _ = training.settle({**self.given, "method": "supervised"})
        self.corpus = training.load_data(settings, data, test, self.reporter)
        self.split = load_split(run.folder / SPLIT, self.corpus)

    def supervised(self) -> str:
        """The baseline with the labeled loss of the run's own method."""
        try:
            method: Any = make_method(self.given["method"], self.given["regime"])
        except UserError:  # a class of the user's own
            return "supervised"
        w_strong = getattr(getattr(method, "base", method), "w_strong", None)
        return "supervised" if w_strong is None else f"supervised(w_strong={w_strong})"

    def train(self, name: str, split: Split, values: dict[str, Any], method: Method | None = None) -> dict[str, Any]:
        """The results of a run with other values of some settings, on a split of its own; made unless it is there."""
        folder = self.run.folder / name
        if not (folder / RESULTS).exists():
            if not (folder / CONFIG).exists():
                steps = int(self.given["train.steps"])
                every = {"train.eval_every": steps, "train.checkpoint_every": max(1, steps // 10)}
                beside = {"train.folds": 0, "train.logger": "none", "network.save_backbone": False}
                settings, _ = training.settle({**self.given, **every, **beside, **values}, method)
                save_split(split, self.corpus, folder / SPLIT)
                write_text(folder / CONFIG, dump_settings(settings))
            self.reporter.say(f"{name}: {len(split.labeled)} labeled images, in {folder}")
            quiet = self.reporter.console.quiet
            training.train(self.data, test=self.test, method=method, out=folder, resume=True, quiet=quiet)
        results: dict[str, Any] = read_json(folder / RESULTS)
        return results


def _finished(run: Run) -> dict[str, Any]:
    if not (run.folder / RESULTS).exists():
        raise UserError(f"{run.folder}: the run is not finished. Go on with it first: --resume --out {run.folder}")
    return run.results


def _more_errors(one: PerClass, other: PerClass) -> PerClass:
    """How much larger the share of each class is that the first gets wrong."""
    return [None if a is None or b is None else b - a for a, b in zip(one, other, strict=True)]
