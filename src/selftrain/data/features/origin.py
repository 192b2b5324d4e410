"""The backbone that made features, as the card of a file of features and the card of a model name it.

Knows nothing of networks: a backbone is a name, a hash of its weights and its preprocessing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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

    @classmethod
    def parse(cls, card: Any) -> Origin | None:
        """Return the origin that a card names; None if it names none."""
        try:
            like = card["preprocessing"]
            known = cls(str(card["backbone"]), str(card["weights"]), int(card["channels"]), dict(like))
            numbers = [float(value) for value in (*like["mean"], *like["std"], like["crop"])]
            usable = 8 <= like["size"] <= 4096 and len(numbers) == 2 * known.channels + 1
        except (KeyError, TypeError, ValueError):
            return None
        return known if usable and like.get("interpolation") in INTERPOLATIONS else None

    def to_card(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.backbone} at {self.preprocessing['size']} px"


def check_origins(mine: Origin | None, other: Origin | None, what: str, whose: str) -> None:
    """Raise a UserError if two sets of features are known to come from different backbones; numbers would not fit."""
    if mine is None or other is None or json.dumps(mine.to_card()) == json.dumps(other.to_card()):
        return
    one, two = str(mine), str(other)
    if one == two:
        one, two = f"{one} with other weights or preprocessing", two
    raise UserError(f"{what}: these are features of {one}, but {whose} are features of {two}.")
