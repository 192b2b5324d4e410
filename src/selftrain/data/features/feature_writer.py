"""Write features to a ``.npz`` file or to a folder: piece by piece, and completely or not at all.

Knows nothing of images or backbones. What is written, ``feature_file`` reads.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from selftrain.data.features.feature_file import CARD, FEATURES, NAMES
from selftrain.data.features.joined import JoinedFeatures
from selftrain.data.features.stored import StoredFeatures
from selftrain.errors import UserError
from selftrain.files import cannot_write, check_writable, replacing, write_json

CHUNK = 1 << 24
"""bytes that are copied at once"""

Progress = Callable[[int], object]


def check_output(output: Path) -> None:
    """Raise a UserError if features cannot be written there; a ``.npz`` file may exist, a folder may not."""
    if output.suffix == ".npz":
        check_writable(output)
        return
    if output.suffix or not output.name:
        name = output.stem or "features"
        raise UserError(
            f"`output` {output}: features are written to a .npz file or to a folder; call it {name}.npz, or {name}."
        )
    try:
        taken = output.is_symlink() or (bool(list(output.iterdir())) if output.is_dir() else output.exists())
    except OSError as error:
        raise cannot_write(output, error) from None
    if taken:
        raise UserError(f"`output` {output}: exists already. Delete it, or choose another folder.")
    check_writable(output / FEATURES)


def write_features(
    output: Path,
    features: NDArray[Any] | JoinedFeatures | StoredFeatures,
    names: Sequence[str],
    card: dict[str, Any],
    *,
    dtype: str,
    progress: Progress,
) -> None:
    """Write features (n, views, dim); those with one view become an array (n, dim).

    ``card`` tells where the features come from, with the names of the ``views``. ``progress`` gets the rows written.
    """
    if output.suffix == ".npz":
        with replacing(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as file:
            with file.open(zipfile.ZipInfo(FEATURES), "w", force_zip64=True) as member:
                _write_array(member, features, dtype, progress)
            _add(file, "names", np.array(names, dtype=np.str_))
            _add(file, "views", np.array(card["views"], dtype=np.str_))
            _add(file, "card", np.array(json.dumps(card)))
        return
    with _new_folder(output) as folder:
        with (folder / FEATURES).open("wb") as array:
            _write_array(array, features, dtype, progress)
            array.flush()
            os.fsync(array.fileno())
        with replacing(folder / NAMES) as temporary:
            temporary.write_text("[\n" + ",\n".join(map(json.dumps, names)) + "\n]\n", encoding="utf-8")
        write_json(folder / CARD, card)


def _write_array(
    file: IO[bytes], features: NDArray[Any] | JoinedFeatures | StoredFeatures, dtype: str, progress: Progress
) -> None:
    """Write an array as numpy.save does, one piece after the other."""
    n, views, dim = features.shape
    shape = (n, dim) if views == 1 else (n, views, dim)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    rows = max(1, CHUNK // (views * dim * np.dtype(dtype).itemsize))
    for start in range(0, n, rows):
        file.write(np.asarray(features[start : start + rows], dtype).tobytes())
        progress(min(start + rows, n))


def _add(file: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with file.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` at the end, or is deleted if anything fails."""
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
