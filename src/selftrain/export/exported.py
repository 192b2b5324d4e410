"""An exported model on new images, with onnxruntime: the same predictions as those of the run it came from.

Knows nothing of torch modules or training; the file is all it needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.images import Images, UnreadableImage
from selftrain.data.source import Source
from selftrain.data.views.augment import CentreResize
from selftrain.data.views.image_views import stack_images
from selftrain.engine.metrics import BINS, calibration, summarise
from selftrain.errors import UserError
from selftrain.export.description import CROPS, Crops, Description, description_from
from selftrain.nn.onnx_file import read_onnx
from selftrain.runs.predict import Predictions
from selftrain.text import first_line, listed, plural

PIXELS_PER_PASS = 3 << 16
"""of the crops that are computed together: with more, activations leave the cache"""
MOST_IMAGES = 4
"""the same for files that resize by themselves"""
Array = NDArray[Any]
IMAGES = "images"
NO_IMAGE: Array = np.zeros((1, 1, 1, 3), np.uint8)
"""what is fed beside crops, since this input has no default"""


class Answer(NamedTuple):
    """The outputs of a model for some samples."""

    probabilities: Array
    novelty: Array | None


class ExportedModel:
    """A file written by ``selftrain export``, which predicts and evaluates as its run does.

    The file may come from a stranger: it is opened only if it names no other file and no operator outside the ONNX
    standard.
    """

    def __init__(self, path: str | Path, reporter: Reporter | None = None) -> None:
        self.path = Path(path)
        self.reporter = reporter or Reporter(quiet=True)
        if self.path.suffix.lower() != ".onnx":
            raise UserError(f"{self.path}: expected an .onnx file; only these can be run here.")

    @cached_property
    def session(self) -> Any:
        """The loaded model."""
        data = read_onnx(self.path)
        try:
            return load(data, threads=1)
        except ImportError:
            raise UserError(
                f"{self.path}: onnxruntime is not installed. Run pip install 'selftrain[export]'."
            ) from None
        except Exception as error:  # onnxruntime has a type of its own for each reason
            raise UserError(f"{self.path}: onnxruntime cannot load it ({first_line(error)}).") from None

    @cached_property
    def description(self) -> Description:
        try:
            metadata = self.session.get_modelmeta().custom_metadata_map
            inputs = [one.name for one in self.session.get_inputs()]
            outputs = [one.name for one in self.session.get_outputs()]
        except UnicodeDecodeError:
            raise UserError(f"{self.path}: its names or its description are not UTF-8 text.") from None
        found = description_from(metadata, self.path)
        wanted = ["probabilities", "novelty"][: 1 + found.novelty]
        if len(inputs) != 1 or outputs != wanted:
            raise UserError(f"{self.path}: its inputs and outputs are not those of a model of selftrain.")
        return found

    @property
    def classes(self) -> tuple[str, ...]:
        return self.description.classes

    def predict(self, images: Any, *, strict: bool = False) -> Predictions:
        """Return the class and the probabilities of new images: a folder, a file, or a NumPy array."""
        found = Source.parse(images, argument="images").images(features=self.description.dim, reporter=self.reporter)
        noun = "row" if isinstance(found, FeatureRows) else "image"
        if not len(found):
            raise UserError("`images`: there are no images to predict.")
        answers: list[Answer] = []
        unreadable: list[UnreadableImage] = []
        with self.reporter.progress("predicting", len(found), f"{noun}s") as bar:
            for answer in self.answers(found, unreadable, strict=strict):
                answers.append(answer)
                bar.reach(sum(len(one.probabilities) for one in answers) + len(unreadable))
        if not answers:
            raise UserError(f"{images}: none of its {len(unreadable)} images can be read; the first is {unreadable[0]}")
        bad = {error.index for error in unreadable}
        return Predictions(
            tuple(name for i, name in enumerate(found.names) if i not in bad),
            self.classes,
            np.concatenate([one.probabilities for one in answers]),
            tuple(unreadable),
            np.concatenate([one.novelty for one in answers if one.novelty is not None])
            if self.description.novelty
            else None,
            self.description.integer_classes,
            noun,
            self._prior(),
        )

    def evaluate(
        self, data: Any, labels: Any = None, *, root: str | Path | None = None, strict: bool = False
    ) -> dict[str, Any]:
        """Return the accuracy and other measures on labeled images; ``data`` and ``labels`` are as in ``Run``."""
        if labels is None and isinstance(data, tuple) and len(data) == 2:
            data, labels = data
        source = Source.parse(data, root=root, labels=labels)
        if labels is None:
            source.prepare(strict=strict, reporter=self.reporter)
        with self.reporter.progress("reading images", 1, "images") as bar:
            images, truth, skipped = source.test_set(
                self.classes, strict=strict, progress=bar.reach, features=self.description.dim
            )
        if skipped:
            self.reporter.warn(f"left out {plural(len(skipped), 'image')} that cannot be read: {listed(skipped)}")
        K = len(self.classes)
        confusion = np.zeros((K, K), np.int64)
        p = np.concatenate([one.probabilities for one in self.answers(images, [], strict=True)])
        known = truth >= 0
        predicted, confidence = p.argmax(axis=1)[known], p.max(axis=1)[known].astype(np.float64)
        np.add.at(confusion, (truth[known], predicted), 1)
        bins = np.zeros((BINS, 3))
        place = np.clip(np.ceil(p.max(axis=1)[known] * np.float32(BINS)).astype(np.int64) - 1, 0, BINS - 1)
        np.add.at(bins, place, np.stack([np.ones_like(confidence), confidence, predicted == truth[known]], axis=1))
        return {
            **summarise(confusion),
            **calibration(bins),
            "classes": list(self.classes),
            "images": int(confusion.sum()),
            "confusion": confusion.tolist(),
        }

    def _prior(self) -> Array | None:
        """Return the class frequencies of training, if the model's card has them."""
        prior = (self.description.card or {}).get("prior")
        if not isinstance(prior, list) or len(prior) != len(self.classes):
            return None
        if not all(isinstance(share, (int, float)) and 0 <= share <= 1 for share in prior) or not sum(prior):
            return None
        return np.array(prior, np.float64)

    def answers(self, images: Images, unreadable: list[UnreadableImage], *, strict: bool) -> Iterator[Answer]:
        """Yield the answers for all readable images, in order; the others are added to a list."""
        if isinstance(images, FeatureRows):
            for rows in feature_batches(images.values, 1024):
                yield self.run(rows.numpy())
            return
        if self.description.input == "features":
            raise UserError(f"{self.path}: this model takes features, not images; give a .npz or .npy file.")
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:  # each with a batch of its own, which scales better than shared ones
            ahead: deque[Future[tuple[list[Answer], list[UnreadableImage]]]] = deque()
            waiting = _parts(len(images), self.description.crops)
            try:
                while True:
                    for part in islice(waiting, threads + 1 - len(ahead)):
                        ahead.append(pool.submit(self._batch, images, part))
                    if not ahead:
                        return
                    answers, bad = ahead.popleft().result()
                    if strict and bad:
                        raise UserError(f"{bad[0]}. Leave out `strict` to skip unreadable images.")
                    unreadable += bad
                    yield from answers
            finally:
                pool.shutdown(cancel_futures=True)

    def _batch(self, images: Images, rows: range) -> tuple[list[Answer], list[UnreadableImage]]:
        """Return the answers for some images, and the images that cannot be read."""
        readable: list[Any] = []
        bad: list[UnreadableImage] = []
        for i in rows:
            try:
                image = images.load(i, "RGB", min_side=self.description.least_side or None)
                readable.append(image if self.description.crops is None else self._crops(image))  # small at once
            except UnreadableImage as error:
                bad.append(UnreadableImage(error.path, error.reason, i))
        if not readable:
            return [], bad
        if self.description.crops is None:  # a file of an older version
            return [self.run(batch) for batch in _same_sizes(readable)], bad
        return [self._run({IMAGES: NO_IMAGE, CROPS: np.stack(readable)})], bad

    def _crops(self, image: Image.Image) -> Array:
        """Return the crops of an RGB image; Pillow resizes faster than the graph, to the same pixels."""
        crops = self.description.crops
        assert crops is not None
        image = image.convert("L") if crops.channels == 1 else image
        cuts = [CentreResize(crops.size, crops.interpolation, share) for share in crops.shares]
        return stack_images([cut(image) for cut in cuts]).numpy()

    def run(self, inputs: Array) -> Answer:
        """Return the answer for uint8 images (N, H, W, 3) of one size, or for features (N, dim)."""
        return self._run({self.session.get_inputs()[0].name: inputs})

    def _run(self, inputs: dict[str, Array]) -> Answer:
        described, n = self.description, len(next(reversed(inputs.values())))
        try:
            outputs = self.session.run(None, inputs)
        except Exception as error:
            raise UserError(f"{self.path}: cannot be run ({first_line(error)}).") from None
        shapes = [(n, len(described.classes)), (n,)]
        if any(one.shape != shape for one, shape in zip(outputs, shapes, strict=False)):
            raise UserError(f"{self.path}: its outputs do not fit its {len(described.classes)} classes.")
        return Answer(outputs[0], outputs[1] if described.novelty else None)


def load(data: bytes, threads: int | None = None) -> Any:
    """Return a session of onnxruntime, with as many threads as torch takes by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    options.log_severity_level = 4  # errors are raised as well
    # Without the fallback to other providers, which prints to the standard output.
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def probabilities_of(model: Any, batches: Sequence[Array]) -> list[Array]:
    """Return the first output of an ``onnx.ModelProto`` with one input, batch by batch."""
    session = load(model.SerializeToString())
    name = session.get_inputs()[0].name
    return [session.run(None, {name: batch})[0] for batch in batches]


def _parts(n: int, crops: Crops | None) -> Iterator[range]:
    """Yield the places of n images in groups that are computed together."""
    most = MOST_IMAGES if crops is None else max(1, PIXELS_PER_PASS // (crops.size**2 * len(crops.shares)))
    return (range(i, min(i + most, n)) for i in range(0, n, most))


def _same_sizes(images: Sequence[Image.Image]) -> Iterator[Array]:
    """Yield neighbouring images of one size together, uint8 (N, H, W, 3)."""
    for _, same in groupby(images, key=lambda image: image.size):
        yield np.stack([np.asarray(image) for image in same])
