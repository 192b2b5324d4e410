"""One run: from a problem and settings to a trained network, and a finished run folder if one is wanted.

Knows nothing of equations (methods) or of how a problem was read; it joins data, network, method and engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from selftrain.batch import Labeled, Unlabeled
from selftrain.config.options import flatten
from selftrain.config.resolve import with_values
from selftrain.config.settings import Settings, changes_results
from selftrain.console import Reporter
from selftrain.data.corpus import Corpus
from selftrain.data.split_file import save_split
from selftrain.data.views.image_views import ImageViews
from selftrain.data.views.stream import Stream, batches
from selftrain.engine.checkpoint import load_checkpoint, not_a_checkpoint, save_checkpoint
from selftrain.engine.estimate import Estimate
from selftrain.engine.loggers import RowLogger, check_logger, open_logger
from selftrain.engine.loop import Loop, add_average
from selftrain.engine.observers import make_observers
from selftrain.engine.optim import make_optimizers
from selftrain.engine.runtime import compile_networks
from selftrain.engine.sharding import shard_backbones
from selftrain.errors import UserError
from selftrain.methods import Method
from selftrain.nn.collectives import from_first
from selftrain.nn.network import Network, Task
from selftrain.runs.dead_classes import alarm, new_alarms
from selftrain.runs.finish import Outcome, conclude, finish
from selftrain.runs.flip import settle_flip
from selftrain.runs.folder import free_folder, locked
from selftrain.runs.layout import REFERENCE, RunLayout
from selftrain.runs.network_inputs import Inputs, prepare_inputs
from selftrain.runs.problem import Problem, evaluated_images
from selftrain.runs.process import stopped_by_signals
from selftrain.runs.run import Run
from selftrain.runs.survey import PILE, Pile, add_parts, survey
from selftrain.runs.training import Training
from selftrain.runs.warm_start import load_weights
from selftrain.text import listed

Watch = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Begun:
    """A run that is ready for its next step."""

    training: Training
    loop: Loop
    stream: Stream | None
    """None if the method is fitted at once"""


def fit(
    settings: Settings,
    method: Method,
    problem: Problem,
    fabric: Fabric,
    reporter: Reporter,
    *,
    folder: Path | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> Run:
    """Train ``method`` on ``problem`` and write the run folder; a new folder under ``runs`` if none is given."""
    saved = RunLayout(folder) if resume and folder is not None else None
    begun = begin(settings, method, problem, fabric, reporter, saved=saved)
    name = f"{problem.corpus.name}-{begun.training.name}-seed{settings.seed}"
    layout = RunLayout(from_first(folder or free_folder(name)))
    complete(begun, reporter, layout, resume=resume, watch=watch)
    return Run(layout.folder, reporter)


def begin(
    settings: Settings,
    method: Method,
    problem: Problem,
    fabric: Fabric,
    reporter: Reporter,
    *,
    saved: RunLayout | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> Begun:
    """Put a run together, look at its pool, and make sure that its first batch can be read.

    ``saved`` is the run that is resumed. ``weights`` are those of an earlier network, to start from.
    """
    settings = _fit_to_images(settings, problem.corpus)
    _check(settings, method, problem, fabric)
    evaluated = evaluated_images(settings, problem.corpus, problem.split)
    settings, extractor = settle_flip(settings, problem, fabric, reporter, resumed=saved is not None)
    with fabric.rank_zero_first(local=True):  # one rank extracts features, the others read them
        inputs = prepare_inputs(settings, problem.corpus, fabric.device, reporter, extractor)
        if evaluated.on == "test" and evaluated.images is not None:
            inputs.extract(evaluated.images)
    net = _network(settings, method, problem, inputs, fabric)
    if weights is not None:
        load_weights(net, weights)  # after the labels-only reference was set apart, which must not know them
    training = Training(settings, method, problem, evaluated, inputs, net, fabric)
    if settings.train.compile:
        compile_networks(net, reporter.warn)
    loop = _loop(training)
    if saved is not None:
        _load_state(loop, saved)
    if PILE in net.parts and loop.step == 0:
        survey(training, reporter)
    stream = None if method.fitted else training.stream(weights=_weights(net))
    loop.pool = loop.pool if stream is None else stream.pool
    if stream is not None and loop.step < loop.steps:
        _check_readable(stream, loop.step)
    if from_first(loop.step) != loop.step:
        where = None if saved is None else saved.folder
        raise UserError(f"`resume=True`: rank {fabric.global_rank} found another checkpoint in {where} than rank 0.")
    return Begun(training, loop, stream)


def complete(
    begun: Begun,
    reporter: Reporter,
    layout: RunLayout | None,
    *,
    resume: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Take the steps that are left and choose the final model; without a layout, nothing is written."""
    training, loop = begun.training, begun.loop
    first = training.fabric.is_global_zero
    with locked(layout, resume) if layout is not None and first else nullcontext():
        _take_steps(begun, layout, reporter, watch)
        outcome = conclude(training, loop)
        if layout is not None:
            finish(training, loop, outcome, layout, reporter)
    return outcome


