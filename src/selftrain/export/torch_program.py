"""A trained model as a ``torch.export`` program, with resizing in front of the network.

Knows nothing of run folders. Crops are equal to Pillow's but for rounding in two cases: images that are at least four
times as large as the crop, and images that are much higher than wide.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from selftrain.errors import UserError
from selftrain.export.description import Description
from selftrain.export.network import Network
from selftrain.export.resample import BITS, GAP, GREY, SUPPORT
from selftrain.files import replacing
from selftrain.nn.backbones import Preprocessing
from selftrain.text import first_line

LARGEST = 1 << 14
"""longest side of an image in pixels"""


class Whole(nn.Module):
    """uint8 images (N, H, W, 3) of any size to the outputs of a network."""

    def __init__(self, network: Network, like: Preprocessing, channels: int) -> None:
        super().__init__()
        self.network, self.channels = network, channels
        shares = [like.crop] + ([like.crop * like.zoom] if like.zoom else [])
        self.crops = nn.ModuleList(CentreCrop(like.size, like.interpolation, share) for share in shares)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        pixels = images
        if self.channels == 1:
            weights = torch.tensor(GREY, dtype=torch.int32)
            pixels = ((images.int() * weights).sum(dim=3, keepdim=True) + (1 << 15)) // (1 << 16)
        pixels = pixels.permute(0, 3, 1, 2).double()
        outputs: tuple[Tensor, ...] = self.network(torch.stack([crop(pixels) for crop in self.crops], dim=1))
        return outputs


class CentreCrop(nn.Module):
    """The central square of images (N, C, H, W), resized to (N, C, size, size) as Pillow does it."""

    def __init__(self, size: int, interpolation: str, share: float) -> None:
        super().__init__()
        if interpolation not in ("bilinear", "bicubic"):
            raise UserError(f"interpolation {interpolation!r} cannot be exported to torch; bilinear and bicubic can.")
        self.size, self.interpolation, self.share = size, interpolation, share

    def forward(self, pixels: Tensor) -> Tensor:
        height, width = pixels.shape[2], pixels.shape[3]
        short = torch.minimum(_scalar(height), _scalar(width)) * self.share
        down, across = self.weights(height, short), self.weights(width, short)
        return _rounded(down @ _rounded(pixels @ across.T)).float()

    def weights(self, length: int, side: Tensor) -> Tensor:
        """Return the matrix (size, length) that reduces one axis by an integer factor and resizes it."""
        n, support = _scalar(length), SUPPORT[self.interpolation]
        low = (n - side) / 2
        high = low + side
        scale = (high - low) / self.size
        factor = torch.floor(scale / GAP).clamp(min=1)
        margin = torch.where(factor > 1, scale * (support - 0.5), scale.clamp(min=1) * support + 1)
        start = torch.floor((low - margin).clamp(min=0))
        stop = torch.minimum(torch.ceil(high + margin), n)
        most = 4 * self.size + 2 * math.ceil(4 * support + 2) + 2  # pixels that are left after the reduction
        place = torch.arange(most, dtype=torch.float64)
        first = start + place * factor
        pixel = torch.arange(length, dtype=torch.float64)
        last = torch.minimum(first + factor, stop)
        inside = (pixel >= first[:, None]) & (pixel < last[:, None])
        means = inside.double() / (last - first).clamp(min=1)[:, None]
        count = torch.ceil((stop - start) / factor)
        return self.resizing((low - start) / factor, (high - start) / factor, count, place) @ means

    def resizing(self, low: Tensor, high: Tensor, count: Tensor, place: Tensor) -> Tensor:
        """Return the matrix (size, places) that resizes the first ``count`` places."""
        scale = (high - low) / self.size
        wide = scale.clamp(min=1)
        support = wide * SUPPORT[self.interpolation]
        centre = (low + (torch.arange(self.size, dtype=torch.float64) + 0.5) * scale)[:, None]
        first = torch.floor((centre - support + 0.5).clamp(min=0))
        last = torch.minimum(torch.floor(centre + support + 0.5), count)
        x = ((place - centre + 0.5) / wide).abs()
        if self.interpolation == "bilinear":
            w = (1 - x).clamp(min=0)
        else:
            near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
            w = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
        w = torch.where((place >= first) & (place < last), w, 0.0)
        w = w / w.sum(dim=1, keepdim=True)
        whole: Tensor = torch.floor(w.abs() * 2.0**BITS + 0.5) * w.sign()
        return whole / 2.0**BITS


def _scalar(value: int) -> Tensor:
    return torch.scalar_tensor(value, dtype=torch.float64)


def _rounded(pixels: Tensor) -> Tensor:
    return torch.floor(pixels + 0.5).clamp(0, 255)


def write_program(
    path: Path, network: Network, example: Tensor, like: Preprocessing | None, channels: int, description: Description
) -> None:
    """Write a program from images, or from features, to probabilities and perhaps novelty."""
    batch = torch.export.Dim("batch", min=1, max=4096)
    if like is None:
        module: nn.Module = network
        inputs, dynamic = example, ({0: batch},)
    else:
        module = Whole(network, like, channels)
        inputs = torch.randint(256, (3, 37, 41, 3), dtype=torch.uint8)
        sides = (torch.export.Dim(name, min=2, max=LARGEST) for name in ("height", "width"))
        dynamic = (dict(enumerate((batch, *sides))),)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks of the exporter on its own internals
            program = torch.export.export(module.eval(), (inputs,), dynamic_shapes=dynamic)
            with replacing(path) as temporary, temporary.open("wb") as file:
                torch.export.save(program, file, extra_files=description.metadata())
    except UserError:
        raise
    except Exception as error:  # the exporter raises whatever it cannot trace
        raise UserError(f"this network cannot be exported with torch.export ({first_line(error)}).") from error
