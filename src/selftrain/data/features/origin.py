"""The backbone that made features, as the card of a file of features and the card of a model name it.

Knows nothing of networks: a backbone is a name, a hash of its weights and its preprocessing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from selftrain.errors import UserError

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


@dataclass(frozen=True)
class Origin:
    """The frozen backbone that made features, with all that is needed to make the same features of new images."""

    backbone: str
    weights: str
    """hash of its weights"""
    channels: int
    preprocessing: Mapping[str, Any]
    """mean, std, size, interpolation, crop"""
    precision: str = "32"
    """numbers with which it computed: 32 or bf16"""

    @classmethod
    def parse(cls, card: Any) -> Origin | None:
        """Return the origin that a card names; None if it names none."""
        try:
            like = card["preprocessing"]
            precision = str(card.get("precision", "32"))  # older cards lack it
            known = cls(str(card["backbone"]), str(card["weights"]), int(card["channels"]), dict(like), precision)
            numbers = [float(value) for value in (*like["mean"], *like["std"], like["crop"])]
            usable = 8 <= like["size"] <= 4096 and len(numbers) == 2 * known.channels + 1
            usable = usable and precision in ("32", "bf16")
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        return known if usable and like.get("interpolation") in INTERPOLATIONS else None

    def to_card(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.backbone} at {self.preprocessing['size']} px"


def check_origins(mine: Origin | None, other: Origin | None, what: str, whose: str) -> None:
    """Raise a UserError if two sets of features are known to come from different backbones; numbers would not fit.

    Features that were computed with other precision fit: they differ by less than two views of an image do.
    """
    if mine is None or other is None:
        return
    if json.dumps(replace(mine, precision="32").to_card()) == json.dumps(replace(other, precision="32").to_card()):
        return
    one, two = str(mine), str(other)
    if one == two:
        one, two = f"{one} with other weights or preprocessing", two
    raise UserError(f"{what}: these are features of {one}, but {whose} are features of {two}.")
