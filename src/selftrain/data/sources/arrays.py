"""Images, or features, and labels in memory as a corpus.

Knows nothing of files, splits or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from selftrain.data.corpus import Corpus
from selftrain.data.features.rows import FeatureRows, not_finite
from selftrain.data.images import ArrayImages, Images
from selftrain.data.sources.class_names import composed, encode_labels
from selftrain.data.sources.labels import read_labels
from selftrain.errors import UserError

Pair = tuple[NDArray[Any], Any]
"""an array x and one label per row of it; -1 is unlabeled"""


def is_pair(value: object) -> bool:
    """Return whether a value of ``data`` or ``test`` is meant as a pair of arrays (x, y)."""
    return isinstance(value, (tuple, list))


def numeric_pair(value: Any, argument: str) -> Pair:
    """Return a pair (x, y) with x as a NumPy array of finite numbers; ``argument`` is its name in errors."""
    if len(value) != 2:
        raise UserError(f"`{argument}`: expected a pair of arrays (x, y), got {len(value)} items.")
    x = value[0]
    try:
        if not isinstance(x, np.memmap):  # which would lose its file
            x = np.asarray(x.detach() if isinstance(x, torch.Tensor) else x)
    except ValueError:
        raise UserError(f"`{argument}`: the rows of x do not all have the same shape.") from None
    if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer) or x.dtype == bool):
        raise UserError(f"`{argument}`: expected real numbers in x, got {x.dtype} of shape {x.shape}.")
    bad: list[int] = not_finite(x) if x.ndim < 4 else []
    if len(bad):
        raise UserError(f"`{argument}`: row {bad[0]} of x is not finite.")
    return x, value[1]


def images_of_array(array: Any) -> ArrayImages:
    """Return an array or tensor as images to predict."""
    try:
        return ArrayImages(array.detach() if isinstance(array, torch.Tensor) else array)
    except ValueError:  # rows of different shapes
        raise UserError("`images`: they do not all have the same size; give files instead.") from None


def corpus_of_pairs(data: Pair, test: Pair | None, *, features: bool) -> Corpus:
    """Return the corpus of a pair (x, y) and optionally a second one for testing; ``features``: x holds features."""
    if not features:
        return corpus_from_arrays(*data, **({} if test is None else {"test_x": test[0], "test_y": test[1]}))
    x = FeatureRows(data[0], checked=True)
    if test is None:
        return corpus_from_arrays(x, data[1])
    test_x = FeatureRows(test[0], checked=True)
    if x.dim != test_x.dim:
        raise UserError(f"`test`: its rows have {test_x.dim} numbers, the training rows have {x.dim}.")
    return corpus_from_arrays(x, data[1], test_x=test_x, test_y=test[1])


def corpus_from_arrays(
    x: ArrayLike | Images,
    y: ArrayLike,
    *,
    test_x: ArrayLike | Images | None = None,
    test_y: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    flip: bool = True,
    name: str = "arrays",
) -> Corpus:
    """Return images and labels in memory as a corpus.

    Parameters
    ----------
    x
        Images as ``ArrayImages`` takes them, or ``Images``.
    y
        One label per image, with -1, ``None``, NaN or, among strings, ``""`` for unlabeled.
    test_x, test_y
        The test set; every image must be labeled.
    classes
        Class names. Integers in ``y`` are positions in it, strings must occur in it. By default the classes are the
        labels that occur, sorted: integers by value, strings as strings.
    flip
        Whether a mirrored image keeps its class.
    """
    images = x if isinstance(x, Images) else ArrayImages(x)
    found = label_values(y, "y")
    if len(found) != len(images):
        raise UserError(f"y: {len(found)} labels for {len(images)} images; give one per image (-1 is unlabeled).")
    classes, position = _classes(found, classes)
    if len(classes) < 2:
        found_classes = f"only one class ({classes[0]})" if classes else "no labeled image"
        raise UserError(f"y: {found_classes}; at least two classes are needed.")
    labels = encode_labels(found, position, classes, "y")
    corpus = Corpus(name, classes, images, labels, labels, flip=flip)
    if test_x is None and test_y is None:
        return corpus
    if test_x is None or test_y is None:
        raise UserError("test_x and test_y go together: give both or neither.")
    test_images = test_x if isinstance(test_x, Images) else ArrayImages(test_x)
    test_found = every_label(test_y, len(test_images), "test_y")
    return corpus.with_test(test_images, encode_labels(test_found, position, classes, "test_y"))


def _classes(values: Sequence[Any], given: Sequence[str] | None) -> tuple[tuple[str, ...], dict[Any, int]]:
    """Return the class names, and the position of each label value among them."""
    known = sorted({value for value in values if value is not None})
    if given is None:
        return tuple(str(value) for value in known), {value: k for k, value in enumerate(known)}
    classes = tuple(composed(str(name)) for name in given)
    if len(set(classes)) != len(classes):
        raise UserError("classes: a name occurs twice; give each class its own.")
    if known and isinstance(known[0], int):
        return classes, {k: k for k in range(len(classes))}
    return classes, {name: k for k, name in enumerate(classes)}


def every_label(y: ArrayLike, count: int, argument: str) -> list[Any]:
    """Return labels as ``label_values`` does; an error unless there is one for each of ``count`` images."""
    values = label_values(y, argument)
    if len(values) != count:
        raise UserError(f"{argument}: {len(values)} labels for {count} images; give one per image.")
    if None in values:
        raise UserError(f"{argument}: image {values.index(None)} has no label; every image needs one.")
    return values


def label_values(y: Any, argument: str) -> list[Any]:
    """Return labels as a list of int or of str, with None for unlabeled."""
    found = read_labels(y, argument)
    values = [composed(value) if isinstance(value, str) else _plain(value) for value in found.classes.tolist()]
    return [None if k < 0 else values[k] for k in found.positions.tolist()]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, (bool, int, float)) else str(value)
