"""An exported model on new images, with onnxruntime: the same predictions as those of the run it came from.

Knows nothing of torch modules or training; the file is all it needs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from selftrain.console import Reporter
from selftrain.data.features.rows import FeatureRows, feature_batches
from selftrain.data.images import Images, UnreadableImage
from selftrain.data.source import Source
from selftrain.engine.metrics import BINS, calibration, summarise
from selftrain.errors import UserError
from selftrain.export.description import Description, description_from
from selftrain.nn.onnx_file import read_onnx
from selftrain.runs.predict import Predictions
from selftrain.text import first_line, listed, plural

MOST_IMAGES, MOST_PIXELS = 16, 1 << 24
"""images of one size that are computed together, and their pixels"""
AHEAD = 64
"""images that are decoded before they are needed"""
Array = NDArray[Any]


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
            return load(data)
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
        for batch in _same_sizes(_decoded(images, self.description.least_side, unreadable, strict)):
            yield self.run(np.stack(batch))

    def run(self, inputs: Array) -> Answer:
        """Return the answer for uint8 images (N, H, W, 3) of one size, or for features (N, dim)."""
        described = self.description
        try:
            outputs = self.session.run(None, {self.session.get_inputs()[0].name: inputs})
        except Exception as error:
            raise UserError(f"{self.path}: cannot be run ({first_line(error)}).") from None
        shapes = [(len(inputs), len(described.classes)), (len(inputs),)]
        if any(one.shape != shape for one, shape in zip(outputs, shapes, strict=False)):
            raise UserError(f"{self.path}: its outputs do not fit its {len(described.classes)} classes.")
        return Answer(outputs[0], outputs[1] if described.novelty else None)


def load(data: bytes) -> Any:
    """Return a session of onnxruntime, with as many threads as torch takes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised as well
    # Without the fallback to other providers, which prints to the standard output.
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def probabilities_of(model: Any, batches: Sequence[Array]) -> list[Array]:
    """Return the first output of an ``onnx.ModelProto`` with one input, batch by batch."""
    session = load(model.SerializeToString())
    name = session.get_inputs()[0].name
    return [session.run(None, {name: batch})[0] for batch in batches]


def _decoded(
    images: Images, least_side: int, unreadable: list[UnreadableImage], strict: bool
) -> Iterator[NDArray[np.uint8]]:
    """Yield the pixels of all readable images, decoded ahead in threads."""

    def load(i: int) -> NDArray[np.uint8]:
        return np.asarray(images.load(i, "RGB", min_side=least_side or None))

    rows = iter(range(len(images)))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        ahead: deque[tuple[int, Future[NDArray[np.uint8]]]] = deque()
        submit: Callable[[int], None] = lambda i: ahead.append((i, pool.submit(load, i)))  # noqa: E731
        for i in islice(rows, AHEAD):
            submit(i)
        while ahead:
            i, future = ahead.popleft()
            for new in islice(rows, 1):
                submit(new)
            try:
                yield future.result()
            except UnreadableImage as error:
                if strict:
                    pool.shutdown(cancel_futures=True)
                    raise UserError(f"{error}. Leave out `strict` to skip unreadable images.") from None
                unreadable.append(UnreadableImage(error.path, error.reason, i))


def _same_sizes(images: Iterator[NDArray[np.uint8]]) -> Iterator[Sequence[NDArray[np.uint8]]]:
    """Yield neighbouring images of one size together."""
    batch: list[NDArray[np.uint8]] = []
    for image in images:
        full = len(batch) == MOST_IMAGES or (len(batch) + 1) * image.shape[0] * image.shape[1] > MOST_PIXELS
        if batch and (full or batch[0].shape != image.shape):
            yield batch
            batch = []
        batch.append(image)
    if batch:
        yield batch
