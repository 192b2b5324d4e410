"""From data and settings to a finished run folder.

Knows nothing of equations (methods) or of the command line: it joins data, network, method and engine.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn

from selftrain.config.options import flatten
from selftrain.config.resolve import dump_settings, make_settings, read_config, with_values
from selftrain.config.settings import Settings, changes_results, settings_hash
from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.images import Images
from selftrain.data.source import ARRAYS, Source, absolute_path
from selftrain.data.sources.label_file import possible_typos
from selftrain.data.split import Split, fold_splits, load_split, make_split, save_split
from selftrain.data.views.image_views import ImageViews
from selftrain.data.views.stream import Stream, batches
from selftrain.engine.checkpoint import load_checkpoint, not_a_checkpoint, save_checkpoint
from selftrain.engine.distributed import failing_together, started
from selftrain.engine.estimate import Estimate
from selftrain.engine.evaluate import answers, tally
from selftrain.engine.loggers import check_logger, open_logger
from selftrain.engine.loop import Loop, add_average
from selftrain.engine.metrics import as_json, calibration, summarise
from selftrain.engine.observers import make_observers
from selftrain.engine.optim import make_optimizers
from selftrain.engine.runtime import compile_networks, make_fabric
from selftrain.engine.sharding import make_whole, shard_backbones
from selftrain.errors import UserError
from selftrain.files import append_text, write_json, write_text
from selftrain.methods import Method, make_method, spell_method
from selftrain.nn.collectives import all_sum, from_first, my_share
from selftrain.nn.layers import Classifier, Committee
from selftrain.nn.network import Network, Task
from selftrain.runs.dead_classes import alarm, new_alarms
from selftrain.runs.environment import device_name, environment
from selftrain.runs.folder import alone, check_free, free_folder, resumable
from selftrain.runs.image_outputs import evaluated_outputs, never_predicted, pool_outputs, save_outputs
from selftrain.runs.model import save_model
from selftrain.runs.network_inputs import make_inputs
from selftrain.runs.run import CHECKPOINTS, CONFIG, LOG, METRICS, MODEL, OUTPUTS, RESULTS, SPLIT, Run
from selftrain.version import __version__


@failing_together()
def train(
    data: Any = None,
    *,
    labels: str | Path | None = None,
    test: Any = None,
    unlabeled: str | Path | None = None,
    method: str | Method | None = None,
    backbone: str | None = None,
    regime: str | None = None,
    labels_per_class: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    size: int | None = None,
    root: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    strict: bool | None = None,
    quiet: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Train a classifier and write a run folder.

    Parameters
    ----------
    data
        A folder in one of the three layouts, the name of a dataset, ``hf:`` and a name on Hugging Face, a pattern of
        tar files, or a pair of arrays ``(x, y)`` where ``y == -1`` means unlabeled.
    labels, test, unlabeled, labels_per_class, root, size
        A CSV file ``path,label``; a folder of test images (or arrays ``(x, y)``); more unlabeled images, as a folder or
        tar files; labels to keep of each class, the others are hidden; where named datasets are; side in pixels of what
        the network sees.
    method, backbone, regime, steps, seed
        As ``selftrain train --help`` explains. A method may be a string, which takes its defaults from the regime, or
        an object such as ``DST(FixMatch(tau=0.7))`` (or one of a class of your own), which is taken as it is.
    settings
        Any other setting by its dotted name, ``{"optim.lr": 0.01, "method.base.tau": 0.9}``.
    config
        The ``config.yaml`` of an earlier run, to repeat it; what is given besides it wins.
    out, resume
        The run folder; go on with a run that was stopped.
    strict, quiet
        Stop at an unreadable image instead of leaving it out; print nothing.
    watch
        Called with the figures of each evaluation, those from before a resume first; what it raises ends the run.

    Returns
    -------
    Run
        The folder, with ``results``, ``metrics``, ``predict`` and ``evaluate``.
    """
    source = None if data is None else Source.parse(data, root=root, labels=labels)
    arrays = data if source is not None and source.kind == "arrays" else None
    test_arrays = test if isinstance(test, (tuple, list)) else None
    more = None if unlabeled is None else Source.parse(unlabeled, argument="unlabeled")
    given: dict[str, Any] = {
        "data.path": None if source is None else source.absolute(),
        "data.labels": absolute_path(labels, "labels"),
        "data.test": absolute_path(test, "test") if test_arrays is None else ARRAYS,
        "data.unlabeled": None if more is None else more.absolute(),
        "data.root": absolute_path(root, "root"),
        "data.labels_per_class": labels_per_class,
        "data.size": size,
        "data.strict": strict,
        "network.backbone": backbone,
        "method": spell_method(method) if isinstance(method, Method) else method,
        "regime": regime,
        "seed": seed,
        "train.steps": steps,
    }
    if source is not None and source.is_features:
        if backbone not in (None, "features"):
            raise UserError(f"backbone {backbone!r}: these arrays are features already; leave it out.")
        given["network.backbone"] = "features"
    given = {name: value for name, value in given.items() if value is not None}
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError(f"settings={settings!r}: expected names and values, such as {{'optim.lr': 0.01}}.")
    for name, value in (settings or {}).items():
        if name in given and str(given[name]) != str(value):
            raise UserError(f"--set {name}={value}: it was given as {given[name]} besides. Keep one of them.")
    given |= settings or {}
    if given.get("data.cache"):
        given["data.cache"] = str(Path(given["data.cache"]).expanduser().resolve())  # which need not be there yet
    if config is not None:
        given = read_config(Path(config)) | given
    own = method if isinstance(method, Method) else None
    reporter = Reporter(quiet or started().rank > 0)
    folder = Path(out) if out is not None else None
    if resume:
        folder = resumable(folder)
        given = _unchanged(read_config(folder / CONFIG), given, folder, own)
    elif folder is not None:
        check_free(folder)
    if not given.get("data.path"):
        raise UserError("DATA is missing: give a folder of images, or a dataset's name such as 'digits'.")

    chosen, the_method = settle(given, own)
    if chosen.network.backbone == "features" and chosen.regime != "frozen":
        raise UserError(f"--regime {chosen.regime}: features train in the frozen regime only; leave it out.")
    if chosen.train.threads:
        torch.set_num_threads(chosen.train.threads)
    fabric = make_fabric(chosen.train, unused=len(the_method.turns) > 1)
    named = source_of(chosen).kind == "dataset"
    with fabric.rank_zero_first(local=True) if named else nullcontext():  # one rank downloads, the others read
        corpus = load_data(chosen, arrays, test_arrays, reporter)
    if resume and (folder / CHECKPOINTS).is_dir() and not (folder / SPLIT).exists():  # type: ignore[operator]
        raise UserError(f"--resume: {folder} has no {SPLIT}, so which images were labeled is not known. Start anew.")
    if resume and (folder / SPLIT).exists():  # type: ignore[operator]
        split = load_split(folder / SPLIT, corpus)  # type: ignore[operator]
    else:
        split = make_split(
            corpus,
            labels_per_class=chosen.data.labels_per_class,
            seed=chosen.data.split_seed,
            include_labeled=chosen.data.include_labeled,
            validation_per_class=chosen.data.validation_per_class,
        )
        if chosen.data.fold is not None:
            split = _hold_out(chosen, split, corpus)
    if chosen.train.folds:
        if fabric.world_size > 1:
            raise UserError(f"train.folds={chosen.train.folds}: folds want one process only.")
        fold_splits(split, corpus, chosen.train.folds)  # whether there are labels enough is better said now
    run = _Training(chosen, the_method, corpus, split, fabric, reporter).run(folder, resume, watch)
    if chosen.train.folds:
        from selftrain.runs.bias import cross_validate  # which trains, too

        cross_validate(run.folder, reporter, folds=chosen.train.folds, data=arrays, method=own)
    return run


