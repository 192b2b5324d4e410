"""Images that a column of Parquet files names: paths relative to the file, or URLs of object stores.

Knows nothing of labels or classes. Tables may come from anybody, so a name leads to a file beside its table, or to a
store on the network, never elsewhere on this machine.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from selftrain.data.images import FileImages, Images, JoinedImages
from selftrain.data.sources.file_parts import relative_name
from selftrain.data.sources.parquet_file import opened_parquet, parts_of_group
from selftrain.data.sources.urls import REMOTE, UrlImages, is_url
from selftrain.errors import UserError

_LIKE_URL = re.compile(r"[a-z][a-z0-9+.:-]*://", re.IGNORECASE)
_ELSEWHERE = re.compile(r"^[/\\]|:|\.\.")
"""in each path that may lie outside its folder, and in some others"""
SHOWN = 200
"""characters of a name in an error"""


def named_images(files: Sequence[str], column: str) -> Images:
    """Return the images whose paths or URLs a column has, as one sequence over all files."""
    names: list[str] = []
    urls: dict[int, str] = {}
    file_of: dict[str, str] = {}
    rows_in: dict[str, list[int]] = {_folder(files[0]): []}  # of each folder; the images of stores are in ""
    for file in files:
        folder = _folder(file)
        for row, name in enumerate(_column_of_text(file, column)):
            here = f"{file}, row {row}"
            if not name or "\0" in name:
                raise UserError(f"{here}: the column {column!r} has no path ({name!r}).")
            if name in file_of:
                other = "the same image twice" if file_of[name] == file else f"an image of {file_of[name]} again"
                raise UserError(f"{here}: names {other} in the column {column!r} ({name[:SHOWN]!r}).")
            file_of[name] = file
            place = _place(name, folder, here)
            if is_url(place):
                urls[len(names)] = place
            rows_in.setdefault("" if is_url(place) else folder, []).append(len(names))
            names.append(name)
    parts: list[Images] = []
    order = [row for rows in rows_in.values() for row in rows]
    for folder, rows in rows_in.items():
        own = [names[row] for row in rows]
        if rows or len(rows_in) == 1:
            parts.append(FileImages(folder, own) if folder else UrlImages([urls[row] for row in rows], own))
    return parts[0] if len(parts) == 1 else JoinedImages(parts).subset(np.argsort(order))


def _folder(file: str) -> str:
    return file.rpartition("/")[0] if is_url(file) else str(Path(file).parent)


def _column_of_text(file: str, column: str) -> Iterator[str | None]:
    with opened_parquet(file) as opened:
        for group in range(opened.num_row_groups):
            for part in parts_of_group(opened, group, column):
                yield from part.to_pylist()


def _place(name: str, folder: str, here: str) -> str:
    """Return the path or the URL of an image; an error if a table must not name it."""
    shown = repr(name[:SHOWN])
    if _LIKE_URL.match(name) or (is_url(folder) and "::" in name):
        if "::" in name:
            raise UserError(f"{here}: {shown} has '::'. URLs with '::' are not opened.")
        if name.partition("://")[0] not in REMOTE:
            raise UserError(
                f"{here}: {shown} is not in an object store. A table may name files in its folder by relative paths, "
                f"and URLs of {', '.join(REMOTE)}."
            )
        return name
    if is_url(folder):
        plain = posixpath.normpath(name.replace("\\", "/"))
        outside = plain.startswith("/") or plain.split("/")[0] == ".."
    else:
        outside = bool(_ELSEWHERE.search(name)) and relative_name(Path(folder) / name, Path(folder)) is None
    if outside:
        raise UserError(f"{here}: {shown} lies outside {folder}. Paths must be inside the folder of the table.")
    return f"{folder}/{name}" if is_url(folder) else os.path.join(folder, name)
