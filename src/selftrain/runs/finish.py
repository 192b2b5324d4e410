"""The end of a run: predictions of the final model, the model itself, ``results.json``.

Knows nothing of training: it is given the final model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from selftrain.config.resolve import with_values
from selftrain.config.settings import settings_hash
from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows
from selftrain.engine.evaluate import answers
from selftrain.engine.loop import Loop
from selftrain.engine.metrics import as_json
from selftrain.engine.sharding import make_whole
from selftrain.methods import spell_method
from selftrain.methods.confidence import risk_coverage
from selftrain.nn.collectives import from_first
from selftrain.nn.layers import Blend, Classifier, Committee
from selftrain.runs.dead_classes import alarm
from selftrain.runs.environment import device_name, environment
from selftrain.runs.guard import Verdict, judge
from selftrain.runs.image_outputs import evaluated_outputs, never_predicted, pool_counts, pool_outputs, sampled
from selftrain.runs.layout import MEASURES, Arrays, Results, RunLayout
from selftrain.runs.model import ModelCard, save_model
from selftrain.runs.model_readme import write_readme
from selftrain.runs.network_inputs import flips
from selftrain.runs.pile_results import in_words, pile_results
from selftrain.runs.pool_map import pool_map
from selftrain.runs.seen import seen_images
from selftrain.runs.survey import PILE, SPREAD, Pile
from selftrain.runs.thumbnails import run_thumbnails
from selftrain.runs.training import Training
from selftrain.runs.trust import Trust, judge_trust
from selftrain.version import __version__


class Outcome(NamedTuple):
    """The final model of a run, and how it was chosen."""

    model: nn.Module
    verdict: Verdict | None
    """of the guard; None if there was none"""
    trust: Trust | None = None
    """how far its probabilities can be believed; None if that is not known"""

    @property
    def calibrated(self) -> nn.Module:
        """The model with calibrated probabilities."""
        return self.model if self.trust is None else self.trust.applied(self.model)


def conclude(training: Training, loop: Loop) -> Outcome:
    """Return the trained model, or the one that the guard chooses."""
    verdict = judge(training, loop.predictor)
    model = loop.predictor if verdict is None else verdict.model
    return Outcome(model, verdict, judge_trust(training, model, verdict))


def finish(training: Training, loop: Loop, outcome: Outcome, layout: RunLayout, reporter: Reporter) -> None:
    """Write ``outputs.npz``, thumbnails, the model and ``results.json``; rank 0 writes, and the others wait for it."""
    first, (model, verdict, trust) = training.fabric.is_global_zero, outcome
    before = loop.rows[-1] if verdict is None else training.evaluate(model)
    measures = before if trust is None else {**before, **_calibration(training.evaluate(outcome.calibrated))}
    arrays, counts = _outputs(training, outcome)
    pile = pile_results(training, counts["pool_truth"], verdict, loop.rows[-1])
    if verdict is not None:
        reporter.say(in_words(verdict, pile["guard"]["labels_only"]["accuracy"], measures["accuracy"]))
    if first:
        layout.write_outputs(arrays)
        layout.write_thumbnails(run_thumbnails(training, arrays))
        problem = training.problem
        if (seen := seen_images(training.inputs, problem.split, problem.corpus.images.names)) is not None:
            layout.write_seen(seen.arrays())
    dead = [training.problem.corpus.classes[k] for k in never_predicted(counts)]
    if dead:
        reporter.warn(alarm(dead, training.method, "at the end", "never predicted"))
    make_whole(model)
    if first:
        _save_model(training, outcome, layout)
        found = _trusted(trust, before, arrays)
        results = as_json(_results(training, loop, measures) | counts | _labels(training, dead) | pile | found)
        write_readme(layout, results)
        layout.write_results(results)
        reporter.say(f"run folder: {layout.folder}")
    from_first(None)  # wait until everything is written


def _calibration(measures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: measures[name] for name in ("ece", "calibration")}


def _trusted(trust: Trust | None, before: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Return what ``results.json`` holds about confidence, and about accuracy without a test set."""
    curve = None
    if "eval_truth" in arrays:
        curve = risk_coverage(arrays["eval_confidence"], arrays["eval_predicted"] == arrays["eval_truth"])
    calibrated = None
    if trust is not None:
        calibrated = {
            "temperature": list(trust.temperature),
            "doubt": trust.doubt,
            "labels": trust.labels,
            "ece_before": before.get("ece"),
            "calibration_before": before.get("calibration"),
        }
    return {
        "calibrated": calibrated,
        "risk_coverage": curve,
        "estimated": None if trust is None else trust.estimated,
    }


