"""Hugging Face datasets (``hf:name``) as a corpus: columns are found by type, rows stay in memory-mapped files.

Knows nothing of splits for training. Needs the package ``datasets`` (the extra ``hf``), imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selftrain.data.corpus import Corpus
from selftrain.data.images import EncodedImages, Images, JoinedImages
from selftrain.data.images.content import Digests, digest, digests, marks_inside, unknown
from selftrain.errors import UserError, nearest
from selftrain.network_access import is_offline

__all__ = ["HubImages", "HubName", "hub_images", "is_hub", "load_hub", "open_hub"]

PREFIX = "hf:"
TRAIN, UNLABELED, HELD_OUT = "train", "unlabeled", ("test", "validation", "valid", "val")
USUAL_LABELS = ("label", "labels")
HUB_TIMEOUT = 5.0  # seconds until the hub counts as unreachable


def is_hub(text: str) -> bool:
    """Return whether text names a dataset on Hugging Face."""
    return text.startswith(PREFIX)


@dataclass(frozen=True)
class HubName:
    """``hf:owner/name/config@split,image=COLUMN,label=COLUMN`` in its parts."""

    text: str
    path: str
    """a name on the hub, with owner and configuration, or a local folder"""
    split: str | None
    columns: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> HubName:
        rest, *options = text.removeprefix(PREFIX).split(",")
        path, _, split = rest.partition("@")
        columns = {}
        for option in options:
            kind, equals, column = option.partition("=")
            if kind not in ("image", "label") or not equals or not column:
                raise UserError(f"{text}: after a comma write image=COLUMN or label=COLUMN, not {option!r}.")
            columns[kind] = column
        if not path:
            raise UserError(f"{text}: write hf:NAME, such as hf:beans, or hf:FOLDER.")
        return cls(text, path, split or None, columns)

    @property
    def is_local(self) -> bool:
        return os.path.isdir(self.path)

    def absolute(self) -> str:
        """Return text that means the same from any working directory."""
        if not self.is_local:
            return self.text
        return PREFIX + os.path.abspath(self.path) + self.text.removeprefix(PREFIX + self.path)


def load_hub(text: str) -> Corpus:
    """Return the corpus that ``hf:...`` names. Of several splits ``train`` is the pool and ``test`` the test set."""
    name = HubName.parse(text)
    splits = open_hub(name)
    pool_split = _pool_split(splits, name)
    pool = splits[pool_split]
    image = _image_column(pool.features, name)
    label = _label_column(pool.features, name, image)
    classes, labels = _labels(pool, label, name)
    images: Images = HubImages(pool, image, pool_split)
    if name.split is None and pool_split != UNLABELED and UNLABELED in splits and image in splits[UNLABELED].features:
        images = JoinedImages([images, HubImages(splits[UNLABELED], image, UNLABELED)])
        labels = np.concatenate([labels, np.full(len(images) - len(labels), -1, np.int64)])
    test: Images | None = None
    test_labels = None
    for held in HELD_OUT:
        if held in splits and held != pool_split and {image, label} <= set(splits[held].features):
            found = _positions(splits[held], label, classes, name)
            if len(found) and (found >= 0).all():  # some test sets have secret labels
                test, test_labels = HubImages(splits[held], image, held), found
                break
    return Corpus(
        name=Path(name.path).name,
        classes=classes,
        images=images,
        labels=labels,
        truth=labels,
        test=test,
        test_labels=test_labels,
        is_benchmark=bool((labels[: len(pool)] >= 0).all()),
    )


def hub_images(text: str) -> HubImages:
    """Return the images without their labels; without ``@SPLIT`` those of the split ``unlabeled`` if it exists."""
    name = HubName.parse(text)
    splits = open_hub(name)
    split = UNLABELED if name.split is None and UNLABELED in splits else _pool_split(splits, name)
    return HubImages(splits[split], _image_column(splits[split].features, name), split)


def _pool_split(splits: Mapping[str, Any], name: HubName) -> str:
    chosen = name.split or (TRAIN if TRAIN in splits else next(iter(splits)))
    if chosen not in splits:
        raise UserError(f"{name.text}: no split {chosen!r} (the splits are {', '.join(splits)}).")
    if name.split is None and chosen != TRAIN and len(splits) > 1:
        raise UserError(f"{name.text}: no split 'train' (the splits are {', '.join(splits)}); choose one with @SPLIT.")
    return chosen


# --- opening -----------------------------------------------------------------------------------------------------


def open_hub(name: HubName) -> dict[str, Any]:
    """Return every split by name; downloads what is not in the cache of ``datasets``."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{name.text}: needs the package 'datasets'; run pip install 'selftrain[hf]'.") from None
    try:
        if name.is_local:
            saved = [file for file in ("dataset_dict.json", "state.json") if Path(name.path, file).exists()]
            found = datasets.load_from_disk(name.path) if saved else datasets.load_dataset(name.path)
        else:
            with _offline_if_unreachable(datasets.config):
                found = _from_hub(datasets, name.path)
    except UserError:
        raise
    except Exception as error:  # ConnectionError, DatasetNotFoundError, ValueError, httpx errors, ...
        raise UserError(f"{name.text}: {_reason(error, name)}") from error
    return {str(split): table for split, table in found.items()} if isinstance(found, dict) else {TRAIN: found}