def _fit_to_images(settings: Settings, corpus: Corpus) -> Settings:
    """Return settings with the size of the images, if weights are random, and a small network for small images."""
    if settings.regime != "scratch":
        return settings
    side = settings.data.size or min(min(corpus.images.load(0).size), 96)
    values: dict[str, Any] = {"data.size": side}
    if settings.network.backbone == "wrn":
        values["network.backbone"] = "wrn-tiny" if side <= 16 else "wrn-28-2"
    return with_values(settings, values)


def _check(settings: Settings, method: Method, problem: Problem, fabric: Fabric) -> None:
    """Raise a UserError for what would fail later, after minutes of work."""
    corpus, split = problem.corpus, problem.split
    if method.views.unlabeled and not len(split.unlabeled):
        raise UserError(
            f"{corpus.name}: there are no unlabeled images, and {method.name} needs some. Add some, hide labels with "
            f'`labels_per_class`, or train with `method="supervised"`.'
        )
    for name in (settings.data.path, *corpus.classes):
        if name != name.encode("utf-8", "replace").decode():
            raise UserError(f"{name!r}: this name is not valid UTF-8 and cannot be written to files. Rename it.")
    check_logger(settings.train.logger)
    _check_ranks(settings, problem, fabric)


def _check_ranks(settings: Settings, problem: Problem, fabric: Fabric) -> None:
    """Raise a UserError if the ranks cannot share a batch, or do not train the same thing."""
    ranks = fabric.world_size
    for name in ("batch", "unlabeled_batch"):
        n = getattr(settings.train, name)
        if n % ranks:
            raise UserError(
                f"train.{name}={n}: {ranks} devices cannot share it equally, so that every sample counts the same. "
                f"Use {max(1, n // ranks) * ranks} or {(n // ranks + 1) * ranks}."
            )
    if settings.train.strategy == "fsdp" and settings.optim.clip and ranks > 1:
        raise UserError(
            f"optim.clip={settings.optim.clip}: not supported with train.strategy=fsdp. Use ddp, or set it to 0."
        )
    mine = {**flatten(asdict(settings)), "data": problem.split.hash}
    for name, value in from_first(mine).items():
        # settings of train that change no result still decide when ranks wait for each other
        if value != mine[name] and (changes_results(name) or name.startswith("train.")):
            raise UserError(
                f"rank {fabric.global_rank} has {name}={mine[name]} and rank 0 has {value}. Start all ranks of a run "
                f"with the same arguments and the same data."
            )


def _network(settings: Settings, method: Method, problem: Problem, inputs: Inputs, fabric: Fabric) -> Network:
    card = inputs.card
    dim = int(getattr(inputs.classifier.psi.backbone, "dim"))  # noqa: B009 -- nn.Module attributes are untyped
    shape = (dim,) if card.frozen else (card.channels, card.preprocessing.size, card.preprocessing.size)
    task = Task(len(problem.corpus.classes), len(problem.split.unlabeled), settings.train.steps, shape)
    net = Network(inputs.classifier, task, bn_apart=settings.network.bn_apart)
    method.setup(net)
    add_parts(net, settings, method, problem.split.labels, problem.corpus.classes)
    if settings.train.channels_last:
        net = net.to(memory_format=torch.channels_last)
    if settings.train.strategy == "fsdp" and fabric.world_size > 1:
        add_average(net, method, settings.optim)
        shard_backbones(net, fabric.device)
    return net


