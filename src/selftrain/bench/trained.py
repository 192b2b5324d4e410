"""Benches that train whole networks on two CPU cores: fine-tuned from pretrained weights, and from random ones.

Knows nothing of our results. Steps are chosen so that both benches together, with two seeds, take less than eight
hours. On one busy core, a step of DST took 1.5 s with 32 + 32 images of 64 px (lite0), and 0.34 s with 32 + 96 of 32 px
(wrn-tiny).
"""

from __future__ import annotations

from typing import Any

from selftrain.bench.paper import by_amount
from selftrain.bench.spec import Bench, Row, rows_against_base

# The released code warms up for 1,000 of 40,000 steps; this is the same share of a shorter run.
WARMUP = 1000 / 40000
SMALL_PHOTOS: dict[str, Any] = {
    "regime": "finetune", "network.backbone": "lite0", "data.size": 64, "data.labels_per_class": 4,
    "train.steps": 1000, "train.batch": 16, "train.unlabeled_batch": 16, "train.eval_every": 200, "optim.lr": 0.01,
}  # fmt: skip
# A decay of 0.999 suits a million steps; an average over some thousand steps needs a faster one.
SMALL_CIFAR: dict[str, Any] = {
    "regime": "scratch", "network.backbone": "wrn-tiny", "data.size": 32, "data.flip": True,
    "train.steps": 4000, "train.batch": 32, "train.unlabeled_batch": 96, "train.eval_every": 200, "optim.ema": 0.99,
}  # fmt: skip


def _presets(base: str) -> tuple[Row, ...]:
    """Return a base, and DST around it as its authors released it and as the paper writes it."""
    return (
        Row(base),
        Row(f"dst({base})", {"method.warmup": WARMUP}, f"dst({base})", against=base),
        Row(f"dst({base}, preset=paper)", against=base),
    )


TRAINED: dict[str, Bench] = {
    "cpu/finetune": Bench(
        "a small pretrained backbone trained as a whole: labels only, FixMatch, FlexMatch, and DST with both presets",
        ("ucmerced", "gtsrb"),
        (Row("supervised"), *_presets("fixmatch"), *_presets("flexmatch")),
        SMALL_PHOTOS,
        draws="each",
        by_dataset={"ucmerced": {"data.flip": True}, "gtsrb": {"data.flip": False}},
        measures=("mean_per_class", "worst20_percent"),
    ),
    "cpu/scratch": Bench(
        "a small Wide ResNet on photos from random weights: labels only, FixMatch, FlexMatch, and DST",
        ("cifar10-mini",),
        rows_against_base(("supervised", "fixmatch", "dst(fixmatch)", "flexmatch", "dst(flexmatch)")),
        SMALL_CIFAR,
        draws="each",
        variants=by_amount(25, 100),
    ),
}