@contextmanager
def _offline_if_unreachable(config: Any) -> Iterator[None]:
    """Without a network, use the cache or fail at once; the hub's own client would retry for a minute."""
    before = config.HF_HUB_OFFLINE
    try:
        config.HF_HUB_OFFLINE = before or not _reachable()
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _reachable() -> bool:
    from huggingface_hub import constants, get_session

    if is_offline():
        return False
    try:
        return bool(get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT).status_code < 500)
    except Exception:  # httpx, requests and the hub each raise their own exceptions
        return False


def _from_hub(datasets: Any, path: str) -> Any:
    parts = path.split("/")
    if len(parts) > 3:
        raise UserError(f"hf:{path}: the folder does not exist, and a name has at most three parts, owner/name/config.")
    if len(parts) == 3:
        return datasets.load_dataset("/".join(parts[:2]), parts[2])
    try:
        return datasets.load_dataset(path)
    except datasets.exceptions.DatasetNotFoundError:
        if len(parts) == 1:
            raise
        return datasets.load_dataset(*parts)  # name/config of a dataset without an owner


def _reason(error: Exception, name: HubName) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, ConnectionError) or "connect" in text.lower() or "offline" in text.lower():
        return (
            f"Hugging Face cannot be reached ({text[:200]}). Without a network, save the dataset elsewhere with "
            f"datasets.load_dataset(...).save_to_disk(FOLDER), and use hf:FOLDER."
        )
    if type(error).__name__ == "DatasetNotFoundError" or isinstance(error, FileNotFoundError):
        return f"neither a dataset nor a folder of this name exists ({text[:200]})."
    if "config" in text.lower():
        return f"{text[:300]}. Add the configuration to the name: hf:{name.path}/CONFIG."
    return f"cannot be opened ({text[:300]})."


# --- columns -----------------------------------------------------------------------------------------------------


def _image_column(features: Mapping[str, Any], name: HubName) -> str:
    found = [column for column, kind in features.items() if type(kind).__name__ == "Image"]
    chosen = name.columns.get("image")
    if chosen is not None:
        if chosen not in found:
            raise UserError(f"{name.text}: {chosen!r} is not an image column ({_columns(features)}).")
        return chosen
    if not found:
        raise UserError(f"{name.text}: no image column ({_columns(features)}).")
    if len(found) > 1:
        raise UserError(f"{name.text}: several image columns ({', '.join(found)}); choose one with ,image=COLUMN.")
    return found[0]


