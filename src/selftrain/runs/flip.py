"""Settle whether images are mirrored at random where neither the user nor the dataset says it.

Knows nothing of how the evidence is judged (``mirror``), of methods or of the training loop.
"""

from __future__ import annotations

import numpy as np
from lightning_fabric import Fabric

from selftrain.config.resolve import with_values
from selftrain.config.settings import Settings
from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows
from selftrain.nn.collectives import from_first
from selftrain.runs.extractor import Extractor
from selftrain.runs.mirror import Verdict, judge_features, judge_names, sample_labeled
from selftrain.runs.network_inputs import make_extractor
from selftrain.runs.problem import Problem, source_of


def settle_flip(
    settings: Settings, problem: Problem, fabric: Fabric, reporter: Reporter, *, resumed: bool
) -> tuple[Settings, Extractor | None]:
    """Return settings with a value for ``data.flip``, and the backbone if it was needed to find it.

    A run that is resumed keeps its value. One from before there was a decision has none, and mirrors as it did.
    """
    corpus = problem.corpus
    as_the_dataset_says = source_of(settings).kind == "dataset" or not corpus.flip
    if settings.data.flip is not None or resumed or as_the_dataset_says or isinstance(corpus.images, FeatureRows):
        return settings, None
    extractor, verdict = None, judge_names(corpus.classes)
    if verdict is None and settings.regime == "frozen":
        with fabric.rank_zero_first(local=True):  # one rank extracts features, the others read them
            extractor = make_extractor(settings, corpus, fabric.device, reporter)
            verdict = _judge_labeled(settings, problem, extractor)
    untested = Verdict(True, f"not tested in the {settings.regime} regime; `data.flip=false` turns it off")
    verdict = from_first(verdict or untested)
    remedy = "" if verdict.flip else "; set `data.flip=true` to mirror all the same"
    reporter.say(f"mirroring: {'on' if verdict.flip else 'off'} ({verdict.reason}{remedy})")
    if verdict.doubtful:
        reporter.warn("mirroring may change the class of your images; if left and right matter, use `data.flip=false`")
    return with_values(settings, {"data.flip": verdict.flip}), extractor


def _judge_labeled(settings: Settings, problem: Problem, extractor: Extractor) -> Verdict:
    split = problem.split
    rows = sample_labeled(split.labels, settings.data.split_seed)
    pair = np.empty((0, 2, extractor.dim), np.float16)
    if len(rows):
        pair = np.asarray(extractor.features(problem.corpus.images.subset(split.labeled[rows]), ("clean", "mirrored")))
    return judge_features(pair[:, 0], pair[:, 1], split.labels[rows], problem.corpus.classes)