def settle(given: Mapping[str, Any], method: Method | None = None) -> tuple[Settings, Method]:
    """The settings and the method that dotted names (``{"regime": "scratch", "method.base.tau": 0.9}``) ask for.

    A method that is given as an object, perhaps of the user's own making, is taken as it is.
    """
    given = dict(given)
    own = {name.removeprefix("method."): given.pop(name) for name in list(given) if name.startswith("method.")}
    regime = str(given.pop("regime", None) or _usual_regime(given))
    spec = _source(given).spec
    of_dataset = {} if spec is None else spec.defaults.get(regime, {})
    settings = make_settings(regime, {**of_dataset, **given})
    if method is not None and own:
        raise UserError(f"method.{next(iter(own))}: set it in the method that is given, {spell_method(method)}.")
    method = method or make_method(settings.method, settings.regime, own)
    method.check_regime(settings.regime)
    return with_values(settings, {"method": spell_method(method)}), method


def _usual_regime(given: Mapping[str, Any]) -> str:
    """As the dataset's table says; random weights for Wide ResNets and arrays; else frozen without a GPU."""
    backbone = str(given.get("network.backbone") or "")
    if backbone.startswith("wrn") or given.get("network.weights") == "none":
        return "scratch"
    source = _source(given)
    if not backbone and (source.kind == "arrays" or (source.spec is not None and source.spec.regime == "scratch")):
        return "scratch"
    return "finetune" if torch.cuda.is_available() and backbone != "features" else "frozen"


