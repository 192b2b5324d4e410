"""Benches on natural pools with other pretrained backbones: quality levels, and what DST gains on each backbone.

Knows nothing of our results, nor of how features are extracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from selftrain.bench.cpu import PLAIN
from selftrain.bench.piles import DEFAULT, ESTIMATED, pile_benches
from selftrain.bench.spec import Bench, Row, Variant
from selftrain.nn.offline import OFFLINE
from selftrain.nn.quality import LEVELS, Choice

NATURAL = pile_benches()["pile/natural"]
COMPARED = {"lite0": "ImageNet, classes", "lite2": "ImageNet, classes", "augnet": "images without labels"}
"""backbones whose gains are compared, and what they were trained on"""


def offline_levels() -> Iterator[tuple[str, Choice]]:
    """Yield what each quality level takes where nothing can be downloaded."""
    for level, choices in LEVELS.items():
        yield level, next(one for one in choices if all(name in OFFLINE for name in one.backbone.split("+")))


def _level_rows() -> Iterator[Row]:
    for level, choice in offline_levels():
        settings = {
            "network.backbone": choice.backbone, "data.size": choice.size,
            "data.weak_views": choice.weak, "data.strong_views": choice.strong,
        }  # fmt: skip
        yield Row(DEFAULT.method, settings, level, against="" if level == "fast" else "fast")


BACKBONES: dict[str, Bench] = {
    "backbone/levels": replace(
        NATURAL, rows=tuple(_level_rows()), about="the default at each quality level, weights from packages"
    ),
    "backbone/gain": replace(
        NATURAL,
        rows=(
            Row("supervised"), Row("fixmatch", PLAIN), Row("dst(fixmatch)", ESTIMATED, against="fixmatch"), DEFAULT,
        ),
        settings={**NATURAL.settings, "data.size": 128, "data.weak_views": 1, "data.strong_views": 2},
        variants=tuple(
            Variant(f"{name} ({how})", {"network.backbone": name}) for name, how in COMPARED.items()
        ),
        about="what DST gains on stronger features and on ones learned without labels, natural pools",
    ),
}  # fmt: skip
