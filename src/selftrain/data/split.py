"""Which images are labeled, unlabeled or held out: drawn once per seed, hashed, and reused by every method.

Knows nothing of pixels, files, methods or training; a draw depends on names, classes and a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.data.corpus import Corpus
from selftrain.data.draw import as_bytes, drawn_order
from selftrain.data.pile import Pile, draw, label_counts, long_tail, mixture, near_duplicates
from selftrain.errors import UserError
from selftrain.text import plural

Looks = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""from images to vectors, which are near each other for images that look alike"""
NO_PILE = Pile()


def _no_indices() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """The part of a corpus that training may use. Indices point into ``corpus.images`` and are sorted."""

    labeled: NDArray[np.int64]
    """Images whose class training may use."""
    unlabeled: NDArray[np.int64]
    """Images without a class; with ``include_labeled`` the labeled ones are among them."""
    labels: NDArray[np.int64]
    """The class of each entry of ``labeled``."""
    seed: int
    """The draw depends on it, on the class names and on the file names."""
    labels_per_class: int | None
    """The number asked for; None is all known labels."""
    include_labeled: bool
    """Whether labeled images also appear unlabeled."""
    hash: str
    """SHA-256 of the class names, the labeled and held-out names with their classes, and the unlabeled names; empty for
    a run in memory."""
    validation: NDArray[np.int64] = field(default_factory=_no_indices)
    """Labeled images that are held out of training altogether."""
    validation_labels: NDArray[np.int64] = field(default_factory=_no_indices)
    """The class of each entry of ``validation``."""

    def __repr__(self) -> str:
        counts = f"{len(self.labeled)} labeled, {len(self.unlabeled)} unlabeled, {len(self.validation)} held out"
        return f"Split({counts}, seed {self.seed}, {self.hash[:12]})"


def make_split(
    corpus: Corpus,
    *,
    labels_per_class: int | None,
    seed: int = 0,
    include_labeled: bool = True,
    validation_per_class: int = 0,
    pile: Pile = NO_PILE,
    looks: Looks | None = None,
    say: Callable[[str], object] = lambda text: None,
    hashed: bool = True,
) -> Split:
    """Draw the labeled images, class by class, and the unlabeled pool.

    The draw for a class depends only on the seed, the name of the class and the names of its images. With the same
    seed, the images drawn for 4 labels per class are among those drawn for 10.

    Parameters
    ----------
    labels_per_class
        In a benchmark exactly this many per class; otherwise at most this many of the known labels (the other images
        count as unlabeled), or all of them with None.
    seed
        The setting ``data.split_seed``.
    include_labeled
        Whether labeled images also appear unlabeled.
    validation_per_class
        Known labels per class to hold out. In a benchmark they are drawn in addition to ``labels_per_class``; otherwise
        they are taken from the known labels, of which at least one per class must remain. They are never trained on,
        not even unlabeled, and with the same seed they are the same for every ``labels_per_class``.
    pile
        How labels and pool differ from a random part of the data. Labeled images stay in the pool with
        ``include_labeled``, whatever its imbalance.
    looks
        For ``pile.label_modes``: what images look like.
    say
        Called with a sentence if the pool could not be drawn as asked.
    hashed
        Whether the split has a hash, which reads the names of all images.
    """
    if labels_per_class is not None and labels_per_class < 1:
        raise UserError(f"`labels_per_class={labels_per_class}`: must be at least 1.")
    if seed < 0:
        raise UserError(f"`data.split_seed={seed}`: must be 0 or more.")
    if validation_per_class < 0:
        raise UserError(f"`data.validation_per_class={validation_per_class}`: must be 0 or more.")
    if len(corpus.classes) < 2:
        raise UserError(f"{corpus.name}: has {len(corpus.classes)} class; at least two classes are needed.")
    if corpus.is_benchmark and labels_per_class is None:
        raise UserError(
            f"{corpus.name}: every label is known; pass `labels_per_class`, for example `labels_per_class=4`, to hide "
            f"the others."
        )
    wanted = _labels_wanted(corpus, labels_per_class, seed, pile)
    modes = None if looks is None or pile.label_modes is None else _Modes(pile.label_modes, looks)
    drawn = [_draw_class(corpus, k, seed, n, validation_per_class, modes) for k, n in enumerate(wanted)]
    labeled = np.sort(np.concatenate([labeled for labeled, _ in drawn]))
    validation = np.sort(np.concatenate([held_out for _, held_out in drawn]))
    return assemble(
        corpus,
        labeled,
        validation,
        seed=seed,
        labels_per_class=labels_per_class,
        include_labeled=include_labeled,
        unlabeled=_pool(corpus, labeled, validation, seed, include_labeled, pile, say) if pile.changes_pool else None,
        hashed=hashed,
    )


