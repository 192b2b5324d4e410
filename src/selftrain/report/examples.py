"""Pictures worth looking at: confident mistakes where the truth is known, likely mistakes where it is not.

Knows nothing of pages; pictures are read from where the run found them, if they are still there.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selftrain.data.images import Images
from selftrain.data.source import load_corpus
from selftrain.errors import UserError
from selftrain.report.charts import percent
from selftrain.report.reading import RunData

MOST, OF_A_PAIR, SIDE = 12, 3, 96


@dataclass(frozen=True)
class Example:
    name: str
    predicted: str
    truth: str | None
    runner_up: str | None
    """the second best class, where the truth is not known"""
    why: str
    picture: str | None
    """a data URI; None where the picture can't be read any more"""
    tiny: bool = False
    """of so few pixels that they should be seen"""


@dataclass
class Examples:
    confident: list[Example] = field(default_factory=list)
    likely: list[Example] = field(default_factory=list)
    likely_right: float | None = None
    """the share of the likely mistakes that are mistakes, where the truth is known after all"""
    missing: str = ""
    """why there are no pictures, as a sentence"""


def find_examples(run: RunData) -> Examples:
    found = Examples()
    confident, likely = _confident(run.outputs), _likely(run.outputs)
    if not confident and not likely:
        return found
    tests = pool = None
    try:
        tests, pool = _pictures(run)
    except (UserError, OSError) as error:
        reason = str(error).rstrip(".")
        found.missing = f"The pictures can't be shown, because they can't be found any more ({reason})."
    outputs = run.outputs
    found.confident = _show(run, tests, confident, "eval")
    found.likely = _show(run, pool, likely, "pool")
    truth = outputs.get("pool_truth")
    if likely and truth is not None and all(truth[i] >= 0 for i, _ in likely):
        found.likely_right = float(np.mean([truth[i] != outputs["pool_predicted"][i] for i, _ in likely]))
    if not found.missing and not any(e.picture for e in (*found.confident, *found.likely)):
        found.missing = "The pictures can't be shown: none of their names is at the data's place any more."
    return found


def _confident(outputs: dict[str, Any]) -> list[tuple[int, str]]:
    """Wrong and sure of it; no pair of classes fills the page."""
    if not {"eval_truth", "eval_predicted", "eval_confidence"} <= set(outputs):
        return []
    truth, predicted, confidence = (outputs[f"eval_{name}"] for name in ("truth", "predicted", "confidence"))
    wrong = np.flatnonzero((truth >= 0) & (truth != predicted))
    order = wrong[np.argsort(-confidence[wrong], kind="stable")]
    pairs: Counter[tuple[int, int]] = Counter()
    chosen: list[tuple[int, str]] = []
    for i in order.tolist():
        pair = (int(truth[i]), int(predicted[i]))
        if pairs[pair] < OF_A_PAIR and len(chosen) < MOST:
            pairs[pair] += 1
            chosen.append((i, f"{percent(float(confidence[i]))} sure"))
    return chosen


def _likely(outputs: dict[str, Any]) -> list[tuple[int, str]]:
    """Where the pseudo head disagrees with h, the least sure first; else simply the least sure.

    On cifar10-mini, of the pictures on which these heads differ 69% are mistakes, of all others 22%; the worst-case
    head, which is trained to differ, tells little of a single picture (26% and 22%).
    """
    if not {"pool_predicted", "pool_confidence"} <= set(outputs):
        return []
    predicted, confidence = outputs["pool_predicted"], outputs["pool_confidence"].astype(np.float64)
    disagrees = outputs["pool_pseudo"] != predicted if "pool_pseudo" in outputs else np.zeros(len(predicted), bool)
    order = np.lexsort((confidence, ~disagrees))[:MOST]
    return [
        (i, f"{percent(float(confidence[i]))} sure" + ("; the pseudo head disagrees" if disagrees[i] else ""))
        for i in order.tolist()
    ]


def _pictures(run: RunData) -> tuple[Images | None, Images]:
    config = run.config
    path = str(config.get("data.path"))
    if path == "arrays":
        raise UserError("the run was trained on arrays")
    corpus = load_corpus(
        path,
        labels=config.get("data.labels"),
        test=config.get("data.test"),
        unlabeled=config.get("data.unlabeled"),
        root=config.get("data.root"),
        check="none",
    )
    return corpus.test if run.value("evaluated_on") == "test" else corpus.images, corpus.images


def _show(run: RunData, images: Images | None, chosen: Sequence[tuple[int, str]], part: str) -> list[Example]:
    outputs, classes = run.outputs, run.classes
    names = outputs.get(f"{part}_names")
    position = {name: i for i, name in enumerate(images.names)} if images is not None and names is not None else {}
    shown = []
    for i, why in chosen:
        name = str(names[i]) if names is not None else f"picture {i}"
        predicted, truth = int(outputs[f"{part}_predicted"][i]), int(outputs.get(f"{part}_truth", {i: -1})[i])
        picture, tiny = (None, False)
        if images is not None and name in position:
            picture, tiny = _thumbnail(images, position[name])
        known = classes[truth] if 0 <= truth < len(classes) and part == "eval" else None
        second = outputs.get("pool_runner_up") if part == "pool" else None
        perhaps = classes[int(second[i])] if second is not None else None
        shown.append(Example(name, classes[predicted], known, perhaps, why, picture, tiny))
    return shown


def _thumbnail(images: Images, i: int) -> tuple[str | None, bool]:
    try:
        picture = images.load(i, "RGB", SIDE)
    except (UserError, OSError):
        return None, False
    tiny = max(picture.size) < SIDE // 2
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=72, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii"), tiny
