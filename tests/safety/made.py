"""Small models to damage."""

from __future__ import annotations

from pathlib import Path

import torch

from selftrain.config.resolve import make_settings
from selftrain.nn.backbones import build_backbone
from selftrain.nn.layers import OnFeatures, UnitFeatures
from selftrain.runs.model import make_card, make_classifier, make_encoder, save_model, weights_hash


def frozen_model(folder: Path, classes: tuple[str, ...] = ("ant", "bee", "cat")) -> Path:
    """Write a model on the features of a tiny frozen backbone, the same one each time."""
    torch.manual_seed(7)
    backbone = build_backbone("wrn-tiny", weights="none", size=16)
    network = make_settings("frozen", {"network.backbone": "wrn-tiny", "network.bottleneck": 8}).network
    card = make_card(network, backbone, classes, 16, frozen=True, weights=weights_hash(backbone))
    predictor = make_classifier(card, UnitFeatures(backbone.dim))
    save_model(folder, OnFeatures(make_encoder(card, backbone), predictor), card, {})
    return folder
