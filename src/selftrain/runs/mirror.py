"""Whether mirrored images keep their class, judged by the names of the classes and by features of labeled images.

Knows nothing of images, backbones, settings or files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Matrix = NDArray[np.float32]

MOST_IMAGES = 500  # labeled images that are compared with their mirror images
FEWEST_IMAGES = 20  # below, t has heavy tails, and only swapped classes count
OFF, DOUBT = -2.5, -1.5  # t of the change of the margin; docs/how-to/data.md has the rates of false alarms

SIDES = (
    ("left", "right"),
    ("links", "rechts"), ("linke", "rechte"), ("linker", "rechter"), ("linkes", "rechtes"),
    ("gauche", "droite"), ("gauche", "droit"),
    ("izquierda", "derecha"), ("izquierdo", "derecho"),
    ("esquerda", "direita"), ("esquerdo", "direito"),
    ("sinistra", "destra"), ("sinistro", "destro"),
)  # fmt: skip
"""words for the two sides; not east and west, which also name places"""
LETTERS = ("l", "r")


@dataclass(frozen=True)
class Verdict:
    """Whether to mirror images at random, and why."""

    flip: bool
    reason: str
    doubtful: bool = False
    """images are mirrored although the evidence is against it"""


def judge_names(classes: Sequence[str]) -> Verdict | None:
    """Return a verdict if two classes have names that differ only in the side, such as left and right; else None."""
    words = [_words(name) for name in classes]
    for j, mine in enumerate(words):
        for k, other in enumerate(words):
            if _differ_in_side(mine, other, words):
                return Verdict(False, f"the names {classes[j]!r} and {classes[k]!r} differ only in the side")
    return None


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: ``TurnLeft_2`` consists of turn and left."""
    apart = re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return tuple(word.lower() for word in re.findall(r"[^\W\d_]+", apart))


def _differ_in_side(mine: tuple[str, ...], other: tuple[str, ...], names: list[tuple[str, ...]]) -> bool:
    """Return whether two names are equal apart from words for the sides; the single letters l and r in this order."""
    if len(mine) != len(other):
        return False
    places = [i for i in range(len(mine)) if mine[i] != other[i]]
    pairs = {(mine[i], other[i]) for i in places}
    if pairs == {LETTERS}:
        return len(places) == 1 and len(mine) > 1 and not _in_alphabet(mine, places[0], names)
    sides = {(left, right) for a, b in SIDES for left, right in ((a, b), (b, a))}
    return bool(pairs) and pairs <= sides


def _in_alphabet(words: tuple[str, ...], place: int, names: list[tuple[str, ...]]) -> bool:
    """Return whether there are names with other letters at this place, so that l and r are just two letters."""
    letters = {
        name[place]
        for name in names
        if len(name) == len(words) and name[:place] + name[place + 1 :] == words[:place] + words[place + 1 :]
    }
    return any(len(letter) == 1 and letter not in LETTERS for letter in letters)


def sample_labeled(labels: Rows, seed: int, most: int = MOST_IMAGES) -> Rows:
    """Return rows of about ``most`` labeled images at most, equally many per class, of classes with two or more."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    chosen = rng.permutation(classes[counts > 1])[: most // 2]
    if not len(chosen):
        return np.empty(0, np.int64)
    return np.sort(np.concatenate([order[labels[order] == k][: most // len(chosen)] for k in chosen]))


def judge_features(clean: NDArray[Any], mirrored: NDArray[Any], labels: Rows, classes: Sequence[str]) -> Verdict:
    """Compare labeled images (n, dim) and their mirror images with prototypes of the classes.

    A prototype is the mean direction of a class, without the image that is compared. ``labels`` are positions in
    ``classes``; each class that occurs needs two images or more.
    """
    known, y = np.unique(labels, return_inverse=True)
    if len(known) < 2:
        return Verdict(True, "there are too few labels to test it; `data.flip=false` turns it off")
    before, after = _similarities(clean, mirrored, y)
    if pair := _swapped(before, after, y):
        j, k = (classes[known[c]] for c in pair)
        return Verdict(False, f"mirrored images of {j!r} look like {k!r}")
    margin, mirrored_margin = _margins(before, y), _margins(after, y)
    kept, kept_mirrored = int((margin > 0).sum()), int((mirrored_margin > 0).sum())
    t = _paired_t(mirrored_margin - margin) if len(y) >= FEWEST_IMAGES and kept_mirrored < kept else 0.0
    counts = f"labeled images keep their class when mirrored: {kept_mirrored} of {len(y)}, originals {kept}"
    return Verdict(t > OFF, counts if t > OFF else f"too few {counts}", doubtful=OFF < t <= DOUBT)


def _similarities(clean: NDArray[Any], mirrored: NDArray[Any], y: Rows) -> tuple[Matrix, Matrix]:
    """Return the cosine of each image, and of its mirror image, with the prototype of each class: (n, K) each."""
    both = np.concatenate([clean, mirrored]).astype(np.float32)
    both = _unit(both - both.mean(axis=0))
    images, mirror_images = both[: len(y)], both[len(y) :]
    of_class = np.eye(y.max() + 1, dtype=np.float32)[y]
    sums = of_class.T @ images
    own = _unit(sums[y] - images)

    def compare(some: Matrix) -> Matrix:
        found: Matrix = some @ _unit(sums).T
        found[np.arange(len(y)), y] = (some * own).sum(axis=1)
        return found

    return compare(images), compare(mirror_images)


def _unit(rows: Matrix) -> Matrix:
    unit: Matrix = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return unit


def _swapped(before: Matrix, after: Matrix, y: Rows) -> tuple[int, int] | None:
    """Return two classes that mirroring swaps: for both, most images are nearer to their own class than to the other
    one, and most mirror images nearer to the other one. Of several such pairs the clearest; None if there is none."""
    rows = np.arange(len(y))
    of_class = np.eye(y.max() + 1, dtype=np.float32)[y]
    of_class /= of_class.sum(axis=0)
    nearer = after - after[rows, y][:, None]  # by how much a mirror image is nearer to each class than to its own
    right = of_class.T @ (before[rows, y][:, None] > before)  # (K, K): share of class j nearer to j than to k
    wrong = of_class.T @ (nearer > 0)
    swapped = (right > 0.5) & (wrong > 0.5)
    swapped &= swapped.T
    if not swapped.any():
        return None
    excess = of_class.T @ nearer
    clear = np.where(swapped, excess + excess.T, -np.inf)
    j, k = np.unravel_index(clear.argmax(), clear.shape)
    return int(j), int(k)


def _margins(similarities: Matrix, y: Rows) -> NDArray[np.float64]:
    """Return by how much each image is nearer to its own class than to the nearest other one."""
    rows = np.arange(len(y))
    others = similarities.astype(np.float64)
    own = others[rows, y]
    others[rows, y] = -np.inf
    margins: NDArray[np.float64] = own - others.max(axis=1)
    return margins


def _paired_t(change: NDArray[np.float64]) -> float:
    spread = change.std(ddof=1)
    return float(change.mean() / spread * np.sqrt(len(change))) if spread > 0 else 0.0
