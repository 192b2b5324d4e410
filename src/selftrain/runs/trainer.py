"""``train``: from arguments to a finished run folder, step by step.

Knows nothing of equations, networks or the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from selftrain.console import Reporter
from selftrain.data.images.pixel_budget import pixel_limit
from selftrain.data.split import fold_splits
from selftrain.engine.distributed import failing_together, started
from selftrain.engine.runtime import make_fabric
from selftrain.errors import UserError
from selftrain.methods import Method
from selftrain.runs.arguments import Arguments, parse_arguments, with_quality
from selftrain.runs.bias import cross_validate
from selftrain.runs.fit import Watch, fit
from selftrain.runs.folder import can_be_replaced, check_free, remove_run, resumable
from selftrain.runs.layout import RunLayout
from selftrain.runs.problem import Problem, choose_split, read_corpus, source_of
from selftrain.runs.process import restored_afterwards
from selftrain.runs.resolve import resolve, resumed
from selftrain.runs.run import Run


@failing_together()
def train(
    data: Any = None,
    *,
    labels: str | Path | None = None,
    test: Any = None,
    unlabeled: str | Path | None = None,
    method: str | Method | None = None,
    backbone: str | None = None,
    quality: str | None = None,
    regime: str | None = None,
    labels_per_class: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    size: int | None = None,
    root: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    method_files: Sequence[str | Path] = (),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    strict: bool | None = None,
    quiet: bool = False,
    watch: Watch | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Train a classifier and write a run folder.

    Parameters
    ----------
    data
        A folder in one of the three layouts, the name of a dataset, ``hf:`` and a name on Hugging Face, a pattern of
        tar files, a file or folder of features, or a pair of arrays ``(x, y)`` where ``y == -1`` means unlabeled.
    labels, test, unlabeled, backbone, quality, regime, labels_per_class, steps, seed, size, root
        As ``selftrain train --help`` explains. ``test`` may also be a pair of arrays.
    method
        A string, which takes its defaults from the regime, or an object such as ``DST(FixMatch(tau=0.7))``, perhaps of
        a class of your own, which is taken as it is. ``"path/file.py:MyMethod"`` is a class in a file, whose code runs.
    settings
        Any other setting by its dotted name, ``{"optim.lr": 0.01, "method.base.tau": 0.9}``.
    config
        The ``config.yaml`` of an earlier run, to repeat it; other arguments take precedence over it.
    method_files
        Python files whose code may run because ``config`` or the run that is resumed has a method in them. Files that
        ``method`` names need not be repeated here.
    out, resume, overwrite, strict, quiet
        The run folder; resume the run in it, or delete it once the data has been read; stop at an unreadable image
        instead of leaving it out; print nothing.
    watch
        Called with the row of metrics of each evaluation, those from before a resume first. An exception ends the run.

    Returns
    -------
    Run
        The run folder, with ``results``, ``metrics``, ``predict`` and ``evaluate``.
    """
    named = {
        "data.labels_per_class": labels_per_class, "data.size": size, "data.strict": strict,
        "network.backbone": backbone, "regime": regime, "seed": seed, "train.steps": steps,
    }  # fmt: skip
    reporter = reporter or Reporter(quiet or started().rank > 0)
    arguments = parse_arguments(
        data=data, labels=labels, test=test, unlabeled=unlabeled, method=method, root=root, settings=settings,
        config=config, method_files=method_files, named=with_quality(quality, named, settings, reporter, config),
    )  # fmt: skip
    folder = None if out is None else Path(out)
    return _train(arguments, folder, resume, reporter, watch, overwrite=overwrite)


def _train(
    arguments: Arguments,
    folder: Path | None,
    resume: bool,
    reporter: Reporter,
    watch: Watch | None,
    *,
    overwrite: bool = False,
) -> Run:
    given = arguments.given
    if overwrite and (resume or folder is None):
        raise UserError("`overwrite=True` needs `out`, the folder of a run to replace, and cannot resume it.")
    if resume:
        folder = resumable(folder)
        given = resumed(RunLayout(folder), given, arguments.method)
    elif folder is not None and not (overwrite and can_be_replaced(RunLayout(folder))):
        check_free(RunLayout(folder))
    if not given.get("data.path"):
        raise UserError("`data` is missing: give a folder of images, or the name of a dataset such as 'digits'.")
    settings, method = resolve(given, arguments.method)
    limit = settings.data.max_pixels if "data.max_pixels" in given else None  # else the environment's
    with restored_afterwards(threads=settings.train.threads), pixel_limit(limit):
        fabric = make_fabric(settings.train, unused=len(method.turns) > 1)
        one_rank_downloads = source_of(settings).kind == "dataset"
        with fabric.rank_zero_first(local=True) if one_rank_downloads else nullcontext():
            corpus = read_corpus(settings, arguments.arrays, arguments.test_arrays, reporter)
        split = choose_split(settings, corpus, reporter, RunLayout(folder) if resume and folder is not None else None)
        folds = fold_splits(split, corpus, settings.train.folds) if settings.train.folds else []
        if folds and fabric.world_size > 1:
            raise UserError(f"train.folds={settings.train.folds}: cross-validation runs in one process only.")
        problem = Problem(corpus, split)
        if overwrite and folder is not None and fabric.is_global_zero:
            remove_run(RunLayout(folder))
        run = fit(settings, method, problem, fabric, reporter, folder=folder, resume=resume, watch=watch)
        if folds:
            cross_validate(run.folder, reporter, folds=len(folds), data=arguments.arrays, method=arguments.method)
    return run