def _source(given: Mapping[str, Any]) -> Source:
    """Return the source that dotted names describe."""
    return Source.from_settings(given.get("data.path"), root=given.get("data.root"), labels=given.get("data.labels"))


def source_of(settings: Settings) -> Source:
    """Return the source that settings describe."""
    return Source.from_settings(settings.data.path, root=settings.data.root, labels=settings.data.labels)


def _unchanged(saved: dict[str, Any], given: Mapping[str, Any], folder: Path, method: Method | None) -> dict[str, Any]:
    """The saved settings, once it is sure that those given now do not contradict them."""
    saved = {**saved, "train.devices": None}  # a run goes on with as many devices as there are now
    asked, _ = settle({**saved, **given}, method)
    started = make_settings(saved["regime"], saved)
    before, now = flatten(asdict(started)), flatten(asdict(asked))
    for name in before:
        if before[name] != now[name] and changes_results(name):
            raise UserError(
                f"--resume: {folder} was started with {name}={before[name]}, not {now[name]}. "
                f"Leave it out to go on, or start anew in another --out."
            )
    return flatten(asdict(asked))


def load_data(settings: Settings, arrays: Any, test_arrays: Any, reporter: Reporter) -> Corpus:
    """What the settings say to train on, or these arrays."""
    data = settings.data
    source = source_of(settings) if arrays is None else Source.parse(arrays)
    test = data.test if test_arrays is None and arrays is None else test_arrays
    source.prepare(check=data.check, strict=data.strict, reporter=reporter)
    if data.unlabeled is not None:
        more = Source.parse(data.unlabeled, argument="unlabeled")
        more.prepare(check=data.check, strict=data.strict, reporter=reporter)
    with reporter.progress("reading images", 1, "images") as bar:
        corpus = source.corpus(
            test=test,
            unlabeled=data.unlabeled,
            strict=data.strict,
            check=data.check,
            progress=bar.reach,
            features=settings.network.backbone == "features",
        )
    for remark in corpus.remarks:
        reporter.warn(remark)
    if corpus.skipped:
        some = ", ".join(corpus.skipped[:3]) + (", ..." if len(corpus.skipped) > 3 else "")
        reporter.warn(f"left out {len(corpus.skipped)} images that cannot be read: {some} (--strict stops at them)")
    for odd, usual in possible_typos(corpus) if data.labels else ():
        reporter.warn(f"{data.labels}: a single image has the label {odd!r}. Was {usual!r} meant?")
    return corpus


