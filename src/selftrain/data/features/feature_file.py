"""Files of features: a ``.npz`` file, a folder with ``features.npy`` in it, or a ``.npy`` file alone.

Knows nothing of classes, splits or training. Features stay on disk: they are memory-mapped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from selftrain.batch import kind_of
from selftrain.data.features.npy import NpzFile, map_npy
from selftrain.data.features.origin import Origin
from selftrain.data.features.rows import FeatureRows
from selftrain.errors import UserError
from selftrain.files import read_json

FEATURES, NAMES, CARD, LABELS = "features.npy", "names.json", "card.json", "y.npy"
"""files of a folder of features; all but the first may be missing"""
FEATURE_ARRAYS = ("features", "x", "X", "embeddings")
LABEL_ARRAYS = ("y", "labels")
NAME_ARRAYS = ("names", "paths")
KINDS = ("clean", "weak", "strong")


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """The content of a file of features, with the names of its rows if it has any."""

    path: Path
    rows: FeatureRows
    is_named: bool
    """whether the rows have names of their own; otherwise they are called by their numbers"""
    labels: NDArray[Any] | None
    """one label per row, if the file has labels"""

    @classmethod
    def read(cls, path: Path, what: str = "") -> FeatureFile:
        """Read a file or folder of features; ``what`` begins errors, before the path."""
        if path.is_dir():
            return cls._read_folder(path)
        if path.suffix == ".npz":
            return cls._read_npz(path)
        if path.suffix != ".npy":
            raise UserError(f"{what}{path}: expected features: a .npz or .npy file, or a folder with {FEATURES} in it.")
        if is_zipfile(path):
            raise UserError(f"{path}: this is an .npz file with several arrays; call it {path.stem}.npz.")
        return cls._made(path, map_npy(path), None, None, None, None)

    @classmethod
    def _read_npz(cls, path: Path) -> FeatureFile:
        file = NpzFile(path)
        key = file.first_of(FEATURE_ARRAYS) or (file.names[0] if len(file.names) == 1 else None)
        if key is None:
            found = ", ".join(file.names[:8]) or "none"
            raise UserError(f"{path}: no array is called 'features' (arrays: {found}).")
        names, views, labels = (file.first_of(keys) for keys in (NAME_ARRAYS, ("views",), LABEL_ARRAYS))
        card = _card_of(file["card"]) if "card" in file.names else None
        return cls._made(
            path,
            file[key],
            None if names is None else _texts(file[names], f"{path}, array {names!r}"),
            None if views is None else _texts(file[views], f"{path}, array 'views'"),
            None if labels is None else np.asarray(file[labels]),
            card,
        )

    @classmethod
    def _read_folder(cls, path: Path) -> FeatureFile:
        card = read_json(path / CARD) if (path / CARD).exists() else None
        names = read_json(path / NAMES) if (path / NAMES).exists() else None
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f"{path / NAMES}: expected a list of names.")
        views = card.get("views") if isinstance(card, dict) else None
        if views is not None and not (isinstance(views, list) and all(isinstance(view, str) for view in views)):
            raise UserError(f"{path / CARD}: 'views' must be a list of names.")
        labels = np.asarray(map_npy(path / LABELS)) if (path / LABELS).exists() else None
        return cls._made(path, map_npy(path / FEATURES), names, views, labels, card)

    @classmethod
    def _made(
        cls,
        path: Path,
        values: NDArray[Any],
        names: list[str] | None,
        views: Sequence[str] | None,
        labels: NDArray[Any] | None,
        card: Any,
    ) -> FeatureFile:
        if not values.ndim:
            raise UserError(f"{path}: expected rows of features, got a single {values.dtype}.")
        if names is not None:
            _check_names(names, len(values), path)
        if labels is not None and labels.shape != (len(values),):
            raise UserError(f"{path}: {len(values)} rows, but labels of shape {labels.shape}; give one label per row.")
        if views is not None:
            _check_views(views, values.shape, path)
        rows = FeatureRows(values, names, views=views, origin=Origin.parse(card), what=str(path))
        return cls(path, rows, names is not None, labels)


def is_feature_path(text: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of features: a ``.npz`` or ``.npy`` file, or a folder that holds some."""
    path = Path(text)
    if path.suffix in (".npz", ".npy"):
        return path.is_file()
    return (path / FEATURES).is_file()


def _check_names(names: Sequence[str], rows: int, path: Path) -> None:
    if len(names) != rows:
        raise UserError(f"{path}: {len(names)} names for {rows} rows; give one name per row.")
    if len(set(names)) == rows:
        return
    seen: set[str] = set()
    twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    raise UserError(f"{path}: the name {twice!r} occurs twice; each row needs a unique name.")


def _check_views(views: Sequence[str], shape: tuple[int, ...], path: Path) -> None:
    count = shape[1] if len(shape) == 3 else 1
    if len(views) != count:
        raise UserError(f"{path}: {len(views)} names of views for {count} views of features (shape {shape}).")
    wrong = next((view for view in views if kind_of(view) not in KINDS), None)
    if wrong is not None or views[0] != "clean" or len(set(views)) != count:
        raise UserError(
            f"{path}: views must be 'clean', then 'weak_1', ..., 'strong_1', ...; found {', '.join(views)}."
        )


def _texts(array: NDArray[Any], what: str) -> list[str]:
    """Return an array of text, or of numbers that serve as names, as a list of text."""
    if array.ndim != 1 or array.dtype.kind not in "USiu":
        raise UserError(f"{what}: expected one text per entry, got {array.dtype} of shape {array.shape}.")
    if array.dtype.kind == "S":
        return [value.decode("utf-8", "surrogateescape") for value in array.tolist()]
    return [str(value) for value in array.tolist()]


def _card_of(array: NDArray[Any]) -> Any:
    """Return the card of a ``.npz`` file, which is JSON in an array of text; None if it is something else."""
    if array.dtype.kind != "U" or array.size != 1:
        return None
    try:
        return json.loads(str(array.reshape(-1)[0]))
    except ValueError:
        return None