def _labels_wanted(corpus: Corpus, labels_per_class: int | None, seed: int, pile: Pile) -> list[int | None]:
    """Return the number of labels of each class; None is all known labels."""
    if labels_per_class is None:
        for name in ("label_imbalance", "label_modes"):
            if (value := getattr(pile, name)) != getattr(NO_PILE, name):
                raise UserError(
                    f"`data.{name}={value:g}`: needs `labels_per_class`, for example `labels_per_class=10`."
                )
        return [None] * len(corpus.classes)
    return list(label_counts(corpus.classes, labels_per_class, pile.label_imbalance, seed).tolist())


def _pool(
    corpus: Corpus,
    labeled: NDArray[np.int64],
    validation: NDArray[np.int64],
    seed: int,
    include_labeled: bool,
    pile: Pile,
    say: Callable[[str], object],
) -> NDArray[np.int64]:
    """Return the unlabeled images of a pile, sorted."""
    names, junk = corpus.images.names, np.flatnonzero(corpus.junk)
    hidden = all_others(len(names), labeled, validation, include_labeled=False)
    hidden = hidden[~corpus.junk[hidden]]
    if pile.imbalance > 1:
        unknown = int((corpus.truth[hidden] < 0).sum())
        if unknown:
            raise UserError(
                f"`data.imbalance={pile.imbalance:g}`: the true class of every unlabeled image must be known, as in "
                f"train/<class>/*, and {plural(unknown, 'image')} of {corpus.name} have none."
            )
        hidden = long_tail(hidden, corpus.truth, names, corpus.classes, seed, pile)
    kept = labeled if include_labeled else _no_indices()
    if not pile.junk:
        return np.union1d(hidden, kept)
    counts = mixture(pile.junk, len(junk), len(hidden), len(kept))
    if counts.hidden < len(hidden):
        say(
            f"there are only {len(junk):,} images of no class, so {len(hidden) - counts.hidden:,} of {len(hidden):,} "
            f"unlabeled images of the classes are left out, for a share of {pile.junk:g} (data.junk)"
        )
    hidden = draw(hidden, counts.hidden, names, seed, "images that stay beside junk")
    return np.sort(np.concatenate([hidden, kept, draw(junk, counts.junk, names, seed, "junk")]))


@dataclass(frozen=True)
class _Modes:
    count: int
    looks: Looks


