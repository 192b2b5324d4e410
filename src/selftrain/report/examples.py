"""Images worth looking at: confident mistakes, likely mistakes where the truth is not known, images of no class.

Knows nothing of pages. A run folder may come from a stranger, so the places that it names are never opened: images are
read only from folders that the user names.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from selftrain.data.images import Images
from selftrain.data.source import ARRAYS
from selftrain.data.sources.by_name import FindByName, find_among, find_by_name
from selftrain.data.sources.named import DATASETS
from selftrain.errors import UserError
from selftrain.report.charts import percent
from selftrain.report.run_data import RunData
from selftrain.runs.layout import Arrays
from selftrain.text import listed

MOST = 12
"""examples of each kind"""
MOST_PER_PAIR = 3
"""examples with the same true and predicted class, so that no pair of classes fills the page"""
NOVEL = 0.5
"""images with a higher novelty look like none of the classes"""
SIDE = 96
"""largest side of a thumbnail in pixels"""


@dataclass(frozen=True)
class Example:
    name: str
    predicted: str
    truth: str | None
    runner_up: str | None
    """the class with the second highest probability, where the truth is not known"""
    why: str
    """the confidence, and whether the heads disagree"""
    thumbnail: str | None
    """a data URI; None where the image cannot be read any more"""
    tiny: bool = False
    """whether the image is so small that its pixels are shown enlarged, without smoothing"""


@dataclass
class Examples:
    confident: list[Example] = field(default_factory=list)
    likely: list[Example] = field(default_factory=list)
    likely_right: float | None = None
    """the share of the likely mistakes that are mistakes, where the truth is known after all"""
    novel: list[Example] = field(default_factory=list)
    """unlabeled images that look like none of the classes"""
    novel_count: int = 0
    """how many there are, shown or not"""
    missing: str = ""
    """a sentence that says why images are missing"""


def find_examples(run: RunData) -> Examples:
    """Choose the examples of a run and read their images."""
    found = Examples()
    confident, likely, novel = _confident(run.outputs), _likely(run.outputs), _novel(run.outputs)
    if not confident and not likely and not novel:
        return found
    images = None
    if run.noun == "rows" or run.settings.get("data.path") == ARRAYS:
        found.missing = "There are no images to show: the run was trained on arrays or features."
    else:
        images = _images(run)
        if images is None:
            found.missing = (
                "The images are not shown, because a report opens nothing outside the run folder. To show them, name "
                "their folder: selftrain report RUN --images FOLDER, or images=[FOLDER] in Python."
            )
    outputs = run.outputs
    found.confident = _show(run, images, confident, "eval")
    found.likely = _show(run, images, likely, "pool")
    found.novel = _show(run, images, novel, "pool")
    found.novel_count = int((outputs["pool_novelty"] > NOVEL).sum()) if novel else 0
    truth = outputs.get("pool_truth")
    if likely and truth is not None and all(truth[i] >= 0 for i, _ in likely):
        found.likely_right = float(np.mean([truth[i] != outputs["pool_predicted"][i] for i, _ in likely]))
    if not found.missing and not any(e.thumbnail for e in (*found.confident, *found.likely, *found.novel)):
        found.missing = (
            f"The images cannot be shown: none of them is in {listed([str(place) for place in run.images])}."
        )
    return found


def _confident(outputs: Arrays) -> list[tuple[int, str]]:
    """Return the wrong predictions with the highest confidence."""
    if not {"eval_truth", "eval_predicted", "eval_confidence"} <= set(outputs):
        return []
    truth, predicted, confidence = (outputs[f"eval_{name}"] for name in ("truth", "predicted", "confidence"))
    wrong = np.flatnonzero((truth >= 0) & (truth != predicted))
    order = wrong[np.argsort(-confidence[wrong], kind="stable")]
    pairs: Counter[tuple[int, int]] = Counter()
    chosen: list[tuple[int, str]] = []
    for i in order.tolist():
        pair = (int(truth[i]), int(predicted[i]))
        if pairs[pair] < MOST_PER_PAIR and len(chosen) < MOST:
            pairs[pair] += 1
            chosen.append((i, f"{percent(float(confidence[i]))} confident"))
    return chosen


def _likely(outputs: Arrays) -> list[tuple[int, str]]:
    """Return the least confident predictions, those on which the pseudo head disagrees with h first.

    In the runs of docs/report.md, 68% of the predictions on which these heads differ are mistakes, and 22% of all
    others. The worst-case head, which is trained to differ, says less about a single image (44% and 21%).
    """
    if not {"pool_predicted", "pool_confidence"} <= set(outputs):
        return []
    predicted, confidence = outputs["pool_predicted"], outputs["pool_confidence"].astype(np.float64)
    disagrees = outputs["pool_pseudo"] != predicted if "pool_pseudo" in outputs else np.zeros(len(predicted), bool)
    order = np.lexsort((confidence, ~disagrees))[:MOST]
    return [
        (i, f"{percent(float(confidence[i]))} confident" + ("; the pseudo head disagrees" if disagrees[i] else ""))
        for i in order.tolist()
    ]


def _novel(outputs: Arrays) -> list[tuple[int, str]]:
    """Return the unlabeled images with the highest novelty, if training looked for images of no class."""
    if not {"pool_predicted", "pool_novelty"} <= set(outputs):
        return []
    novelty = outputs["pool_novelty"].astype(np.float64)
    order = np.argsort(-novelty, kind="stable")[:MOST]
    return [(i, f"novelty {percent(float(novelty[i]))}") for i in order.tolist() if novelty[i] > NOVEL]


def _images(run: RunData) -> FindByName | None:
    """Return a function that finds images by name in the folders that the user named; None without such a folder."""
    spec = DATASETS.get(str(run.settings.get("data.path")))
    if not run.images and spec is not None and spec.is_bundled:
        corpus = spec.load()
        return find_among([corpus.images, *([] if corpus.test is None else [corpus.test])])
    return find_by_name(run.images) if run.images else None


def _show(run: RunData, images: FindByName | None, chosen: Sequence[tuple[int, str]], part: str) -> list[Example]:
    outputs, classes = run.outputs, run.classes
    names = outputs.get(f"{part}_names")
    shown = []
    for i, why in chosen:
        name = str(names[i]) if names is not None else f"image {i}"
        predicted, truth = int(outputs[f"{part}_predicted"][i]), int(outputs.get(f"{part}_truth", {i: -1})[i])
        thumbnail, tiny = (None, False)
        if images is not None and names is not None and (place := images(name)) is not None:
            thumbnail, tiny = _thumbnail(*place)
        known = classes[truth] if 0 <= truth < len(classes) and part == "eval" else None
        second = outputs.get("pool_runner_up") if part == "pool" else None
        runner_up = classes[int(second[i])] if second is not None else None
        shown.append(Example(name, classes[predicted], known, runner_up, why, thumbnail, tiny))
    return shown


def _thumbnail(images: Images, i: int) -> tuple[str | None, bool]:
    try:
        image = images.load(i, "RGB", SIDE)
    except (UserError, OSError):
        return None, False
    tiny = max(image.size) < SIDE // 2
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=72, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii"), tiny
