"""Images worth looking at, with thumbnails: candidates to label, confident mistakes, images of no class.

Knows nothing of pages, or of how images are chosen; see ``selftrain.runs.notable``. A run folder may come from a
stranger, so the places that it names are never opened: images come from the run folder itself, or from folders that the
user names.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from selftrain.data.images import Images
from selftrain.data.sources.by_name import FindByName, find_among, find_by_name
from selftrain.data.sources.named import DATASETS
from selftrain.errors import UserError
from selftrain.report.run_data import RunData
from selftrain.runs.notable import NOVEL, disagreement, notable
from selftrain.runs.thumbnails import StoredThumbnails
from selftrain.text import listed

SIDE = 144
"""largest side of a thumbnail in pixels"""
LABEL_NEXT = "What to label next"
"""the heading that advice points to"""


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
    """Unlabeled images."""

    to_label: list[Example] = field(default_factory=list)
    """unlabeled images whose label would probably help most"""
    mistakes: int | None = None
    """how many of these are mistakes, where the truth is known after all"""
    novel: list[Example] = field(default_factory=list)
    """unlabeled images that look like none of the classes"""
    novel_count: int = 0
    """how many there are, shown or not"""
    missing: str = ""
    """a sentence that says why images are missing"""


def find_examples(run: RunData) -> Examples:
    """Read the unlabeled images of a run that are worth looking at."""
    outputs, chosen, images = run.outputs, notable(run.outputs, run.labeled_names), _images(run)
    found = Examples(
        to_label=_show(run, images, [(i, _doubt(run, i)) for i in chosen.to_label], "pool"),
        novel=_show(run, images, [(i, f"novelty {_share(run, 'pool_novelty', i)}") for i in chosen.novel], "pool"),
        novel_count=int((outputs["pool_novelty"] > NOVEL).sum()) if chosen.novel else 0,
    )
    truth = outputs.get("pool_truth")
    if chosen.to_label and truth is not None and all(truth[i] >= 0 for i in chosen.to_label):
        found.mistakes = sum(bool(truth[i] != outputs["pool_predicted"][i]) for i in chosen.to_label)
    found.missing = _missing(run, images, [*found.to_label, *found.novel])
    return found


def find_mistakes(run: RunData) -> tuple[list[Example], str]:
    """Read the images of the most confident mistakes; also return a sentence that says why images are missing."""
    images = _images(run)
    rows = [(i, _sure(run, "eval", i)) for i in notable(run.outputs).confident]
    shown = _show(run, images, rows, "eval")
    return shown, _missing(run, images, shown)


def _missing(run: RunData, images: FindByName | None, shown: Sequence[Example]) -> str:
    if not shown or any(example.thumbnail for example in shown):
        return ""
    if run.noun == "rows":
        return "There are no images to show: the run was trained on features."
    if images is None:
        return (
            "The images are not shown, because the run folder has no thumbnails and a report opens nothing outside it. "
            "To show them, name their folder: selftrain report RUN --images FOLDER, or images=[FOLDER] in Python."
        )
    places = listed([str(place) for place in run.images]) if run.images else "the run folder"
    return f"The images cannot be shown: none of them is in {places}."


def _share(run: RunData, array: str, i: int) -> str:
    return f"{100 * float(run.outputs[array][i]):.0f}%"


def _sure(run: RunData, part: str, i: int) -> str:
    return f"{_share(run, f'{part}_confidence', i)} confident"


def _doubt(run: RunData, i: int) -> str:
    differs = ", disputed" if disagreement(run.outputs)[i] else ""
    return f"{_sure(run, 'pool', i)}{differs}"


def _images(run: RunData) -> FindByName | None:
    """Return a function that finds images by name: in folders that the user named, or among the run's thumbnails."""
    if run.images:
        return find_by_name(run.images)
    if run.thumbnails:
        return find_among([StoredThumbnails.read(run.thumbnails)])
    spec = DATASETS.get(str(run.settings.get("data.path")))
    if spec is not None and spec.is_bundled:
        corpus = spec.load()
        return find_among([corpus.images, *([] if corpus.test is None else [corpus.test])])
    return None


def _show(run: RunData, images: FindByName | None, chosen: Sequence[tuple[int, str]], part: str) -> list[Example]:
    outputs, classes = run.outputs, run.classes
    names = outputs.get(f"{part}_names")
    shown = []
    for i, why in chosen:
        name = str(names[i]) if names is not None else f"{run.noun.removesuffix('s')} {i}"
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
    image.save(file, "JPEG", quality=76, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii"), tiny
