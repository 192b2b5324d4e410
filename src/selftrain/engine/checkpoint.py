"""Checkpoints: the state of a run as safetensors and JSON with checksums, written atomically, read without any code.

Knows nothing of what the state means. ``last.json`` holds everything but the tensors, and names their file. It is
replaced last, so that it always describes files that are complete.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selftrain.checksums import is_damaged, sealed
from selftrain.errors import UserError
from selftrain.files import DiskFullError, read_json, refuse_links, sweep_parts, write_text
from selftrain.nn.tensor_file import first_not_finite, read_tensors, write_tensors
from selftrain.nn.weights import PICKLES_ARE_SAFE, read_pickle
from selftrain.text import first_line

LAST, OLD = "last.json", "last.pt"
FORMAT = 1
TENSORS = re.compile(r"state-[0-9a-f]{8}\.safetensors")


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write the state to ``folder`` and return the path of its ``last.json``."""
    tensors: dict[str, Tensor] = {}
    content = _Packing(tensors).packed(state)
    name = f"state-{secrets.token_hex(4)}.safetensors"
    try:
        checksum = write_tensors(folder / name, tensors, within=folder.parent)
        record = {"format": FORMAT, "tensors": name, "sha256": checksum, "state": content}
        # in one line: the encoder for people takes longer than all tensors of a small network
        write_text(folder / LAST, json.dumps(sealed(record), allow_nan=False) + "\n", within=folder.parent)
    except UserError as error:
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
        room = _room(folder) if isinstance(error, DiskFullError) else ""
        raise UserError(f"{error} {room}Then pass `resume=True` to resume the run.") from None
    _remove_others(folder, name)
    return folder / LAST


def _room(folder: Path) -> str:
    with suppress(OSError):
        free = shutil.disk_usage(folder).free / 1e6
        if free < 1000:
            return f"{free:,.1f} MB are free on that disk: free some space. "
    return ""


def _remove_others(folder: Path, kept: str) -> None:
    """Remove older states, and what killed processes left."""
    sweep_parts(folder)
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != kept and (TENSORS.fullmatch(path.name) or path.name == OLD):
                path.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest state, or None if none has been written yet."""
    path = folder / LAST
    if not path.exists() and not path.is_symlink():
        return _load_old(folder)
    refuse_links(path, folder.parent)
    try:
        record = read_json(path)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise UserError(f"{path}: not a checkpoint that this version can read.")
        name = record.get("tensors")
        if is_damaged(record) or "checksum" not in record or not isinstance(name, str) or not TENSORS.fullmatch(name):
            raise UserError(f"{path}: is damaged (its checksum differs from its content).")
        tensors = read_tensors(folder / name, checksum=str(record.get("sha256")))
        state: dict[str, Any] = _unpacked(record["state"], tensors)
    except UserError as error:
        raise UserError(f"{error} {_again(folder)}") from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise not_a_checkpoint(folder, error) from None
    return state


def _load_old(folder: Path) -> dict[str, Any] | None:
    """Return the state that an earlier version wrote as a pickle, if this torch can read it without running code."""
    path = folder / OLD
    if not path.exists():
        return None
    if not PICKLES_ARE_SAFE:
        raise UserError(
            f"{path}: written by an earlier version in a format that torch {torch.__version__} cannot read safely. "
            f"Install torch 2.10 or newer to resume this run, or delete the file to start again from the first step."
        )
    try:
        state: dict[str, Any] = read_pickle(path)
    except Exception as error:  # torch raises almost any type for a damaged file
        raise not_a_checkpoint(folder, error) from None
    return state


def state_not_finite(state: Any, name: str = "") -> str:
    """Return the name of the first tensor in a tree of values that holds a number which is not finite; "" if none."""
    if isinstance(state, Tensor):
        return first_not_finite({name: state})
    items = (
        state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, (list, tuple)) else ()
    )
    found = (state_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in items)
    return next(filter(None, found), "")


def not_a_checkpoint(folder: Path, error: Exception) -> UserError:
    """Return the error for a checkpoint that is damaged or belongs to another run."""
    return UserError(f"{folder}: not a checkpoint of this run ({first_line(error)}). {_again(folder)}")


def _again(folder: Path) -> str:
    return f"Delete {folder} to start the run again from its first step."


class _Packing:
    """Turns a tree of values into JSON, with tensors set apart. A tensor that occurs twice is stored once."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors
        self._known: dict[Any, str] = {}
        self._storages: set[int] = set()

    def packed(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            return {"dict": [[key, self.packed(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self.packed(item) for item in value]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")

    def _tensor(self, value: Tensor) -> dict[str, Any]:
        value = value.detach().cpu()
        last = value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
        place = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if not value.numel() or place not in self._known:
            name = str(len(self.tensors))
            self._known[place] = name
            kept = value.contiguous()
            if kept.numel() and kept.untyped_storage().data_ptr() in self._storages:
                kept = kept.clone()  # the format has no shared memory
            self._storages.add(kept.untyped_storage().data_ptr())
            self.tensors[name] = kept
        else:
            name = self._known[place]
        return {"tensor": name, **({"channels_last": True} if last else {})}


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    content: Any = value.get(kind)
    if kind == "tensor":
        tensor = tensors[content]
        return tensor.to(memory_format=torch.channels_last) if value.get("channels_last") else tensor
    if kind == "dict":
        return {key: _unpacked(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_unpacked(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "float":
        return float(content)
    raise ValueError(f"unknown kind {kind!r}")
