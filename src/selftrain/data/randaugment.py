"""The 14 operations of RandAugment on whole batches, each sample with its own operation and strength.

Knows nothing of how operations are drawn. Holds no state and draws no random number.

The pool, the ranges and the results are those of ``torchvision.transforms.v2.RandAugment`` on uint8 tensors (nearest
neighbour, black outside). Samples are grouped by kernel. A kernel gets a group of pictures, their operations (positions
in ``OPERATIONS``) and their strengths: the level on torchvision's scale of 31 bins divided by 30, with the sign drawn.
Operations without a sign take its absolute value.

No sample may depend on its neighbours, not even by rounding: sums are over whole numbers, and products and sums are
separate instructions (a fused one rounds differently in a vector and in its remainder).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

Kernel = Callable[[Tensor, np.ndarray, np.ndarray], Tensor]

# How many values (pixels times channels) are worked on at a time on a CPU. A block is a few MiB, so that its copies are
# memory used again and not pages asked from the system anew; a chunk has temporaries of up to 8 bytes a value.
CPU_BLOCK = 2**22
CPU_CHUNK = 2**20


def apply_operations(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    """Apply ``operation[:, 0]``, then ``operation[:, 1]``, ... to uint8 images (n, C, H, W); a new tensor."""
    output = torch.empty_like(images, memory_format=torch.contiguous_format)
    for rows in spans(images, 0, len(images), CPU_BLOCK):
        _apply_to_block(images[rows], operation[rows], strength[rows], output[rows])
    return output


def _apply_to_block(images: Tensor, operation: np.ndarray, strength: np.ndarray, output: Tensor) -> None:
    row_of = np.arange(len(images))  # where each sample lies
    for slot in range(operation.shape[1]):
        group = _GROUP_OF[operation[:, slot]]
        order = np.argsort(group, kind="stable")  # the samples of one kernel lie together: slices, no scattered writes
        images, row_of = images.index_select(0, to_device(row_of[order], images.device)), np.argsort(order)
        ends = np.searchsorted(group[order], range(len(_GROUPS) + 1)).tolist()
        for kernel, (start, end) in zip(_GROUPS, pairwise(ends), strict=True):
            for rows in spans(images, start, end, CPU_CHUNK):
                images[rows] = kernel(images[rows], operation[order[rows], slot], strength[order[rows], slot])
    torch.index_select(images, 0, to_device(row_of, images.device), out=output)


def spans(images: Tensor, start: int, end: int, values: int) -> list[slice]:
    """Rows ``start`` to ``end`` in parts of at most so many values on a CPU; in one part elsewhere."""
    size = values // images.shape[1:].numel() if images.device.type == "cpu" else end - start
    return [slice(first, min(first + max(1, size), end)) for first in range(start, end, max(1, size))]


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A small host array as a tensor, without waiting for the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def pick(images: Tensor, source: Tensor) -> Tensor:
    """Pixels of all channels at the flat positions ``source`` (n, H, W), as (n, C, H, W)."""
    n, height, width = source.shape
    pixels = images.flatten(2)
    index = source.reshape(n, 1, height * width).expand(-1, pixels.shape[1], -1)
    return pixels.gather(2, index).reshape(n, -1, height, width)


def _per_sample(values: np.ndarray, images: Tensor, dimensions: int = 4) -> Tensor:
    """One float32 a sample, shaped to stretch over the other dimensions."""
    return to_device(values.astype(np.float32), images.device).reshape(-1, *[1] * (dimensions - 1))


# Geometry: where does each pixel come from?


def _geometric(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    """ShearX/Y about the upper left corner, TranslateX/Y by whole pixels, Rotate about the middle."""
    n, channels, height, width = images.shape

    def strength_of(name: str) -> np.ndarray:
        return np.where(operation == OPERATIONS.index(name), strength, 0.0)

    shear_x, shear_y = 0.3 * strength_of("ShearX"), 0.3 * strength_of("ShearY")
    shift_x = np.trunc(150 / 331 * width * strength_of("TranslateX"))
    shift_y = np.trunc(150 / 331 * height * strength_of("TranslateY"))
    angle = np.radians(30 * strength_of("Rotate"))
    # Measured from the middle, pixel (x, y) shows (cos x + (shear_x - sin) y + x0, (sin + shear_y) x + cos y + y0).
    x0, y0 = shear_x * height / 2 - shift_x, shear_y * width / 2 - shift_y
    x, y = np.arange(width) - (width - 1) / 2, np.arange(height) - (height - 1) / 2
    source_x = _plane(np.outer(shear_x - np.sin(angle), y), np.outer(np.cos(angle), x), x0, width, images)
    source_y = _plane(np.outer(np.cos(angle), y), np.outer(np.sin(angle) + shear_y, x), y0, height, images)
    framed = images.new_zeros(n, channels, height + 2, width + 2)
    framed[..., 1:-1, 1:-1] = images
    return pick(framed, source_y.mul_(width + 2).add_(source_x).int().long())  # straight to long is slower


def _plane(rows: np.ndarray, columns: np.ndarray, origin: np.ndarray, side: int, images: Tensor) -> Tensor:
    """rows (n, H) + columns (n, W) + origin (n,), rounded to pixels of a picture with a black frame one pixel wide."""
    rows = rows + (origin + (side - 1) / 2 + 1.5)[:, None]  # from the middle to the corner, the frame, half to round
    down, across = (to_device(part.astype(np.float32), images.device) for part in (rows, columns))
    return (down[:, :, None] + across[:, None, :]).clamp_(0, side + 1).floor_()


# Colour of a pixel and its neighbours.


def _grey(images: Tensor) -> Tensor:
    """Luminance in whole numbers as float32, (n, 1, H, W)."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.split(1, dim=1)
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114).floor_()


