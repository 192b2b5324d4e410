"""Which pictures are labeled, which unlabeled, which held out: drawn once, saved, hashed, reused by every method.

Knows nothing of pixels, methods or training; it goes by names, classes and a seed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selftrain.data.corpus import Corpus
from selftrain.data.images import fingerprint
from selftrain.errors import UserError
from selftrain.files import replacing

__all__ = ["Split", "fold_splits", "load_split", "make_split", "save_split", "with_all_labels"]

ALL_OTHERS = "all others"
SAMPLE = 1000  # pictures whose contents are compared when a run goes on


def _no_indices() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """What training may know of a corpus. Indices point into ``corpus.images`` and are sorted."""

    labeled: NDArray[np.int64]
    """Pictures whose class training is told."""
    unlabeled: NDArray[np.int64]
    """Pictures without a class; with ``include_labeled`` the labeled ones are among them."""
    labels: NDArray[np.int64]
    """The class of each entry of ``labeled``."""
    seed: int
    """What the draw depends on, beside the class names and the file names."""
    labels_per_class: int | None
    """How many were asked for; None is all that are known."""
    include_labeled: bool
    """Whether labeled pictures also appear unlabeled."""
    hash: str
    """SHA-256 over class names, labeled names with their classes, held-out ones likewise, and unlabeled names."""
    validation: NDArray[np.int64] = field(default_factory=_no_indices)
    """Labeled pictures held out of training altogether."""
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
) -> Split:
    """Draw the labeled pictures, class by class.

    The draw for a class depends on the seed, the class's name and the names of its pictures, and on nothing else; the
    labels drawn for 4 a class are among those for 10 a class with the same seed.

    Parameters
    ----------
    labels_per_class
        In a benchmark exactly so many a class; otherwise at most so many of those that are known (the others count as
        unlabeled), or all of them with None.
    include_labeled
        Whether labeled pictures also appear unlabeled.
    validation_per_class
        Known labels a class to hold out. In a benchmark they come on top of ``labels_per_class``; otherwise they are
        taken from the known labels, of which at least one a class must remain. They are never trained on, not even
        unlabeled, and with one seed they are the same for every ``labels_per_class``.
    """
    if labels_per_class is not None and labels_per_class < 1:
        raise UserError(f"--labels-per-class {labels_per_class}: must be at least 1.")
    if seed < 0:
        raise UserError(f"--seed {seed}: must be 0 or more.")
    if validation_per_class < 0:
        raise UserError(f"validation_per_class {validation_per_class}: must be 0 or more.")
    if len(corpus.classes) < 2:
        raise UserError(f"{corpus.name}: has {len(corpus.classes)} class; at least two are needed to tell apart.")
    if corpus.is_benchmark and labels_per_class is None:
        raise UserError(f"{corpus.name}: every label is known; add --labels-per-class N (e.g. 4) to hide the others.")

    labeled: list[NDArray[np.int64]] = []
    held_out: list[NDArray[np.int64]] = []
    for k, class_name in enumerate(corpus.classes):
        order = _draw(corpus, k, seed)
        known = len(order)
        if known == 0:
            raise UserError(f"{corpus.name}: class {class_name!r} has no labeled image; label at least one.")
        wanted = labels_per_class if labels_per_class is not None else known
        if corpus.is_benchmark and known < wanted + validation_per_class:
            more = f" and {validation_per_class} to hold out" if validation_per_class else ""
            raise UserError(
                f"{corpus.name}: class {class_name!r} has {known} images, fewer than --labels-per-class {wanted}{more}."
            )
        if known <= validation_per_class:
            raise UserError(
                f"{corpus.name}: class {class_name!r} has {known} labeled images; with {validation_per_class} held out "
                "for validation none would remain."
            )
        # From the two ends of one order, so that neither depends on how many the other takes.
        labeled.append(order[: min(wanted, known - validation_per_class)])
        held_out.append(order[known - validation_per_class :])
    return _assemble(
        corpus,
        np.sort(np.concatenate(labeled)),
        np.sort(np.concatenate(held_out)),
        seed=seed,
        labels_per_class=labels_per_class,
        include_labeled=include_labeled,
    )


def with_all_labels(split: Split, corpus: Corpus) -> Split:
    """The same split with every label of a benchmark known, but for those held out."""
    known = np.flatnonzero(corpus.labels >= 0)
    return _assemble(
        corpus,
        np.setdiff1d(known, split.validation),
        split.validation,
        seed=split.seed,
        labels_per_class=None,
        include_labeled=split.include_labeled,
    )


def fold_splits(split: Split, corpus: Corpus, folds: int) -> list[Split]:
    """Splits that hold out one part of the few labels after another, so that each is held out once.

    Every class is spread evenly over the parts. A class with a single label keeps it: nothing can be said of it.
    """
    counts = np.bincount(split.labels, minlength=len(corpus.classes))
    if folds < 2 or folds > counts.max():
        raise UserError(
            f"folds={folds}: expected 2 to {counts.max()}, the number of labels of the class that has most."
            if counts.max() > 1
            else f"folds={folds}: every class has a single label, and none of them can be held out."
        )
    part = np.full(len(split.labels), -1)
    dealt = 0
    for k in np.flatnonzero(counts > 1):
        mine = np.flatnonzero(split.labels == k)
        order = np.argsort(np.random.PCG64(np.random.SeedSequence([split.seed, int(k)])).random_raw(len(mine)))
        part[mine[order]] = (dealt + np.arange(len(mine))) % folds
        dealt += len(mine)
    return [
        _assemble(
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


def _draw(corpus: Corpus, k: int, seed: int) -> NDArray[np.int64]:
    """The known pictures of class ``k`` in the order in which they are drawn."""
    names = corpus.images.names
    candidates = sorted(np.flatnonzero(corpus.labels == k).tolist(), key=names.__getitem__)
    word = int.from_bytes(hashlib.sha256(_bytes(corpus.classes[k])).digest()[:16], "big")
    # Sorted by raw generator output: its stream is the same in every NumPy version, a Generator's shuffle need not be.
    keys = np.random.PCG64(np.random.SeedSequence([seed, word])).random_raw(len(candidates))
    return np.asarray(candidates, np.int64)[np.argsort(keys, kind="stable")]


def _assemble(
    corpus: Corpus,
    labeled: NDArray[np.int64],
    validation: NDArray[np.int64],
    *,
    seed: int,
    labels_per_class: int | None,
    include_labeled: bool,
    unlabeled: NDArray[np.int64] | None = None,
) -> Split:
    if unlabeled is None:
        unlabeled = _all_others(len(corpus.images), labeled, validation, include_labeled)
    labels, validation_labels = corpus.labels[labeled], corpus.labels[validation]
    names = corpus.images.names

    def named(indices: NDArray[np.int64], classes: NDArray[np.int64]) -> Iterable[str]:
        pairs = sorted((names[i], corpus.classes[k]) for i, k in zip(indices.tolist(), classes.tolist(), strict=True))
        return (text for pair in pairs for text in pair)

    digest = hashlib.sha256(b"selftrain split 1")
    for section, count, texts in (
        ("classes", len(corpus.classes), corpus.classes),
        ("labeled", len(labeled), named(labeled, labels)),
        ("validation", len(validation), named(validation, validation_labels)),
        ("unlabeled", len(unlabeled), sorted(names[i] for i in unlabeled.tolist())),
    ):
        digest.update(f"\n{section} {count}\n".encode())
        _feed(digest, texts)
    return Split(
        labeled=labeled,
        unlabeled=unlabeled,
        labels=labels,
        seed=seed,
        labels_per_class=labels_per_class,
        include_labeled=include_labeled,
        hash=digest.hexdigest(),
        validation=validation,
        validation_labels=validation_labels,
    )


def _all_others(
    count: int, labeled: NDArray[np.int64], validation: NDArray[np.int64], include_labeled: bool
) -> NDArray[np.int64]:
    keep = np.ones(count, bool)
    keep[validation] = False
    if not include_labeled:
        keep[labeled] = False
    return np.flatnonzero(keep)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # file names need not be UTF-8


def _feed(digest: Any, texts: Iterable[str]) -> None:
    """Each text with a NUL behind it, a few thousand at a time: names may be millions."""
    part: list[str] = []
    for text in texts:
        part.append(text + "\0")
        if len(part) == 4096:
            digest.update(_bytes("".join(part)))
            part.clear()
    digest.update(_bytes("".join(part)))


# --- split.json --------------------------------------------------------------------------------------------------


def save_split(split: Split, corpus: Corpus, path: str | os.PathLike[str]) -> None:
    """Write the split as JSON for people and for ``load_split``. The file is whole or, after a crash, the old one.

    Unlabeled pictures are not listed one by one where they are simply all the others.
    """
    names, classes = corpus.images.names, corpus.classes

    def entries(indices: NDArray[np.int64], labels: NDArray[np.int64]) -> list[dict[str, str]]:
        pairs = zip(indices.tolist(), labels.tolist(), strict=True)
        return [{"path": names[i], "label": classes[k]} for i, k in pairs]

    others = _all_others(len(names), split.labeled, split.validation, split.include_labeled)
    said: str | list[str] = ALL_OTHERS
    if not np.array_equal(others, split.unlabeled):
        said = [names[i] for i in split.unlabeled.tolist()]
    document: dict[str, Any] = {
        "hash": split.hash,
        "dataset": corpus.name,
        "seed": split.seed,
        "labels_per_class": split.labels_per_class,
        "include_labeled": split.include_labeled,
        "counts": {
            "classes": len(classes),
            "images": len(names),
            "labeled": len(split.labeled),
            "unlabeled": len(split.unlabeled),
            "validation": len(split.validation),
            "skipped": len(corpus.skipped),
        },
        "classes": list(classes),
        "labeled": entries(split.labeled, split.labels),
        "validation": entries(split.validation, split.validation_labels),
        "unlabeled": said,
        "skipped": list(corpus.skipped),
        "pictures": _pictures(corpus),
    }
    try:
        content = _json(document, ascii_only=False).encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        content = _json(document, ascii_only=True).encode()
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)


def _pictures(corpus: Corpus) -> dict[str, str]:
    """Fingerprints of what is in the pictures, of a sample if they are many; wherever they lie."""
    parts = {"train": corpus.images, "test": corpus.test}
    some = {
        name: images.subset(np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(np.int64)))
        for name, images in parts.items()
        if images is not None and len(images)
    }
    return {name: fingerprint(images, times=False) for name, images in some.items()}


def _json(document: dict[str, Any], ascii_only: bool) -> str:
    """JSON with one line a field, and in a list one line an entry."""

    def value(item: Any) -> str:
        if isinstance(item, list) and item:
            return "[\n" + ",\n".join(f"    {json.dumps(entry, ensure_ascii=ascii_only)}" for entry in item) + "\n  ]"
        return json.dumps(item, ensure_ascii=ascii_only)

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {value(item)}" for key, item in document.items()) + "\n}\n"


def load_split(path: str | os.PathLike[str], corpus: Corpus) -> Split:
    """Read a saved split and find its pictures in ``corpus``; both must be as they were when it was saved."""
    saved = _read(Path(path))
    _compare_classes(saved, corpus, path)
    position = {name: i for i, name in enumerate(corpus.images.names)}
    listed = [(entry["path"], entry["label"]) for entry in saved["labeled"] + saved["validation"]]
    said = saved["unlabeled"]
    named = [name for name, _ in listed] + (said if isinstance(said, list) else [])
    gone = [name for name in named if name not in position]
    changes = _changes(saved, corpus, gone)
    if gone:
        raise UserError(_changed(corpus, changes, path))
    for name, label in listed:
        k = int(corpus.labels[position[name]])
        if k < 0 or corpus.classes[k] != label:
            now = f"now {corpus.classes[k]!r}" if k >= 0 else "now unlabeled"
            raise UserError(_changed(corpus, [f"{name} was labeled {label!r} and is {now}"], path))

    def indices(names: Iterable[str]) -> NDArray[np.int64]:
        return np.sort(np.fromiter((position[name] for name in names), np.int64))

    split = _assemble(
        corpus,
        indices(entry["path"] for entry in saved["labeled"]),
        indices(entry["path"] for entry in saved["validation"]),
        seed=saved["seed"],
        labels_per_class=saved["labels_per_class"],
        include_labeled=saved["include_labeled"],
        unlabeled=indices(said) if isinstance(said, list) else None,
    )
    if split.hash != saved["hash"]:
        raise UserError(_changed(corpus, changes or ["as many files as before, but other names"], path))
    present = _pictures(corpus)
    for name, then in saved.get("pictures", {}).items():  # older runs have no such field
        if present.get(name, then) != then:
            raise UserError(_changed(corpus, [f"{name} images: some are others, were edited, or are gone"], path))
    return split


_FIELDS: dict[str, tuple[type, ...]] = {
    "hash": (str,),
    "seed": (int,),
    "labels_per_class": (int, type(None)),
    "include_labeled": (bool,),
    "counts": (dict,),
    "classes": (list,),
    "labeled": (list,),
    "validation": (list,),
    "unlabeled": (str, list),
    "skipped": (list,),
}


def _read(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read ({(error.strerror or str(error)).lower()}).") from error
    except ValueError as error:
        raise UserError(f"{path}: not a saved split ({error}).") from error
    for name, types in _FIELDS.items():
        if not isinstance(saved, dict) or not isinstance(saved.get(name, ...), types):
            raise UserError(f"{path}: not a saved split (its field {name!r} is missing or of another kind).")
    for entry in saved["labeled"] + saved["validation"]:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("path", "label")):
            raise UserError(f"{path}: not a saved split (an entry lacks 'path' or 'label').")
    return saved


def _compare_classes(saved: dict[str, Any], corpus: Corpus, path: str | os.PathLike[str]) -> None:
    then, now = saved["classes"], list(corpus.classes)
    if then == now:
        return
    gone = [name for name in then if name not in now]
    new = [name for name in now if name not in then]
    changes = [f"class {gone[0]!r} is gone"] if gone else []
    changes += [f"class {new[0]!r} is new"] if new else []
    raise UserError(_changed(corpus, changes or ["the classes are in another order"], path))


def _changes(saved: dict[str, Any], corpus: Corpus, gone: Sequence[str]) -> list[str]:
    """What differs between then and now, as far as the saved file tells."""
    then, now = set(saved["skipped"]), set(corpus.skipped)
    broken = sorted(now - then)
    mended = sorted(then - now)
    changes = []
    if broken:
        changes.append(f"{_files(len(broken))} can't be read any more, e.g. {broken[0]}")
    if mended:
        changes.append(f"{_files(len(mended))} that could not be read can be now or went away, e.g. {mended[0]}")
    lost = [name for name in gone if name not in now]
    fewer = saved["counts"].get("images", 0) - len(corpus.images)
    # What was skipped then or now explains a part of the difference.
    unexplained = fewer - len(broken) + len(mended)
    if lost or unexplained > 0:
        count = max(len(lost), unexplained)
        changes.append(f"{_files(count)} {'is' if count == 1 else 'are'} gone" + (f", e.g. {lost[0]}" if lost else ""))
    elif unexplained < 0 and not mended:
        changes.append(f"{_files(-unexplained)} {'is' if unexplained == -1 else 'are'} new")
    return changes


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _changed(corpus: Corpus, changes: Sequence[str], path: str | os.PathLike[str]) -> str:
    return (
        f"{path}: the images of {corpus.name!r} changed since this run was started: {'; '.join(changes)}. "
        "Restore them, or start a new run."
    )
