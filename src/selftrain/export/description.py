"""What an exported model says about itself: classes, input, preprocessing and origin, as JSON.

Knows nothing of file formats or networks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from selftrain.data.views.image_views import CLEAN_DETAIL
from selftrain.errors import UserError
from selftrain.nn.backbones import Preprocessing
from selftrain.version import __version__

FORMAT = 1
MOST = 1 << 24
"""above the length of any feature vector, and the side of any image"""
KEY = "selftrain"
"""name of the JSON text in a model's metadata"""
CROPS = "crops"
"""name of the optional input for crops that are resized already"""
INTERPOLATIONS = ("box", "bilinear", "bicubic", "lanczos")
CLASSES = "classes"
"""name of the JSON list of class names in a model's metadata"""


class Int8(NamedTuple):
    """How the ranges of 8-bit integers were found, and what they changed."""

    calibrated_on: int
    """images that set the ranges"""
    compared_on: int
    """other images, on which labels were compared with those of float32"""
    same_label: float
    """share of those"""


class Crops(NamedTuple):
    """The central crops that the network takes; whoever can resize as Pillow does may feed them, see ``CROPS``."""

    size: int
    channels: int
    interpolation: str
    shares: tuple[float, ...]
    """of the shorter side, one per crop"""


@dataclass(frozen=True)
class Description:
    """Everything that whoever runs the file needs to know."""

    classes: tuple[str, ...]
    input: Literal["images", "features"]
    """``images``: uint8 (N, H, W, 3), RGB, upright, of any size; ``features``: float32 (N, dim)"""
    dim: int = 0
    """length of a feature vector; 0 for images"""
    least_side: int = 0
    """shorter side at which a larger JPEG may be decoded"""
    crops: Crops | None = None
    """the crops of an image; None for features, and in files of older versions, which only resize by themselves"""
    novelty: bool = False
    """whether there is a second output: above 0.5, an image looks like none of the classes"""
    integer_classes: bool = False
    int8: Int8 | None = None
    """what is known of the 8-bit integers in which the backbone is computed; None if it is computed in float32"""
    card: Mapping[str, Any] | None = None
    """the model's card: backbone, preprocessing, method"""
    selftrain: str = __version__
    format: int = FORMAT

    def metadata(self) -> dict[str, str]:
        """Return the description as text, for the metadata of a file."""
        values = {name: value for name, value in asdict(self).items() if name != "classes"}
        for name, part in (("int8", self.int8), ("crops", self.crops)):
            values[name] = None if part is None else part._asdict()
        return {
            CLASSES: json.dumps(list(self.classes), ensure_ascii=False),
            KEY: json.dumps(values, ensure_ascii=False),
        }


def least_side(like: Preprocessing) -> int:
    """Return the shorter side at which a larger JPEG may be decoded without a loss."""
    return math.ceil(CLEAN_DETAIL * like.size / (like.crop * (like.zoom or 1.0)))


def crops_of(like: Preprocessing, channels: int) -> Crops:
    """Return the crops that a model takes."""
    shares = (like.crop, like.crop * like.zoom) if like.zoom else (like.crop,)
    return Crops(like.size, channels, like.interpolation, shares)


def _crops(values: Any) -> Crops:
    found = Crops(**{**values, "shares": tuple(values["shares"])})
    sizes = isinstance(found.size, int) and 0 < found.size < MOST and found.channels in (1, 3)
    shares = all(isinstance(share, (int, float)) and 1e-3 <= share <= 1 for share in found.shares)
    if not sizes or not found.shares or not shares or found.interpolation not in INTERPOLATIONS:
        raise ValueError(values)
    return found


def description_from(metadata: Mapping[str, str], path: object) -> Description:
    """Return the description in a file's metadata; a UserError if selftrain did not write it, or a newer one did."""
    try:
        values = json.loads(metadata[KEY])
        classes = json.loads(metadata[CLASSES])
        if not isinstance(values, dict) or not isinstance(classes, list) or not classes:
            raise TypeError
        if any(not isinstance(name, str) for name in classes) or values.get("input") not in ("images", "features"):
            raise TypeError
        known = {name: values[name] for name in Description.__dataclass_fields__ if name in values}
        measured = Int8(**values["int8"]) if values.get("int8") else None
        crops = _crops(values["crops"]) if values.get("crops") else None
        described = Description(**{**known, "classes": tuple(classes), "int8": measured, "crops": crops})
        numbers = (described.format, described.dim, described.least_side)
        if any(not isinstance(number, int) or not 0 <= number < MOST for number in numbers):
            raise TypeError
        flags = (
            described.novelty,
            described.integer_classes,
            measured is None or isinstance(measured.same_label, float),
        )
        if any(not isinstance(flag, bool) for flag in flags) or not isinstance(described.card, dict | None):
            raise TypeError
    except (KeyError, ValueError, TypeError, RecursionError):
        raise UserError(
            f"{path}: selftrain did not write this model (there are no classes in its metadata). "
            "Make one with 'selftrain export RUN -o model.onnx'."
        ) from None
    if described.format > FORMAT:
        raise UserError(f"{path}: written by selftrain {described.selftrain}, which is newer than this one.")
    return described
