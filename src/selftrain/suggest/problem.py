"""What suggestions are made for: a folder of photos, features in a file, or a run, as a pool with labels and answers.

Knows nothing of how images are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.images import FileImages, Images
from selftrain.data.source import Source
from selftrain.data.sources.feature_files import load_features
from selftrain.data.sources.label_file import Row, check_alike, read_answers
from selftrain.data.sources.photos import photo_names
from selftrain.engine.evaluate import probabilities
from selftrain.errors import UserError
from selftrain.runs.extractor import Extractor, Features
from selftrain.runs.known_backbone import clean_features
from selftrain.runs.layout import RunLayout
from selftrain.runs.network_inputs import make_extractor
from selftrain.runs.predict import Predictor, keep_readable
from selftrain.runs.process import restored_afterwards
from selftrain.runs.run import Run
from selftrain.suggest.choose import LEFT_OUT, UNLABELED
from selftrain.suggest.quick import Answers

Array = NDArray[Any]
READ_AT_ONCE = 4096
WORST_HEAD = 0.5
"""how much a disagreement of the worst-case head counts beside one of the pseudo head: it is trained to disagree"""


@dataclass(frozen=True, eq=False)
class SuggestionProblem:
    """A pool with what is known of it."""

    images: Images
    features: Array
    """(n, d)"""
    labels: Array
    """(n,) positions in ``classes``, -1 without a label, -2 for images that are not to be suggested"""
    classes: tuple[str, ...] = ()
    answers: Answers | None = None
    """of the run's model"""


def extract(
    images: Images, given: Mapping[str, Any], reporter: Reporter, *, strict: bool = False
) -> tuple[Images, Array]:
    """Return the images that can be read, and their clean features by the backbone that the settings name."""
    settings = make_settings("frozen", given)
    found, skipped = keep_readable(images, strict, reporter)
    if skipped:
        reporter.warn(f"left out {len(skipped)} of {len(images)} images that cannot be read; the first is {skipped[0]}")
    if not len(found):
        raise UserError(f"none of the {len(images)} images can be read.")
    with restored_afterwards(threads=settings.train.threads):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return found, _together(clean_features(settings, found, device, reporter))


def _clean(extractor: Extractor, images: Images) -> Array:
    return _together(extractor.features(images, ("clean",)))


def _together(features: Features) -> Array:
    """Return clean features (n, dim) in memory, as they are stored."""
    found = np.empty((len(features), features.shape[2]), features.dtype)
    for start in range(0, len(features), READ_AT_ONCE):
        found[start : start + READ_AT_ONCE] = features[start : start + READ_AT_ONCE][:, 0]
    return found


def problem_of_photos(
    folder: Path, labels: Path | None, given: Mapping[str, Any], reporter: Reporter, *, strict: bool = False
) -> SuggestionProblem:
    """Return the pool of a folder of images, with the labels of a CSV file if there is one."""
    rows = [] if labels is None else read_answers(labels)
    check_alike([row for row in rows if not row.answer], labels or folder)
    names, remark = photo_names(folder)
    if remark:
        reporter.say(remark)
    images, features = extract(FileImages(folder, names), given, reporter, strict=strict)
    known, classes = labels_of(images.names, rows)
    return SuggestionProblem(images, features, known, classes)


def labels_of(names: Sequence[str], rows: Sequence[Row]) -> tuple[Array, tuple[str, ...]]:
    """Return the label of each image and the classes; rows of other images are ignored."""
    classes = tuple(sorted({row.label for row in rows if not row.answer}))
    position, number = {name: i for i, name in enumerate(names)}, {name: k for k, name in enumerate(classes)}
    labels = np.full(len(names), UNLABELED)
    for row in rows:
        i = position.get(row.path)
        if i is not None:
            labels[i] = LEFT_OUT if row.answer else number[row.label]
    return labels, classes


def problem_of_features(file: Path, labels: Path | None) -> SuggestionProblem:
    """Return the pool of a file of features."""
    from selftrain.data.features.feature_file import FeatureFile

    rows = FeatureFile.read(file).rows if labels is None else load_features(file, labels, None).images
    assert isinstance(rows, FeatureRows)
    known, classes = labels_of(rows.names, [] if labels is None else read_answers(labels))
    values = np.concatenate([batch.numpy() for batch in feature_batches(rows.values, 4096)])
    return SuggestionProblem(rows, values, known, classes)


def problem_of_run(folder: Path, reporter: Reporter) -> SuggestionProblem:
    """Return the pool that a run was trained on, its labels, and what its model says about every image."""
    run, layout = Run(folder, reporter), RunLayout(folder)
    if not layout.finished:
        raise UserError(f"`data` {folder}: the run is not finished, so its model cannot suggest images yet.")
    data = run.config.get("data", {})
    source = Source.from_settings(data.get("path"), root=data.get("root"), labels=data.get("labels"))
    corpus = source.corpus(unlabeled=data.get("unlabeled"), test=data.get("test"), check="none")
    predictor = run.predictor
    with restored_afterwards(threads=0):
        features = _features_of_run(predictor, corpus.images, reporter)
        answers = _answers(predictor, corpus.images, features, layout)
    split: dict[str, Any] = {**layout.read_split()}
    position = {name: i for i, name in enumerate(corpus.images.names)}
    labels = np.full(len(corpus.images), UNLABELED)
    labels[[position[name] for name in split.get("skipped", ()) if name in position]] = LEFT_OUT
    for entry in (*split.get("labeled", []), *split.get("validation", [])):
        if entry["path"] in position:
            labels[position[entry["path"]]] = corpus.classes.index(entry["label"])
    return SuggestionProblem(corpus.images, features, labels, corpus.classes, answers)


def _features_of_run(predictor: Predictor, images: Images, reporter: Reporter) -> Array:
    """Return the features by which images are compared: the run's own, or those of the default backbone."""
    if isinstance(images, FeatureRows):
        return np.concatenate([batch.numpy() for batch in feature_batches(images.values, 4096)])
    if predictor.extractor is not None:
        return _clean(predictor.extractor, images)
    extractor = make_extractor(make_settings("frozen", {}), None, predictor.device, reporter)
    return _clean(extractor, images)


def _answers(predictor: Predictor, images: Images, features: Array, layout: RunLayout) -> Answers:
    own = isinstance(images, FeatureRows) or predictor.extractor is not None
    novelty = None
    if own:
        parts = [torch.from_numpy(features[i : i + 1024]).float() for i in range(0, len(features), 1024)]
        p = np.concatenate([q.cpu().numpy() for q in probabilities(predictor.model, parts, predictor.device)])
        if predictor.novelty is not None:
            with torch.inference_mode():
                novelty = np.concatenate([predictor.novelty(part.to(predictor.device)).cpu().numpy() for part in parts])
    else:
        p = predictor.predict(images).probabilities
    return Answers(p, _disagreement(images.names, layout), novelty)


def _disagreement(names: Sequence[str], layout: RunLayout) -> Array:
    """Return how much the heads of the run disagree on each image, 0 to 1."""
    outputs = layout.read_outputs()
    found = np.zeros(len(names))
    position = {name: i for i, name in enumerate(names)}
    if "pool_names" not in outputs:
        return found
    rows = np.array([position.get(str(name), -1) for name in outputs["pool_names"]])
    for head, weight in (("pool_worst", WORST_HEAD), ("pool_pseudo", 1.0)):
        if head in outputs:
            differs = weight * (outputs[head] != outputs["pool_predicted"])
            found[rows[rows >= 0]] = np.maximum(found[rows[rows >= 0]], differs[rows >= 0])
    return found