def _hold_out(settings: Settings, split: Split, corpus: Corpus) -> Split:
    """The split with one of several parts of its labels held out: ``data.fold=1/5`` is the first of five."""
    word = str(settings.data.fold)
    match = re.fullmatch(r"(\d+)/(\d+)", word)
    number, folds = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= folds:
        raise UserError(f"data.fold={word}: expected a part of the labels such as 1/5, the first of five.")
    if settings.data.validation_per_class:
        raise UserError(f"data.fold={word}: the fold is what is held out; leave out data.validation_per_class.")
    return fold_splits(split, corpus, folds)[number - 1]


class _Training:
    """The parts of one run, put together."""

    def __init__(
        self, settings: Settings, method: Method, corpus: Corpus, split: Split, fabric: Fabric, reporter: Reporter
    ):
        if method.views.unlabeled and not len(split.unlabeled):
            raise UserError(
                f"{corpus.name}: there are no unlabeled images, and {method.name} needs some. "
                f"Add some, hide labels with --labels-per-class N, or train with --method supervised."
            )
        for what in (settings.data.path, *corpus.classes):
            if what != what.encode("utf-8", "replace").decode():
                raise UserError(f"{what!r}: this name is not valid UTF-8 and could not be written down. Rename it.")
        self.method, self.corpus, self.split, self.fabric, self.reporter = method, corpus, split, fabric, reporter
        self.settings = _fit_to_images(settings, corpus)
        train = self.settings.train
        check_logger(train.logger)
        self._check_ranks()
        self.evaluated_on, self.test, self.test_labels = self._held_out()
        with fabric.rank_zero_first(local=True):  # one rank fills the cache of features, the others read it
            self.inputs = make_inputs(self.settings, corpus, self.fabric.device, reporter)
            self.card = self.inputs.card
            if self.card.frozen and self.test is not None:
                self.evaluated_batches()
        self.net = Network(self.inputs.classifier, self._task(), bn_apart=settings.network.bn_apart)
        method.setup(self.net)
        if train.channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        if train.strategy == "fsdp" and fabric.world_size > 1:
            add_average(self.net, method, self.settings.optim)
            shard_backbones(self.net, fabric.device)
        self.stream = Stream(
            self.inputs.views(split.labeled),
            split.labels,
            self.inputs.views(split.unlabeled),
            method.views,
            batch=train.batch,
            unlabeled_batch=train.unlabeled_batch,
            seed=self.settings.seed,
            rank=self.fabric.global_rank,
            ranks=self.fabric.world_size,
        )

    def _check_ranks(self) -> None:
        """Whether the ranks can share a batch, and train the same thing."""
        settings, ranks = self.settings, self.fabric.world_size
        for name in ("batch", "unlabeled_batch"):
            n = getattr(settings.train, name)
            if n % ranks:
                raise UserError(
                    f"train.{name}={n}: cannot be shared equally by {ranks} devices, so that every sample counts the "
                    f"same. Take {max(1, n // ranks) * ranks} or {(n // ranks + 1) * ranks}."
                )
        if settings.train.strategy == "fsdp" and settings.optim.clip and ranks > 1:
            raise UserError(f"optim.clip={settings.optim.clip}: not with train.strategy=fsdp. Take ddp, or 0.")
        mine = {**flatten(asdict(settings)), "data": self.split.hash}
        for name, value in from_first(mine).items():
            # settings of train that change no result still decide when ranks wait for each other
            if value != mine[name] and (changes_results(name) or name.startswith("train.")):
                raise UserError(
                    f"rank {self.fabric.global_rank} has {name}={mine[name]} and rank 0 has {value}: start all ranks "
                    f"of a run with the same words and the same data."
                )

    def _task(self) -> Task:
        side = self.card.preprocessing.size
        dim = int(getattr(self.inputs.classifier.psi.backbone, "dim"))  # noqa: B009 -- nn.Module attributes are untyped
        shape = (dim,) if self.card.frozen else (self.card.channels, side, side)
        return Task(len(self.corpus.classes), len(self.split.unlabeled), self.settings.train.steps, shape)

    def _hidden_truth(self) -> torch.Tensor:
        """The true classes of the unlabeled set where known; labels the method trains on are no test of it."""
        truth = self.corpus.truth.copy()
        truth[self.split.labeled] = -1
        return torch.from_numpy(truth[self.split.unlabeled])

    def _held_out(self) -> tuple[str | None, Images | None, np.ndarray]:
        corpus, split, asked = self.corpus, self.split, self.settings.data.evaluate_on
        if corpus.test is not None and corpus.test_labels is not None and asked != "validation":
            return "test", corpus.test, corpus.test_labels
        if len(split.validation) and asked != "test":
            return "validation", corpus.images.subset(split.validation), split.validation_labels
        if asked is not None:
            missing = "a test set (--test DIR)" if asked == "test" else "held-out labels (data.validation_per_class=N)"
            raise UserError(f"data.evaluate_on={asked}: there is nothing to evaluate on, it needs {missing}.")
        return None, None, np.empty(0, np.int64)

    def evaluated_batches(self, rows: slice = slice(None)) -> Iterable[torch.Tensor]:
        """The evaluated images, or some rows of them. Held-out ones are in the pool, whose features are there."""
        assert self.test is not None
        batch = self.settings.train.eval_batch
        if self.card.frozen and self.evaluated_on == "validation":
            return self.inputs.clean_pool(self.split.validation[rows], batch)
        return self.inputs.clean(self.test, batch, rows)

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        if self.test is None:
            return {**summarise(np.zeros((1, 1))), "predicted": None, **calibration(np.zeros((1, 3)))}
        mine, device = my_share(len(self.test)), self.fabric.device
        with self.fabric.autocast():
            batches, truth = self.evaluated_batches(mine), self.test_labels[mine]
            counts = tally(model, batches, truth, len(self.corpus.classes), device)
        confusion, bins = (all_sum(torch.from_numpy(count).to(device)).cpu().numpy() for count in counts)
        return {**summarise(confusion), "predicted": confusion.sum(axis=0).tolist(), **calibration(bins)}

    def run(self, folder: Path | None, resume: bool, watch: Callable[[dict[str, Any]], None] | None = None) -> Run:
        settings = self.settings
        name = spell_method(self.method, settings.regime)
        device = self.fabric.device
        if settings.train.compile:
            compile_networks(self.net, self.reporter.warn)
        loop = Loop(
            fabric=self.fabric,
            settings=settings,
            method=self.method,
            net=self.net,
            optimizers=make_optimizers(self.net, settings.optim, self.method),
            observers=make_observers(self._hidden_truth(), len(self.corpus.classes), device),
            evaluate=self.evaluate,
            pool=self.stream.pool,
        )
        loop.prepare()
        if resume and folder is not None and (state := load_checkpoint(folder / CHECKPOINTS)) is not None:
            try:
                loop.load_state_dict(state)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise not_a_checkpoint(folder / CHECKPOINTS, error) from None
        if loop.step < loop.steps:
            self.stream[loop.step]  # whatever is wrong with the data is better said before there is a run folder
        workers = self._workers()
        if from_first(loop.step) != loop.step:
            raise UserError(
                f"--resume: rank {self.fabric.global_rank} found another checkpoint in {folder} than rank 0."
            )
        first = self.fabric.is_global_zero  # which alone writes
        folder = from_first(folder or free_folder(f"{self.corpus.name}-{name}-seed{settings.seed}"))
        with alone(folder, resume) if first else nullcontext():
            self._take_all_steps(loop, folder, name, workers, watch)
        return Run(folder, self.reporter)

    def _take_all_steps(
        self, loop: Loop, folder: Path, name: str, workers: int, watch: Callable[[dict[str, Any]], None] | None
    ) -> None:
        """Train to the end and write down what comes of it."""
        settings, device, first = self.settings, self.fabric.device, self.fabric.is_global_zero
        with (
            _stops_between_steps(loop),
            self.reporter.progress("training", loop.steps, "steps", start=loop.step) as bar,
        ):
            if first:
                self._open(folder, loop)
            self.reporter.say(
                f"{name} on {self.corpus.name}: {len(self.corpus.classes)} classes, "
                f"{len(self.split.labeled)} labeled and {len(self.split.unlabeled)} unlabeled images, "
                f"{settings.regime} regime, {settings.network.backbone} at {self.card.preprocessing.size} px, "
                f"seed {settings.seed}" + (f"; from step {loop.step}" if loop.step else "")
            )
            if remark := self.method.remarks.get(settings.regime):
                self.reporter.say(f"{self.method.name}: {remark}")

            logger = open_logger(
                settings.train.logger if first else "none", folder, self.corpus.classes, loop.step, asdict(settings)
            )
            present = np.bincount(self.test_labels, minlength=len(self.corpus.classes)) > 0

            def on_row(row: dict[str, Any]) -> None:
                row["alarms"] = [self.corpus.classes[k] for k in new_alarms(loop.rows, present.tolist())]
                if first:
                    append_text(folder / METRICS, json.dumps(as_json(row), allow_nan=False) + "\n")
                logger.log(row)
                self.reporter.say(_in_words(row, loop.steps))
                if row["alarms"]:
                    self.reporter.warn(
                        alarm(row["alarms"], self.method, f"step {row['step']}", "not predicted any more")
                    )
                bar.note(f"loss {row['loss']:.3f}")
                if watch is not None:
                    watch(row)

            def on_checkpoint(state: dict[str, Any]) -> None:
                if first:
                    save_checkpoint(folder / CHECKPOINTS, state)

            if watch is not None:
                for row in loop.rows:
                    watch(row)
            estimate = Estimate(loop.steps, device, self.reporter.say)

            def on_progress(step: int) -> None:
                bar.reach(step)
                estimate(step)

            loop.on_row = on_row
            loop.on_progress = on_progress
            loop.on_checkpoint = on_checkpoint
            loop.run(batches(self.stream, loop.step, loop.steps, workers=workers, pin=device.type == "cuda"))
        if loop.step < loop.steps:
            self.reporter.say(f"stopped at step {loop.step}; go on with --resume --out {folder}")
            raise KeyboardInterrupt
        logger.close()
        outputs = self._outputs(folder, loop)
        make_whole(loop.predictor)
        if first:
            self._close(folder, loop, name, outputs)
        from_first(None)  # until everything is written

    def _close(self, folder: Path, loop: Loop, name: str, outputs: dict[str, Any]) -> None:
        """Write the model and the results."""
        settings = self.settings
        results = self._results(loop, name) | outputs
        about = {"method": name, "regime": settings.regime}
        card = self.card
        if not isinstance(loop.predictor, Classifier) or isinstance(loop.predictor.h, Committee):
            card = replace(card, predictor=spell_method(self.method))
        keep = settings.network.save_backbone
        save_model(folder / MODEL, self.inputs.whole(loop.predictor), card, about, save_backbone=keep)
        write_json(folder / RESULTS, as_json(results))
        self.reporter.say(f"run folder: {folder}")

    def _workers(self) -> int:
        if self.settings.data.workers is not None:
            return self.settings.data.workers
        of_files = self.stream.unlabeled if self.method.views.unlabeled else self.stream.labeled
        from_disk = isinstance(of_files, ImageViews) and of_files.pixels is None
        return min(4, torch.get_num_threads()) if from_disk else 0

    def _open(self, folder: Path, loop: Loop) -> None:
        """Write what is known before the first step; metrics are those of the checkpoint, whatever a kill left."""
        write_text(folder / CONFIG, dump_settings(self.settings))
        save_split(self.split, self.corpus, folder / SPLIT)
        lines = [json.dumps(as_json(row), allow_nan=False) + "\n" for row in loop.rows]
        write_text(folder / METRICS, "".join(lines))
        self.reporter.log = folder / LOG

    def _outputs(self, folder: Path, loop: Loop) -> dict[str, Any]:
        """Write what the model says of each picture (on rank 0), and give back what that adds up to."""
        classes, batch, device = self.corpus.classes, self.settings.train.eval_batch, self.fabric.device
        model, inputs = loop.predictor, self.inputs
        with self.fabric.autocast():
            pool, of_pool = pool_outputs(model, self.net, inputs, self.corpus, self.split, batch, device)
            held_out: dict[str, Any] = {}
            of_held_out: dict[str, Any] = {"confusion": None}
            if self.test is not None:
                said = answers(model, self.evaluated_batches(), device)
                held_out, of_held_out = evaluated_outputs(said, self.test, self.test_labels, len(classes))
        if self.fabric.is_global_zero:
            save_outputs(folder / OUTPUTS, pool | held_out)
        figures = of_pool | of_held_out
        dead = [classes[k] for k in never_predicted(figures)]
        if dead:
            self.reporter.warn(alarm(dead, self.method, "at the end", "never predicted"))
        prior = np.bincount(self.split.labels, minlength=len(classes)).tolist()
        return {**figures, "alarms": dead, "labeled_prior": prior, "cross_validated": None}

    def _results(self, loop: Loop, name: str) -> dict[str, Any]:
        settings, last = self.settings, loop.rows[-1]
        measures = ("accuracy", "mean_per_class", "per_class", "worst10", "worst20", "worst20_percent",
                    "imbalance_ratio", "pseudo_label_quantity", "pseudo_label_quality", "ece",
                    "calibration")  # fmt: skip
        return {
            "method": name,
            "dataset": self.corpus.name,
            "seed": settings.seed,
            "steps": loop.step,
            "seconds": round(loop.seconds, 3),
            "steps_per_second": round(loop.step / loop.seconds, 3),
            **{measure: last.get(measure) for measure in measures},
            "evaluated_on": self.evaluated_on,
            "metric": self.corpus.metric,
            "regime": settings.regime,
            "backbone": settings.network.backbone,
            "size": self.card.preprocessing.size,
            "labels_per_class": settings.data.labels_per_class,
            "labeled": len(self.split.labeled),
            "unlabeled": len(self.split.unlabeled),
            "split_hash": self.split.hash,
            "classes": list(self.corpus.classes),
            "selftrain": __version__,
            "torch": torch.__version__,
            "settings_hash": settings_hash(settings),
            "environment": {**environment(), "device": device_name(self.fabric.device.type)},
        }


