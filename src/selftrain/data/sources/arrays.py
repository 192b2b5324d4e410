"""Pictures and labels in memory made into a Corpus.

Knows nothing of files, splits or training.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selftrain.data.corpus import Corpus
from selftrain.data.images import ArrayImages, Images
from selftrain.errors import UserError, nearest


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
    """Pictures and labels in memory as a corpus.

    Parameters
    ----------
    x
        Pictures, as ``ArrayImages`` takes them, or made into ``Images`` already.
    y
        One label a picture: integers with -1 for unlabeled, or strings with ``""``, ``None`` or -1 for unlabeled.
    test_x, test_y
        The test set, every picture labeled.
    classes
        Class names. Integers in ``y`` are positions in it, strings must occur in it. Without it the classes are the
        labels that occur, sorted: integers by value, strings as strings.
    flip
        Whether a mirrored picture keeps its meaning.
    """
    images = x if isinstance(x, Images) else ArrayImages(x)
    found = label_values(y, "y")
    if len(found) != len(images):
        raise UserError(f"y: {len(found)} labels for {len(images)} pictures; give one a picture (-1 is unlabeled).")
    values = sorted({value for value in found if value is not None})
    if classes is None:
        classes = tuple(str(value) for value in values)
        position: dict[Any, int] = {value: k for k, value in enumerate(values)}
    else:
        classes = tuple(composed(str(class_name)) for class_name in classes)
        if len(set(classes)) != len(classes):
            raise UserError("classes: a name occurs twice; give each class its own.")
        integers = bool(values) and isinstance(values[0], int)
        position = {k: k for k in range(len(classes))} if integers else {c: k for k, c in enumerate(classes)}
    if len(classes) < 2:
        found_classes = f"only one class ({classes[0]})" if classes else "no labeled picture"
        raise UserError(f"y: {found_classes}; at least two classes are needed to tell apart.")
    labels = encode_labels(found, position, classes, "y")
    test_images = test_labels = None
    if test_x is not None or test_y is not None:
        if test_x is None or test_y is None:
            raise UserError("test_x and test_y go together: give both or neither.")
        test_images = test_x if isinstance(test_x, Images) else ArrayImages(test_x)
        test_found = label_values(test_y, "test_y")
        if len(test_found) != len(test_images):
            raise UserError(f"test_y: {len(test_found)} labels for {len(test_images)} pictures; give one a picture.")
        if None in test_found:
            raise UserError(f"test_y: picture {test_found.index(None)} has no label; every test picture needs one.")
        test_labels = encode_labels(test_found, position, classes, "test_y")
    return Corpus(name, classes, images, labels, labels, test_images, test_labels, flip=flip)


def label_values(y: ArrayLike, argument: str) -> list[Any]:
    """Labels as a list of int or of str, with None for unlabeled."""
    try:
        array = np.asarray(y)
    except ValueError:  # rows of several lengths
        raise UserError(f"{argument}: must be one label a picture; got rows of several lengths.") from None
    if array.ndim != 1:
        raise UserError(f"{argument}: must be one label a picture; got shape {array.shape}.")
    if np.issubdtype(array.dtype, np.floating):
        if not np.all(array == np.rint(array)):  # false for NaN too
            raise UserError(
                f"{argument}: must be integers or strings; got {array.dtype} (mark unlabeled ones with -1)."
            )
        array = array.astype(np.int64)
    values: list[Any] = []
    for value in array.tolist():
        if value is None or value == -1 or (isinstance(value, str) and value in ("", "-1")):
            values.append(None)  # "-1" is what NumPy makes of -1 among strings
        elif isinstance(value, str):
            values.append(composed(value))
        elif isinstance(value, (int, np.integer)) and value >= 0:
            values.append(int(value))
        else:
            raise UserError(
                f"{argument}: {value!r} is no label; use integers from 0, or strings, and -1 or None for unlabeled."
            )
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        raise UserError(f"{argument}: mixes integers and strings; use one of them.")
    return values


def composed(name: str) -> str:
    """A name with its accents as Unicode's NFC has them: macOS takes them apart, and it is the same name still."""
    return unicodedata.normalize("NFC", name)


def encode_labels(
    values: Sequence[Any], position: Mapping[Any, int], classes: Sequence[str], argument: str
) -> NDArray[np.int64]:
    """Labels as positions; ``argument`` is what an error calls them."""
    labels = np.full(len(values), -1, np.int64)
    for i, value in enumerate(values):
        if value is None:
            continue
        if value not in position:
            known = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
            raise UserError(f"{argument}: {value!r} is not one of the classes ({known}).{nearest(str(value), classes)}")
        labels[i] = position[value]
    return labels