def _label_column(features: Mapping[str, Any], name: HubName, image: str) -> str:
    chosen = name.columns.get("label")
    if chosen is not None:
        if chosen not in features or chosen == image:
            raise UserError(
                f"{name.text}: {chosen!r} is not a label column ({_columns(features)}).{nearest(chosen, features)}"
            )
        return chosen
    classes = [column for column, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    plain = [column for column in USUAL_LABELS if type(features.get(column)).__name__ == "Value"]
    found = [column for column in classes if column in USUAL_LABELS] or classes or plain
    if not found:
        raise UserError(f"{name.text}: no label column ({_columns(features)}); choose one with ,label=COLUMN.")
    if len(found) > 1:
        raise UserError(f"{name.text}: several label columns ({', '.join(found)}); choose one with ,label=COLUMN.")
    return found[0]


def _columns(features: Mapping[str, Any]) -> str:
    kinds = {column: getattr(kind, "dtype", None) for column, kind in features.items()}
    described = (
        f"{column} is {kind if type(features[column]).__name__ == 'Value' else type(features[column]).__name__}"
        for column, kind in kinds.items()
    )
    return ", ".join(described) or "it has no columns"


def _values(table: Any, column: str) -> list[Any]:
    """Return one column, without decoding any image."""
    return list(table.select_columns([column]).with_format(None)[:][column])


def _labels(table: Any, column: str, name: HubName) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    kind = table.features[column]
    if type(kind).__name__ == "ClassLabel":
        classes = tuple(str(text) for text in kind.names)
    else:
        known = {value for value in _values(table, column) if not _unknown(value)}
        if not all(isinstance(value, (str, int)) for value in known) or len({type(value) for value in known}) > 1:
            raise UserError(f"{name.text}: the column {column!r} does not contain labels ({_columns(table.features)}).")
        classes = tuple(str(value) for value in sorted(known))
    if len(classes) < 2:
        found = f"only one class ({classes[0]})" if classes else "no label"
        raise UserError(f"{name.text}: {found} in {column!r}; at least two classes are needed.")
    return classes, _positions(table, column, classes, name)


def _unknown(value: Any) -> bool:
    return value is None or value in (-1, "")


def _positions(table: Any, column: str, classes: Sequence[str], name: HubName) -> NDArray[np.int64]:
    values = _values(table, column)
    if type(table.features[column]).__name__ == "ClassLabel":
        return np.array([-1 if value is None else int(value) for value in values], np.int64)
    position = {text: k for k, text in enumerate(classes)}
    other = next((value for value in values if not _unknown(value) and str(value) not in position), None)
    if other is not None:
        raise UserError(f"{name.text}: {other!r} in {column!r} is not a class of the training split.")
    return np.array([-1 if _unknown(value) else position[str(value)] for value in values], np.int64)


# --- images ------------------------------------------------------------------------------------------------------


class HubImages(EncodedImages):
    """A column of images, read from memory-mapped files on demand. Names are ``train/0000017``."""

    def __init__(self, table: Any, column: str, split: str) -> None:
        import datasets

        self.table = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        self.column = column
        self.rows = np.arange(len(table))
        self.names = [f"{split}/{i:07d}" for i in range(len(table))]

    def source(self, i: int) -> str | bytes:
        value = self.table[int(self.rows[i])][self.column] or {"bytes": b"", "path": None}
        content: bytes | None = value["bytes"]
        return str(value["path"]) if content is None else content

    def subset(self, indices: ArrayLike) -> HubImages:
        positions = self._positions(indices)
        chosen = HubImages.__new__(HubImages)
        chosen.table, chosen.column = self.table, self.column
        chosen.rows = self.rows[positions]
        chosen.names = [self.names[i] for i in positions.tolist()]
        return chosen

    @property
    def home(self) -> str:
        return "datasets of Hugging Face"

    def marks(self) -> Digests:
        first = self.table[int(self.rows[0])][self.column] if len(self) else None
        if not first or first["bytes"] is None:
            return unknown(len(self))  # files elsewhere, which may change
        whole = digests([digest(f"{self.table._fingerprint}\0{self.column}".encode())])
        return marks_inside(np.repeat(whole, len(self), axis=0), self.rows)

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        yield f"{self.table._fingerprint}\0{self.column}".encode()
        yield self.rows.tobytes()