def _draw_class(
    corpus: Corpus, k: int, seed: int, labels_per_class: int | None, held_out: int, modes: _Modes | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labeled images of class ``k``, and those that are held out."""
    about = f"{corpus.name}: class {corpus.classes[k]!r}"
    order = _drawing_order(corpus, k, seed)
    known = len(order)
    if known == 0:
        raise UserError(f"{about} has no labeled image; label at least one.")
    wanted = labels_per_class if labels_per_class is not None else known
    if corpus.is_benchmark and known < wanted + held_out:
        more = f" plus {held_out} to hold out (`data.validation_per_class`)" if held_out else ""
        raise UserError(f"{about} has {known} images, fewer than `labels_per_class={wanted}`{more}.")
    if known <= held_out:
        raise UserError(
            f"{about} has {known} labeled images; `data.validation_per_class={held_out}` would leave none to train on."
        )
    # From the two ends of one order, so that neither depends on how many images the other takes.
    free, count = order[: known - held_out], min(wanted, known - held_out)
    chosen = free[:count] if modes is None else free[near_duplicates(modes.looks(free), count, modes.count)]
    return chosen, order[known - held_out :]


def with_all_labels(split: Split, corpus: Corpus) -> Split:
    """Return the split with every label of a benchmark known, except those held out."""
    known = np.setdiff1d(np.flatnonzero(corpus.labels >= 0), split.validation)
    others = all_others(len(corpus.images), split.labeled, split.validation, split.include_labeled)
    unlabeled = None
    if not np.array_equal(others, split.unlabeled):  # a pile
        unlabeled = split.unlabeled if split.include_labeled else np.setdiff1d(split.unlabeled, known)
    return assemble(
        corpus,
        known,
        split.validation,
        seed=split.seed,
        labels_per_class=None,
        include_labeled=split.include_labeled,
        unlabeled=unlabeled,
    )


def fold_splits(split: Split, corpus: Corpus, folds: int) -> list[Split]:
    """Return splits for cross-validation on the labels: each label is held out by one of them.

    Every class is spread evenly over the folds. A class with a single label keeps it in every fold.
    """
    counts = np.bincount(split.labels, minlength=len(corpus.classes))
    if folds < 2 or folds > counts.max():
        raise UserError(
            f"folds={folds}: expected 2 to {counts.max()}, the largest number of labels in a class."
            if counts.max() > 1
            else f"folds={folds}: every class has a single label, so none can be held out."
        )
    part = np.full(len(split.labels), -1)
    dealt = 0
    for k in np.flatnonzero(counts > 1):
        mine = np.flatnonzero(split.labels == k)
        order = np.argsort(np.random.PCG64(np.random.SeedSequence([split.seed, int(k)])).random_raw(len(mine)))
        part[mine[order]] = (dealt + np.arange(len(mine))) % folds
        dealt += len(mine)
    return [
        assemble(
            corpus,
            split.labeled[part != i],
            split.labeled[part == i],
            seed=split.seed,
            labels_per_class=None,
            include_labeled=split.include_labeled,
            unlabeled=np.setdiff1d(split.unlabeled, split.labeled[part == i]),
        )
        for i in range(folds)
    ]


def _drawing_order(corpus: Corpus, k: int, seed: int) -> NDArray[np.int64]:
    """Return the known images of class ``k`` in the order in which they are drawn."""
    candidates = np.flatnonzero(corpus.labels == k)
    names = [corpus.images.names[i] for i in candidates.tolist()]
    return candidates[drawn_order(names, seed, corpus.classes[k])]


def assemble(
    corpus: Corpus,
    labeled: NDArray[np.int64],
    validation: NDArray[np.int64],
    *,
    seed: int,
    labels_per_class: int | None,
    include_labeled: bool,
    unlabeled: NDArray[np.int64] | None = None,
    hashed: bool = True,
) -> Split:
    """Return the split of these images with its hash; ``unlabeled`` by default all images that are not held out."""
    if unlabeled is None:
        unlabeled = all_others(len(corpus.images), labeled, validation, include_labeled)
    split = Split(
        labeled=labeled,
        unlabeled=unlabeled,
        labels=corpus.labels[labeled],
        seed=seed,
        labels_per_class=labels_per_class,
        include_labeled=include_labeled,
        hash="",
        validation=validation,
        validation_labels=corpus.labels[validation],
    )
    return replace(split, hash=_hash(split, corpus)) if hashed else split


def _hash(split: Split, corpus: Corpus) -> str:
    names = corpus.images.names

    def named(indices: NDArray[np.int64], classes: NDArray[np.int64]) -> Iterable[str]:
        pairs = sorted((names[i], corpus.classes[k]) for i, k in zip(indices.tolist(), classes.tolist(), strict=True))
        return (text for pair in pairs for text in pair)

    digest = hashlib.sha256(b"selftrain split 1")
    for section, count, texts in (
        ("classes", len(corpus.classes), corpus.classes),
        ("labeled", len(split.labeled), named(split.labeled, split.labels)),
        ("validation", len(split.validation), named(split.validation, split.validation_labels)),
        ("unlabeled", len(split.unlabeled), sorted(names[i] for i in split.unlabeled.tolist())),
    ):
        digest.update(f"\n{section} {count}\n".encode())
        _feed(digest, texts)
    return digest.hexdigest()


def all_others(
    count: int, labeled: NDArray[np.int64], validation: NDArray[np.int64], include_labeled: bool
) -> NDArray[np.int64]:
    """Return the images that are unlabeled unless a split lists others."""
    keep = np.ones(count, bool)
    keep[validation] = False
    if not include_labeled:
        keep[labeled] = False
    return np.flatnonzero(keep)


def _feed(digest: Any, texts: Iterable[str]) -> None:
    """Add each text followed by a NUL, a few thousand at a time: there may be millions of names."""
    part: list[str] = []
    for text in texts:
        part.append(text + "\0")
        if len(part) == 4096:
            digest.update(as_bytes("".join(part)))
            part.clear()
    digest.update(as_bytes("".join(part)))
