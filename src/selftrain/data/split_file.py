"""``split.json``: a split written to disk, and read back against images that may have changed since.

Knows nothing of how a split is drawn, or of the run folder that the file lies in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from selftrain.config.schema import check
from selftrain.data.corpus import Corpus
from selftrain.data.images import fingerprint
from selftrain.data.split import Split, all_others, assemble
from selftrain.errors import UserError
from selftrain.files import parse_json, read_bytes, replacing
from selftrain.text import plural

ALL_OTHERS = "all others"
SAMPLE = 1000  # images whose contents are compared when a run is resumed


def save_split(split: Split, corpus: Corpus, path: str | os.PathLike[str], *, within: Path | None = None) -> None:
    """Write the split as readable JSON for ``load_split``. After a crash the old file is still complete.

    Unlabeled images are not listed one by one if they are simply all other images.
    """
    names, classes = corpus.images.names, corpus.classes

    def entries(indices: NDArray[np.int64], labels: NDArray[np.int64]) -> list[dict[str, str]]:
        pairs = zip(indices.tolist(), labels.tolist(), strict=True)
        return [{"path": names[i], "label": classes[k]} for i, k in pairs]

    others = all_others(len(names), split.labeled, split.validation, split.include_labeled)
    unlabeled: str | list[str] = ALL_OTHERS
    if not np.array_equal(others, split.unlabeled):
        unlabeled = [names[i] for i in split.unlabeled.tolist()]
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
            **({"junk": int(corpus.junk[split.unlabeled].sum())} if corpus.junk.any() else {}),
        },
        "classes": list(classes),
        "labeled": entries(split.labeled, split.labels),
        "validation": entries(split.validation, split.validation_labels),
        "unlabeled": unlabeled,
        "skipped": list(corpus.skipped),
        "pictures": _content(corpus),
    }
    try:
        content = _json(document, ascii_only=False).encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        content = _json(document, ascii_only=True).encode()
    with replacing(Path(path), within=within) as temporary:
        temporary.write_bytes(content)


def _content(corpus: Corpus) -> dict[str, str]:
    """Return fingerprints of the contents of the images, or of a sample of them, independent of their folder."""
    parts = {"train": corpus.images, "test": corpus.test}
    samples = {
        name: images.subset(np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(np.int64)))
        for name, images in parts.items()
        if images is not None and len(images)
    }
    return {name: fingerprint(images, times=False) for name, images in samples.items()}


def _json(document: dict[str, Any], ascii_only: bool) -> str:
    """Return JSON with one line per field, and one line per entry of a list."""

    def value(item: Any) -> str:
        if isinstance(item, list) and item:
            return "[\n" + ",\n".join(f"    {json.dumps(entry, ensure_ascii=ascii_only)}" for entry in item) + "\n  ]"
        return json.dumps(item, ensure_ascii=ascii_only)

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {value(item)}" for key, item in document.items()) + "\n}\n"


def load_split(path: str | os.PathLike[str], corpus: Corpus) -> Split:
    """Read a saved split and find its images in ``corpus``, which must not have changed since."""
    saved = _read(Path(path))
    _compare_classes(saved, corpus, path)
    position = {name: i for i, name in enumerate(corpus.images.names)}
    listed = [(entry["path"], entry["label"]) for entry in saved["labeled"] + saved["validation"]]
    unlabeled = saved["unlabeled"] if isinstance(saved["unlabeled"], list) else None
    named = [name for name, _ in listed] + (unlabeled or [])
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

    split = assemble(
        corpus,
        indices(entry["path"] for entry in saved["labeled"]),
        indices(entry["path"] for entry in saved["validation"]),
        seed=saved["seed"],
        labels_per_class=saved.get("labels_per_class"),
        include_labeled=saved["include_labeled"],
        unlabeled=None if unlabeled is None else indices(unlabeled),
    )
    if split.hash != saved["hash"]:
        raise UserError(_changed(corpus, changes or ["the number of files is the same, but their names differ"], path))
    present = _content(corpus)
    for name, then in (saved.get("pictures") or {}).items():
        if present.get(name, then) != then:
            raise UserError(_changed(corpus, [f"some {name} images were replaced, edited or removed"], path))
    return split


class _Entry(TypedDict):
    path: str
    label: str


class _Saved(TypedDict):
    """The fields of ``split.json`` that are compared or needed."""

    hash: str
    seed: int
    labels_per_class: int | None
    include_labeled: bool
    counts: dict[str, int]
    classes: list[str]
    labeled: list[_Entry]
    validation: list[_Entry]
    unlabeled: str | list[str]
    skipped: list[str]
    pictures: dict[str, str] | None
    """missing in older runs"""


def _read(path: Path) -> _Saved:
    what = f"{path}: not a saved split"
    return cast(_Saved, check(parse_json(read_bytes(path), what), _Saved, what))


def _compare_classes(saved: _Saved, corpus: Corpus, path: str | os.PathLike[str]) -> None:
    then, now = saved["classes"], list(corpus.classes)
    if then == now:
        return
    gone = [name for name in then if name not in now]
    new = [name for name in now if name not in then]
    changes = [f"class {gone[0]!r} is missing"] if gone else []
    changes += [f"class {new[0]!r} is new"] if new else []
    raise UserError(_changed(corpus, changes or ["the order of the classes changed"], path))


def _changes(saved: _Saved, corpus: Corpus, gone: Sequence[str]) -> list[str]:
    """Return the differences between then and now, as far as the saved file shows them."""
    then, now = set(saved["skipped"]), set(corpus.skipped)
    broken = sorted(now - then)
    repaired = sorted(then - now)
    changes = []
    if broken:
        changes.append(f"{plural(len(broken), 'file')} can no longer be read, e.g. {broken[0]}")
    if repaired:
        count = plural(len(repaired), "unreadable file")
        changes.append(
            f"{count} can be read now or {'was' if len(repaired) == 1 else 'were'} removed, e.g. {repaired[0]}"
        )
    lost = [name for name in gone if name not in now]
    fewer = saved["counts"].get("images", 0) - len(corpus.images)
    # Files that were skipped then or now explain a part of the difference.
    unexplained = fewer - len(broken) + len(repaired)
    if lost or unexplained > 0:
        missing = max(len(lost), unexplained)
        example = f", e.g. {lost[0]}" if lost else ""
        changes.append(f"{plural(missing, 'file')} {'is' if missing == 1 else 'are'} missing{example}")
    elif unexplained < 0 and not repaired:
        changes.append(f"{plural(-unexplained, 'file')} {'is' if unexplained == -1 else 'are'} new")
    return changes


def _changed(corpus: Corpus, changes: Sequence[str], path: str | os.PathLike[str]) -> str:
    return (
        f"{path}: the images of {corpus.name!r} have changed since this run was started: {'; '.join(changes)}. "
        "Restore them, or replace the run with `overwrite=True` instead of `resume=True`."
    )
