"""The three training regimes: the settings whose defaults differ between them.

Knows nothing of methods: the options that a regime changes in a method are written in that method's file.
"""

from __future__ import annotations

from typing import Any

# The protocols of the paper and its released code. Steps are ours: the paper takes 1000k (scratch) and 40k (finetune).
REGIMES: dict[str, dict[str, Any]] = {
    "scratch": {
        "network.backbone": "wrn", "network.bottleneck": 0,
        "optim.lr": 0.03, "optim.backbone_lr": 1.0, "optim.ema": 0.999,
        "train.steps": 20000, "train.batch": 64, "train.unlabeled_batch": 448,
        "data.crop": "pad", "data.crop_scale": 0.2, "data.clean_crop": 1.0, "data.clean_zoom": 0.0,
        "data.randaugment_n": 3, "data.randaugment_m": 5.0, "data.cutout": 0.5,
    },
    "finetune": {
        "network.backbone": "lite0", "network.bottleneck": 1024,
        "optim.lr": 0.003, "optim.backbone_lr": 0.1, "optim.ema": 0.0,
        "train.steps": 5000, "train.batch": 32, "train.unlabeled_batch": 32,
        "data.crop": "resized", "data.crop_scale": 0.2, "data.clean_crop": 1.0, "data.clean_zoom": 0.0,
        "data.randaugment_n": 2, "data.randaugment_m": 10.0, "data.cutout": 0.0,
    },
    "frozen": {
        "network.backbone": "lite0", "network.bottleneck": 256, "data.size": 192,
        "optim.lr": 0.01, "optim.backbone_lr": 1.0, "optim.ema": 0.0,
        "train.steps": 1000, "train.batch": 32, "train.unlabeled_batch": 64,
        "data.crop": "resized", "data.crop_scale": 0.5, "data.clean_crop": 1.0, "data.clean_zoom": 0.75,
        "data.randaugment_n": 2, "data.randaugment_m": 10.0, "data.cutout": 0.0,
    },
}  # fmt: skip
# Vectors that the user brings train in fewer and larger steps than images: people expect a fit to take seconds.
VECTORS: dict[str, Any] = {"train.steps": 300, "optim.lr": 0.03}