def _weights(net: Network) -> np.ndarray | None:
    """Return the weights with which unlabeled images are drawn; None if all are drawn alike."""
    if PILE not in net.parts:
        return None
    weight = net.part(PILE, Pile).weight.double().cpu().numpy()
    return None if (weight == 1).all() else weight


def _loop(training: Training) -> Loop:
    loop = Loop(
        fabric=training.fabric,
        settings=training.settings,
        method=training.method,
        net=training.net,
        optimizers=make_optimizers(training.net, training.settings.optim, training.method),
        observers=make_observers(training.hidden_truth(), len(training.problem.corpus.classes), training.fabric.device),
        evaluate=training.evaluate,
    )
    loop.prepare()
    return loop


def _batches(training: Training, loop: Loop, stream: Stream | None) -> Iterator[tuple[Labeled, Unlabeled]]:
    """Return the batches of the steps that are left; a method that is fitted has a single one, with all images."""
    if stream is None:
        return iter([training.all_images()] if loop.step < loop.steps else [])
    pin = training.fabric.device.type == "cuda"
    return batches(stream, loop.step, loop.steps, workers=_workers(training, stream), pin=pin)


def _workers(training: Training, stream: Stream) -> int:
    """Return how many processes prepare batches: none for images in memory."""
    if training.settings.data.workers is not None:
        return training.settings.data.workers
    images = stream.unlabeled if training.method.views.unlabeled else stream.labeled
    from_disk = isinstance(images, ImageViews) and images.pixels is None
    return min(4, torch.get_num_threads()) if from_disk else 0


def _to_resume(layout: RunLayout) -> str:
    """Return what finishes a run that was stopped. A fold is resumed by the run that it belongs to."""
    if layout.folder.parent.name == REFERENCE and layout.origin is not layout:
        return "the same command resumes it"
    return f"to resume it: `selftrain.train` `resume=True` `out={str(layout.origin.folder)!r}`"


def _take_steps(begun: Begun, layout: RunLayout | None, reporter: Reporter, watch: Watch | None) -> None:
    """Train from the current step to the last; a run that is stopped raises KeyboardInterrupt."""
    training, loop = begun.training, begun.loop
    fabric, first, device = training.fabric, training.fabric.is_global_zero, training.fabric.device
    with (
        stopped_by_signals(loop, fabric.world_size),
        reporter.progress("training", loop.steps, "steps", start=loop.step) as bar,
    ):
        if first and layout is not None:
            _open(training, loop, layout)
            reporter.log = layout.log
        _announce(training, loop, reporter)
        logger = _logger(training, loop, layout)
        estimate = Estimate(loop.steps, device, reporter.say)

        def on_row(row: dict[str, Any]) -> None:
            row["alarms"] = _alarms(training, loop)
            if first and layout is not None:
                layout.append_metrics(row)
            logger.log(row)
            reporter.say(_in_words(row, loop.steps))
            if row["alarms"]:
                reporter.warn(alarm(row["alarms"], training.method, f"step {row['step']}", "no longer predicted"))
            if "loss" in row:
                bar.note(f"loss {row['loss']:.3f}")
            if watch is not None:
                watch(row)

        def on_progress(step: int) -> None:
            bar.reach(step)
            estimate(step)

        if watch is not None:
            for row in loop.rows:
                watch(row)
        loop.on_row, loop.on_progress = on_row, on_progress
        loop.about_step = partial(_about_step, begun, layout)
        if first and layout is not None:
            loop.on_checkpoint = partial(_save_state, layout)
        loop.run(_batches(training, loop, begun.stream))
    if loop.step < loop.steps:
        if layout is not None:
            reporter.say(f"stopped at step {loop.step}; {_to_resume(layout)}")
        raise KeyboardInterrupt
    logger.close()