def _fit_to_images(settings: Settings, corpus: Corpus) -> Settings:
    """Random weights have no size of their own: take that of the pictures, and a small network for small ones."""
    if settings.regime != "scratch":
        return settings
    side = settings.data.size or min(min(corpus.images.load(0).size), 96)
    values: dict[str, Any] = {"data.size": side}
    if settings.network.backbone == "wrn":
        values["network.backbone"] = "wrn-tiny" if side <= 16 else "wrn-28-2"
    return with_values(settings, values)


def _in_words(row: dict[str, Any], steps: int) -> str:
    words = [f"step {row['step']}/{steps}", f"loss {row['loss']:.3f}"]
    if row["accuracy"] is not None:
        words += [f"accuracy {100 * row['accuracy']:.1f}", f"worst fifth {100 * row['worst20_percent']:.1f}"]
    if row.get("pseudo_label_quantity") is not None:
        words.append(f"pseudo labels kept {100 * row['pseudo_label_quantity']:.0f}%")
    if row.get("pseudo_label_quality") is not None:
        words.append(f"of them right {100 * row['pseudo_label_quality']:.0f}%")
    return "  ".join(words)


@contextmanager
def _stops_between_steps(loop: Loop) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; a second Ctrl-C ends it at once.

    Several ranks may get a signal twice, from the terminal and from what started them, and need a while to agree: there
    a second one counts if it comes three seconds later.
    """
    asked = 0.0
    patience = 3.0 if loop.fabric.world_size > 1 else 0.0
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if loop.stopping and time.monotonic() - asked >= patience:
            raise KeyboardInterrupt
        if not loop.stopping:
            loop.stopping, asked = True, time.monotonic()

    saved = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)