def _color(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    if images.shape[1] == 1:
        return images
    grey = _grey(images) * _per_sample(-0.9 * strength, images)
    return (images * _per_sample(1 + 0.9 * strength, images)).add_(grey).clamp_(0, 255).short()


def _sharpness(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    wide = images.short()
    three = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    nine = three[..., :-2] + three[..., 1:-1] + three[..., 2:]
    inner = wide[..., 1:-1, 1:-1].float()
    blurred = nine.add_(wide[..., 1:-1, 1:-1], alpha=4).float().div_(13).round_()  # in the middle 5, else 1: no ties
    sharper = blurred.sub_(inner).mul_(_per_sample(-0.9 * strength, images)).add_(inner).clamp_(0, 255)
    wide[..., 1:-1, 1:-1] = sharper  # the border keeps its values
    return wide


def _posterize(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    dropped = np.round(4 * np.abs(strength)).astype(np.int64)  # 0 to 4 bits
    kept = (256 - 2**dropped).astype(np.uint8)
    return images & to_device(kept, images.device)[:, None, None, None]


def _solarize(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    threshold = np.ceil(255 * (1 - np.abs(strength))).astype(np.uint8)
    inverted = images >= to_device(threshold, images.device)[:, None, None, None]
    return images ^ inverted.to(torch.uint8).mul_(255)


# Operations on single grey levels: a table of 256 entries, one a sample or one a sample and channel.


def _by_table(table: Callable[[Tensor, np.ndarray], Tensor]) -> Kernel:
    def kernel(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
        entries = table(images, strength).to(torch.uint8).expand(-1, images.shape[1], -1)
        return entries.gather(2, images.flatten(2).long()).reshape(images.shape)

    return kernel


def _levels(images: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.float32, device=images.device)


def _brightness(images: Tensor, strength: np.ndarray) -> Tensor:
    return (_levels(images) * _per_sample(1 + 0.9 * strength, images, 3)).clamp_(0, 255)


def _contrast(images: Tensor, strength: np.ndarray) -> Tensor:
    total = _grey(images).sum(-1).double().sum(-1, keepdim=True)  # exact: whole numbers below 2^24, then below 2^53
    mean = (total / images[0, 0].numel()).float() * _per_sample(-0.9 * strength, images, 3)
    return (_levels(images) * _per_sample(1 + 0.9 * strength, images, 3)).add_(mean).clamp_(0, 255)


def _autocontrast(images: Tensor, strength: np.ndarray) -> Tensor:
    pixels = images.flatten(2)
    low, high = pixels.amin(-1, keepdim=True).float(), pixels.amax(-1, keepdim=True).float()
    constant = high == low
    scale = torch.where(constant, 1.0, (high - low) * (1 / 255))
    return ((_levels(images) - torch.where(constant, 0.0, low)) / scale).clamp_(0, 255)


def _equalize(images: Tensor, strength: np.ndarray) -> Tensor:
    pixels = images.flatten(2)
    brightest = pixels.amax(-1, keepdim=True).long()
    pixels = pixels.long()
    counts = pixels.new_zeros(*pixels.shape[:2], 256).scatter_add_(2, pixels, torch.ones_like(pixels))
    step = (pixels.shape[2] - counts.gather(2, brightest)) // 255
    darker = counts.cumsum(-1) - counts
    equal = ((darker + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    return torch.where(step == 0, torch.arange(256, device=images.device), equal)


_KERNELS: dict[str, Kernel | None] = {
    "Identity": None,
    "ShearX": _geometric,
    "ShearY": _geometric,
    "TranslateX": _geometric,
    "TranslateY": _geometric,
    "Rotate": _geometric,
    "Brightness": _by_table(_brightness),
    "Color": _color,
    "Contrast": _by_table(_contrast),
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _by_table(_autocontrast),
    "Equalize": _by_table(_equalize),
}
OPERATIONS = tuple(_KERNELS)

_GROUPS = [kernel for kernel in dict.fromkeys(_KERNELS.values()) if kernel is not None]
_GROUP_OF = np.array([_GROUPS.index(k) if (k := _KERNELS[name]) else len(_GROUPS) for name in OPERATIONS])
