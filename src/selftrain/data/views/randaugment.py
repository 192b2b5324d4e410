"""The 14 operations of RandAugment on whole batches, each sample with its own operation and strength.

Knows nothing of how operations are drawn. Holds no state and draws no random number.

Operations, ranges and results are those of ``torchvision.transforms.v2.RandAugment`` on uint8 tensors (nearest
neighbour, black outside). Samples with operations of the same kind are grouped and changed together. Each kind has two
steps: on the host, operations (positions in ``OPERATIONS``) and strengths become a few numbers per sample; on the
device, these numbers and the images become new images. Strength is the level on torchvision's scale of 31 bins divided
by 30, with a random sign; operations without a sign use its absolute value.

No sample may depend on its neighbours, not even by rounding: sums are over whole numbers, and products and sums are
separate instructions (a fused one rounds differently in a vector and in its remainder).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

# The number of values (pixels times channels) processed at a time on a CPU. A block is a few MiB, so that its copies
# reuse memory instead of requesting new pages; a chunk has temporaries of up to 8 bytes per value.
CPU_BLOCK = 2**23
CPU_CHUNK = 2**20


def apply_operations(images: Tensor, operation: np.ndarray, strength: np.ndarray) -> Tensor:
    """Return uint8 images (n, C, H, W) with ``operation[:, 0]``, then ``operation[:, 1]``, ... applied."""
    output = torch.empty_like(images, memory_format=torch.contiguous_format)
    for rows in spans(images, 0, len(images), CPU_BLOCK):
        _apply_to_block(images[rows], operation[rows], strength[rows], output[rows])
    return output


def _apply_to_block(images: Tensor, operation: np.ndarray, strength: np.ndarray, output: Tensor) -> None:
    device, (height, width) = images.device, images.shape[-2:]
    row_of = np.arange(len(images))  # the row of each sample
    for slot in range(operation.shape[1]):
        kind = _KIND_OF[operation[:, slot]]
        order = np.argsort(kind, kind="stable")  # groups samples by kind: slices, no scattered writes
        ends = np.searchsorted(kind[order], range(len(_KINDS) + 1)).tolist()
        source = to_device(row_of[order], device)
        changed = torch.empty_like(output)
        for (prepare, change), (start, end) in zip(_KINDS, pairwise(ends), strict=True):
            members = order[start:end]
            numbers = prepare(operation[members, slot], strength[members, slot], height, width) if len(members) else []
            tensors = [to_device(array, device) for array in numbers]
            for rows in spans(images, start, end, CPU_CHUNK):
                part = slice(rows.start - start, rows.stop - start)
                changed[rows] = change(images.index_select(0, source[rows]), *(tensor[part] for tensor in tensors))
        images, row_of = changed, np.argsort(order)
    torch.index_select(images, 0, to_device(row_of, device), out=output)


def spans(images: Tensor, start: int, end: int, values: int) -> list[slice]:
    """Split rows ``start`` to ``end`` into parts of at most ``values`` values on a CPU; a single part elsewhere."""
    size = values // images.shape[1:].numel() if images.device.type == "cpu" else end - start
    return [slice(first, min(first + max(1, size), end)) for first in range(start, end, max(1, size))]


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return a small host array as a tensor, without waiting for the device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def pick(images: Tensor, source: Tensor) -> Tensor:
    """Return the pixels of all channels at the flat positions ``source`` (n, H, W), as (n, C, H, W)."""
    n, height, width = source.shape
    pixels = images.flatten(2)
    index = source.reshape(n, 1, height * width).expand(-1, pixels.shape[1], -1)
    return pixels.gather(2, index).reshape(n, -1, height, width)


# On the host: operation (n,), strength (n,), height, width -> arrays whose first dimension is n.


def _motion(operation: np.ndarray, strength: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    """Return pixel sources, x = a[row] + b[column] and y = c[row] + d[column], as (n, H), (n, W), (n, H), (n, W).

    ShearX/Y is about the upper left corner, TranslateX/Y by whole pixels, Rotate about the centre. Positions refer to
    an image with a border of one pixel, shifted by half a pixel: rounding them down gives the nearest pixel.
    """

    def strength_of(name: str) -> np.ndarray:
        return np.where(operation == OPERATIONS.index(name), strength, 0.0)

    shear_x, shear_y = 0.3 * strength_of("ShearX"), 0.3 * strength_of("ShearY")
    shift_x = np.trunc(150 / 331 * width * strength_of("TranslateX"))
    shift_y = np.trunc(150 / 331 * height * strength_of("TranslateY"))
    angle = np.radians(30 * strength_of("Rotate"))
    # Measured from the centre, pixel (x, y) shows (cos x + (shear_x - sin) y + x0, (sin + shear_y) x + cos y + y0).
    x, y = np.arange(width) - (width - 1) / 2, np.arange(height) - (height - 1) / 2
    x0 = shear_x * height / 2 - shift_x + (width - 1) / 2 + 1.5  # from the centre to the corner, the border and a half
    y0 = shear_y * width / 2 - shift_y + (height - 1) / 2 + 1.5
    a, b = np.outer(shear_x - np.sin(angle), y) + x0[:, None], np.outer(np.cos(angle), x)
    c, d = np.outer(np.cos(angle), y) + y0[:, None], np.outer(np.sin(angle) + shear_y, x)
    return [part.astype(np.float32) for part in (a, b, c, d)]


def _shares(operation: np.ndarray, strength: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    """Return the shares of the image and of its degenerate (black, grey, blurred) in the blend, (n, 1, 1, 1) each."""
    return [_column(1 + 0.9 * strength, np.float32), _column(-0.9 * strength, np.float32)]


def _kept_bits(operation: np.ndarray, strength: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    return [_column(256 - 2.0 ** np.round(4 * np.abs(strength)), np.uint8)]  # 0 to 4 bits are dropped


def _threshold(operation: np.ndarray, strength: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    return [_column(np.ceil(np.float32(255 * (1 - np.abs(strength)))), np.uint8)]


def _nothing(operation: np.ndarray, strength: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    return []


def _column(values: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    return values.astype(dtype).reshape(-1, 1, 1, 1)


# On the device: images (n, C, H, W), the arrays above as tensors -> images, of uint8 or of whole numbers in int16.


def _keep(images: Tensor) -> Tensor:
    return images


def _move(images: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Take the nearest source pixel; sources outside are moved to the black border."""
    height, width = images.shape[-2:]
    x = (a[:, :, None] + b[:, None, :]).clamp_(0, width + 1).floor_()
    y = (c[:, :, None] + d[:, None, :]).clamp_(0, height + 1).floor_()
    source = y.mul_(width + 2).add_(x).int().long()  # directly to long is slower
    return pick(pad(images, (1, 1, 1, 1)), source)