def _outputs(training: Training, outcome: Outcome) -> tuple[Arrays, dict[str, Any]]:
    """Return the predictions of the final model image by image, and their counts for ``results.json``."""
    model, (_, verdict, trust) = outcome.calibrated, outcome
    known = None if verdict is None else verdict.probabilities
    if known is not None and trust is not None:
        known = torch.from_numpy(trust.calibrated(known.double().cpu().numpy()))
    batch, device = training.settings.train.eval_batch, training.fabric.device
    corpus, evaluated = training.problem.corpus, training.evaluated
    with training.fabric.autocast():
        arrays, counts = pool_outputs(
            model, training.net, training.inputs, corpus, training.problem.split, batch, device, known
        )
        if arrays and (pile := screened(training)) is not None:
            weight = pile.weight.cpu().numpy()
            arrays["pool_novelty"] = (1 - weight[sampled(len(weight))]).astype(np.float16)
        counts |= {"confusion": None, **pool_counts(corpus, training.problem.split)}
        if evaluated.images is not None:
            said = answers(model, training.evaluated_batches(), device)
            more, confusion = evaluated_outputs(said, evaluated.images, evaluated.labels, len(corpus.classes))
            arrays, counts = arrays | more, counts | confusion
    return arrays | pool_map(training, arrays), counts


def final_card(training: Training, outcome: Outcome) -> ModelCard:
    """Return the card from which the final model is rebuilt."""
    card, (model, verdict, trust) = training.inputs.card, outcome
    own = model.heads[0] if verdict is not None and isinstance(model, Committee) else model
    if not isinstance(own, Classifier) or isinstance(own.h, Committee):
        card = replace(card, predictor=spell_method(training.method))
    if verdict is not None and verdict.choice == "blend":
        assert isinstance(model, Committee)
        inner = isinstance(model, Blend)
        card = replace(card, neighbours=spell_method(SPREAD), inner_neighbours=inner, reference=len(model.heads) > 2)
    return card if trust is None else trust.noted(card)


def _save_model(training: Training, outcome: Outcome, layout: RunLayout) -> None:
    settings, card = training.settings, final_card(training, outcome)
    about = {"method": training.name, "regime": settings.regime}
    whole, keep = training.inputs.whole(outcome.model), settings.network.save_backbone
    pile = screened(training)
    novelty = None if pile is None else pile.novelty
    save_model(layout.model, whole, card, about, novelty=novelty, save_backbone=keep)


def screened(training: Training) -> Pile | None:
    """Return what the survey found, if it looked for images of no class."""
    asked = training.settings.data.screen and PILE in training.net.parts
    return training.net.part(PILE, Pile) if asked else None


def _labels(training: Training, dead: list[str]) -> dict[str, Any]:
    classes = training.problem.corpus.classes
    prior = np.bincount(training.problem.split.labels, minlength=len(classes)).tolist()
    return {"alarms": dead, "labeled_prior": prior, "cross_validated": None}


def _results(training: Training, loop: Loop, measures: Mapping[str, Any]) -> dict[str, Any]:
    settings, problem = training.settings, training.problem
    last = {**loop.rows[-1], **measures}
    results: Results = {
        "method": training.name,
        "dataset": problem.corpus.name,
        "seed": settings.seed,
        "steps": loop.step,
        "seconds": round(loop.seconds, 3),
        "steps_per_second": round(loop.step / loop.seconds, 3),
        **cast(Results, {measure: last.get(measure) for measure in MEASURES}),
        "evaluated_on": training.evaluated.on,
        "metric": problem.corpus.metric,
        "regime": settings.regime,
        "backbone": settings.network.backbone,
        "size": training.inputs.card.preprocessing.size or None,
        "flip": _flip(training),
        "labels_per_class": settings.data.labels_per_class,
        "labeled": len(problem.split.labeled),
        "unlabeled": len(problem.split.unlabeled),
        "split_hash": problem.split.hash,
        "classes": list(problem.corpus.classes),
        "selftrain": __version__,
        "torch": torch.__version__,
        "settings_hash": _settings_hash(training),
        "environment": {**environment(), "device": device_name(training.fabric.device.type)},
    }
    return dict(results)


def _flip(training: Training) -> bool | None:
    corpus = training.problem.corpus
    return None if isinstance(corpus.images, FeatureRows) else flips(training.settings, corpus)


def _settings_hash(training: Training) -> str:
    """Return the hash of the settings; mirroring as the data's default says is the same as an unset ``data.flip``."""
    settings, default = training.settings, training.problem.corpus.flip
    if settings.data.flip == default:
        settings = with_values(settings, {"data.flip": None})
    return settings_hash(settings)