def _logger(training: Training, loop: Loop, layout: RunLayout | None) -> RowLogger:
    """Return where metrics go in addition to the run folder."""
    settings, classes = training.settings, training.problem.corpus.classes
    if layout is None or not training.fabric.is_global_zero:
        return open_logger("none", Path(), classes, loop.step, {})
    return open_logger(settings.train.logger, layout.folder, classes, loop.step, asdict(settings))


def _open(training: Training, loop: Loop, layout: RunLayout) -> None:
    """Write what is known before the first step; metrics are those of the checkpoint, whatever a kill left."""
    layout.write_settings(training.settings)
    save_split(training.problem.split, training.problem.corpus, layout.split, within=layout.folder)
    layout.write_metrics(loop.rows)


def _announce(training: Training, loop: Loop, reporter: Reporter) -> None:
    settings, corpus, split = training.settings, training.problem.corpus, training.problem.split
    card = training.inputs.card
    seen = f"{settings.network.backbone} at {card.preprocessing.size} px"
    reporter.say(
        f"{training.name} on {corpus.name}: {len(corpus.classes)} classes, "
        f"{len(split.labeled)} labeled and {len(split.unlabeled)} unlabeled {'rows' if card.features else 'images'}, "
        f"{_regime(settings)}, {f'features of {card.features} numbers' if card.features else seen}, "
        f"seed {settings.seed}" + (f"; from step {loop.step}" if loop.step else "")
    )
    if remark := training.method.remarks.get(settings.regime):
        reporter.say(f"{training.method.name}: {remark}")


def _regime(settings: Settings) -> str:
    part = settings.network.tune
    return f"{settings.regime} regime" + ("" if part == "all" else f" (network.tune={part})")


def _alarms(training: Training, loop: Loop) -> list[str]:
    """Return the classes that are no longer predicted since the row before the last."""
    classes = training.problem.corpus.classes
    present = np.bincount(training.evaluated.labels, minlength=len(classes)) > 0
    return [classes[k] for k in new_alarms(loop.rows, present.tolist())]


def _load_state(loop: Loop, layout: RunLayout) -> None:
    state = load_checkpoint(layout.checkpoints)
    if state is None:
        return
    try:
        loop.load_state_dict(state)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise not_a_checkpoint(layout.checkpoints, error) from None


def _about_step(begun: Begun, layout: RunLayout | None, step: int) -> str:
    """Return sentences about a step that went wrong: its images, and the checkpoint from before it."""
    words, split = "", begun.training.problem.split
    if begun.stream is not None:
        names, batch = begun.training.problem.corpus.images.names, begun.stream.rows(step)
        sets = zip(("labeled", "unlabeled"), (split.labeled, split.unlabeled), batch, strict=True)
        seen = [f"{kind}: {listed([names[i] for i in of[rows]])}" for kind, of, rows in sets if len(rows)]
        words = f" Images of that step: {'; '.join(seen)}."
    if layout is not None and (saved := load_checkpoint(layout.checkpoints)) is not None:
        words += f" The checkpoint in {layout.checkpoints} is from before, step {saved['step']}."
    return words


def _save_state(layout: RunLayout, state: dict[str, Any]) -> None:
    save_checkpoint(layout.checkpoints, state)


def _check_readable(stream: Stream, step: int) -> None:
    """Make the first batch, so that whatever is wrong with the data is said before there is a run folder."""
    labeled, _ = stream[step]
    assert len(labeled), "a batch without labeled samples"


def _in_words(row: dict[str, Any], steps: int) -> str:
    words = [f"step {row['step']}/{steps}"]
    if "loss" in row:  # a method that is fitted reports none
        words.append(f"loss {row['loss']:.3f}")
    if row["accuracy"] is not None:
        words += [f"accuracy {100 * row['accuracy']:.1f}", f"worst fifth {100 * row['worst20_percent']:.1f}"]
    if row.get("pseudo_label_quantity") is not None:
        words.append(f"pseudo labels kept {100 * row['pseudo_label_quantity']:.0f}%")
    if row.get("pseudo_label_quality") is not None:
        words.append(f"of them right {100 * row['pseudo_label_quality']:.0f}%")
    return "  ".join(words)