def _grey(values: Tensor) -> Tensor:
    """Return the luminance in whole numbers, (n, 1, H, W), of images as float32."""
    if values.shape[1] == 1:
        return values
    red, green, blue = torch.split(values, 1, dim=1)
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114).floor_()


def _truncate(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).short()  # directly to uint8 is slower


def _brightness(images: Tensor, own: Tensor, other: Tensor) -> Tensor:
    return _truncate(images.float().mul_(own))


def _color(images: Tensor, own: Tensor, other: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    values = images.float()
    grey = _grey(values).mul_(other)
    return _truncate(values.mul_(own).add_(grey))


def _contrast(images: Tensor, own: Tensor, other: Tensor) -> Tensor:
    values = images.float()
    total = _grey(values).sum(-1).double().sum(-1)  # exact in any order: whole numbers below 2^24, then below 2^53
    mean = (total / images[0, 0].numel()).float()[..., None, None]
    return _truncate(values.mul_(own).add_(mean.mul_(other)))


def _sharpness(images: Tensor, own: Tensor, other: Tensor) -> Tensor:
    wide = images.short()
    inner = wide[..., 1:-1, 1:-1]
    three = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    nine = three[..., :-2] + three[..., 1:-1] + three[..., 2:]
    blurred = nine.add_(inner, alpha=4).float().div_(13).round_()  # weight 5 at the centre, 1 around it: no ties
    middle = inner.float()
    inner.copy_(blurred.sub_(middle).mul_(other).add_(middle).clamp_(0, 255))  # the border keeps its values
    return wide


def _posterize(images: Tensor, kept: Tensor) -> Tensor:
    return images & kept


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    bright = torch.maximum(images, threshold) == images  # ten times as fast as >= with one threshold per sample
    return images ^ bright.view(torch.uint8).neg_()  # all bits set where bright, else none


def _autocontrast(images: Tensor) -> Tensor:
    pixels = images.flatten(2)
    low, high = pixels.amin(-1).float()[..., None, None], pixels.amax(-1).float()[..., None, None]
    constant = high == low
    scale = torch.where(constant, 1.0, (high - low) * (1 / 255))
    return _truncate(images.float().sub_(torch.where(constant, 0.0, low)).div_(scale))


def _equalize(images: Tensor) -> Tensor:
    brightest = images.flatten(2).amax(-1, keepdim=True).long()
    pixels = images.flatten(2).long()
    ones = pixels.new_ones(pixels.shape[2], dtype=torch.int32).expand_as(pixels)
    counts = ones.new_zeros(*pixels.shape[:2], 256).scatter_add_(2, pixels, ones)
    step = (pixels.shape[2] - counts.gather(2, brightest)) // 255
    darker = counts.cumsum(-1) - counts
    equal = ((darker + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), equal).to(torch.uint8)
    return table.gather(2, pixels).reshape(images.shape)


Prepare = Callable[[np.ndarray, np.ndarray, int, int], list[np.ndarray]]
Change = Callable[..., Tensor]

_POOL: dict[str, tuple[Prepare, Change]] = {
    "Identity": (_nothing, _keep),
    "ShearX": (_motion, _move),
    "ShearY": (_motion, _move),
    "TranslateX": (_motion, _move),
    "TranslateY": (_motion, _move),
    "Rotate": (_motion, _move),
    "Brightness": (_shares, _brightness),
    "Color": (_shares, _color),
    "Contrast": (_shares, _contrast),
    "Sharpness": (_shares, _sharpness),
    "Posterize": (_kept_bits, _posterize),
    "Solarize": (_threshold, _solarize),
    "AutoContrast": (_nothing, _autocontrast),
    "Equalize": (_nothing, _equalize),
}
OPERATIONS = tuple(_POOL)

_KINDS = list(dict.fromkeys(_POOL.values()))
_KIND_OF = np.array([_KINDS.index(kind) for kind in _POOL.values()])
