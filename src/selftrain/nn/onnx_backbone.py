"""A backbone in an ONNX file, run by onnxruntime: its weights are the bytes of the file, and it cannot be trained.

Knows nothing of images or of what the network is. The bytes are a buffer of the module, so that a model keeps them, and
only what ``onnx_file`` lets through is run.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selftrain.errors import UserError
from selftrain.files import expanded
from selftrain.nn.onnx_file import check_onnx, read_onnx
from selftrain.nn.preprocessing import Preprocessing
from selftrain.regular_files import open_regular
from selftrain.text import first_line, plural

SUFFIXES = (".onnx", ".pt2")
OWN_SIZE = 224
"""side of the images of a network that takes any size"""
NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "unit": ((0.0,) * 3, (1.0,) * 3),
    "bytes": ((0.0,) * 3, (1 / 255,) * 3),
}


def is_file_backbone(name: str) -> bool:
    """Return whether a backbone is named by a file."""
    return name.lower().endswith(SUFFIXES)


def pixel_statistics(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of pixels from 0 to 1, by name or as six numbers."""
    if text in NORMALISATIONS:
        return NORMALISATIONS[text]
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != 6 or not all(np.isfinite(numbers)) or not all(std > 0 for std in numbers[3:]):
        names = ", ".join(NORMALISATIONS)
        raise UserError(
            f"network.pixels={text}: expected {names}, or the means and standard deviations of red, green and blue, "
            f"from 0 to 1, such as 0.485,0.456,0.406,0.229,0.224,0.225."
        )
    return numbers[:3], numbers[3:]


class OnnxBackbone(nn.Module):
    """Normalised images (B, 3, H, W) -> features (B, dim), without a gradient.

    A map of features (B, dim, h, w) is averaged over its places. Of several outputs, the first counts.
    """

    content: Tensor

    def __init__(self, content: bytes = b"") -> None:
        super().__init__()
        self.register_buffer("content", torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else
                             torch.zeros(0, dtype=torch.uint8))  # fmt: skip
        self._session: Any = None

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *more: Any) -> None:
        if isinstance(saved := state_dict.get(f"{prefix}content"), Tensor):
            self.content = torch.empty_like(saved, device=self.content.device)
            self._session = None
        super()._load_from_state_dict(state_dict, prefix, *more)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxBackbone:
        return OnnxBackbone(self._bytes())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a session cannot be pickled

    @property
    def session(self) -> Any:
        """The loaded network."""
        if self._session is None:
            content = self._bytes()
            check_onnx(content, "the backbone")
            self._session = _session(content)
        return self._session

    def _bytes(self) -> bytes:
        return self.content.cpu().numpy().tobytes()

    def forward(self, x: Tensor) -> Tensor:
        given = self.session.get_inputs()[0]
        kind = np.float16 if "float16" in given.type else np.float32
        pixels = np.ascontiguousarray(x.detach().float().cpu().numpy().astype(kind, copy=False))
        batch = given.shape[0] if isinstance(given.shape[0], int) else len(pixels)
        name, output = given.name, self.session.get_outputs()[0].name
        parts = []
        for start in range(0, len(pixels), max(1, batch)):
            part = pixels[start : start + batch]
            filled = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
            parts.append(self.session.run([output], {name: filled})[0][: len(part)])
        features = torch.from_numpy(np.concatenate(parts)).float().to(x.device)
        return features.mean(dim=(2, 3)) if features.ndim == 4 else features

    def extra_repr(self) -> str:
        return plural(len(self.content), "byte")


def _session(content: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError('onnxruntime is not installed. Run pip install "selftrain[onnx]".') from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # several threads share the cores
    options.log_severity_level = 3
    # Without the fallback to other providers, which prints to the standard output.
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def side_of_file(name: str) -> int:
    """Return the side of the images that the network in a file takes."""
    return open_backbone(name, "imagenet", None)[2].size


def open_backbone(name: str, pixels: str, size: int | None) -> tuple[OnnxBackbone, int, Preprocessing]:
    """Return the network in a file, the width of its features, and how it expects its images.

    ``name`` is the path, ``pixels`` as in ``pixel_statistics`` and ``size`` the side that was asked for, if any.
    """
    path = expanded(name)
    if not path.is_file():
        raise UserError(f"backbone {name!r}: there is no such file.")
    net = OnnxBackbone(read_onnx(path) if path.suffix.lower() == ".onnx" else _converted(path))
    try:
        session = net.session
    except UserError:
        raise
    except Exception as error:  # onnxruntime has a type of its own for each reason
        raise UserError(f"backbone {name!r}: onnxruntime cannot load it ({first_line(error)}).") from None
    side = _side(session, name, size)
    mean, std = pixel_statistics(pixels)
    return net, _dim(net, name, side), Preprocessing(mean, std, side, "bicubic")


def _side(session: Any, name: str, size: int | None) -> int:
    """Return the side of the images, which the network may fix."""
    inputs = session.get_inputs()
    shape = list(inputs[0].shape)
    if len(inputs) != 1 or len(shape) != 4 or (shape[1] not in (3, None) and not isinstance(shape[1], str)):
        found = "; ".join(f"{one.name} {one.shape}" for one in inputs)
        raise UserError(f"backbone {name!r}: expected one input of shape (batch, 3, height, width), found {found}.")
    if inputs[0].type not in ("tensor(float)", "tensor(float16)"):
        raise UserError(f"backbone {name!r}: expected an input of floating point numbers, found {inputs[0].type}.")
    fixed = {side for side in shape[2:] if isinstance(side, int)}
    if len(fixed) > 1:
        raise UserError(f"backbone {name!r}: it takes images of {shape[3]} x {shape[2]} pixels; they must be square.")
    if fixed and size not in (None, *fixed):
        raise UserError(f"`size={size}`: backbone {name!r} takes images of {fixed.pop()} px only.")
    return fixed.pop() if fixed else size or OWN_SIZE


def _dim(net: OnnxBackbone, name: str, side: int) -> int:
    """Return the width of the features, measured on noise: a network may answer with anything."""
    noise = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    try:
        features = net(noise)
    except Exception as error:
        raise UserError(
            f"backbone {name!r}: it cannot run on images of {side} px ({first_line(error)}). Choose another `size`."
        ) from None
    if features.ndim != 2:
        raise UserError(
            f"backbone {name!r}: its first output has the shape {tuple(features.shape)} for 2 images; expected "
            f"features (2, d) or a map of them (2, d, height, width). Its first output must be pooled features."
        )
    if not features.isfinite().all():
        raise UserError(f"backbone {name!r}: its features of random noise are not finite.")
    return int(features.shape[1])


def _converted(path: Path) -> bytes:
    """Return a program of ``torch.export`` as ONNX. Loading such a program can run code: it must be the user's own."""
    try:
        with open_regular(path) as file, tempfile.TemporaryDirectory() as folder:
            with warnings.catch_warnings():  # torch 2.11 reads its tensors from a buffer that it does not write to
                warnings.filterwarnings("ignore", message="The given buffer is not writable")
                program = torch.export.load(file)
            target = Path(folder, "backbone.onnx")
            torch.onnx.export(program, (), str(target), dynamo=True, external_data=False, verbose=False)
            return read_onnx(target)
    except ImportError:
        raise UserError(f'backbone {str(path)!r}: install what reads it: pip install "selftrain[export]".') from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"backbone {str(path)!r}: cannot be read as a torch.export program ({first_line(error)})."
        ) from None
