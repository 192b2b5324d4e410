"""Every setting of a run: its type, its default in each regime, its help text; to and from ``config.yaml``.

Knows nothing of how a setting is carried out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from selftrain.config.options import UNSET, check_fields, convert, field_types, flatten, known_field
from selftrain.errors import UserError, nearest
from selftrain.files import read_yaml


@dataclass(frozen=True)
class DataSettings:
    path: str = ""
    """folder of images, the name of a dataset, hf:NAME, or tar files"""
    labels: str | None = None
    """CSV file with the columns path,label"""
    test: str | None = None
    """folder of test images, a subfolder a class; with labels also a CSV file path,label of images in the folder"""
    unlabeled: str | None = None
    """more unlabeled images: a folder, tar files such as shards/{000..099}.tar, or hf:NAME"""
    root: str | None = None
    """folder that holds the datasets; unset: named ones are in the user's cache folder"""
    labels_per_class: int | None = None
    """labels kept of each class; the others are hidden"""
    split_seed: int = 0
    """seed of the draw of labeled images; the same for every training seed unless set"""
    include_labeled: bool = True
    """labeled images also appear among the unlabeled ones, without their label"""
    validation_per_class: int = 0
    """labels of each class held out of training, to evaluate on where there is no test set"""
    fold: str | None = None
    """part of the labels held out of training, such as 1/5 for the first of five; unset: none"""
    evaluate_on: Literal["test", "validation"] | None = None
    """test set or held-out labels; unset: the test set where there is one"""
    size: int | None = None
    """side in pixels of what the network sees; unset: that of the backbone's weights, or of the images"""
    crop: Literal["pad", "resized"] = UNSET
    """random crop of a padded picture (small images), or random resized crop (photos)"""
    crop_scale: float = UNSET
    """smallest share of a picture that a random resized crop keeps"""
    clean_crop: float = UNSET
    """resized: share of the shorter side that is looked at to evaluate and predict, in the middle of the picture"""
    flip: bool | None = None
    """mirror pictures at random; unset: as the dataset says, true for folders"""
    randaugment_n: int = UNSET
    """strong views: operations per picture"""
    randaugment_m: float = UNSET
    """strong views: magnitude of the operations, 0 to 30"""
    randaugment_jitter: bool = False
    """strong views: magnitudes drawn from 0 to m instead of m itself"""
    cutout: float = UNSET
    """strong views: side of a grey square, as a share of the picture's; 0 for none"""
    check: Literal["full", "header"] = "full"
    """decode every image once before training, or read its header only"""
    strict: bool = False
    """stop at an image that cannot be decoded instead of leaving it out"""
    workers: int | None = None
    """processes that prepare batches; unset: none for images or features in memory, else up to 4"""
    cache: str | None = None
    """frozen: folder of cached features; unset: $SELFTRAIN_CACHE, or the user's cache folder"""
    cache_dtype: Literal["float16", "float32"] = "float16"
    """frozen: how features are stored"""
    weak_views: int = 2
    """frozen: weak views kept of each image"""
    strong_views: int = 4
    """frozen: strong views kept of each image"""
    views_seed: int = 0
    """frozen: seed of the kept views; runs with other training seeds share them"""
    feature_noise: float = 0.1
    """frozen, features with one view: Gaussian noise of a strong view, as a share of the features' own spread"""
    feature_dropout: float = 0.2
    """frozen, features with one view: share of the numbers of a strong view that are set to 0"""
    feature_mixup: float = 0.3
    """frozen, features with one view: how far at most a strong view moves towards a near neighbour"""


@dataclass(frozen=True)
class NetworkSettings:
    backbone: str = UNSET
    """wrn-28-2, wrn-tiny, wrn (the one of them that suits the size), lite0, or any timm model"""
    weights: str = "auto"
    """auto, none, pretrained, or a local checkpoint file"""
    bottleneck: int = UNSET
    """width of Linear-BN-ReLU-Dropout between backbone and heads; 0 for none"""
    dropout: float = 0.5
    """dropout of the bottleneck"""
    head: Literal["linear", "mlp"] = "linear"
    """the main head h"""
    head_width: int = 1024
    """hidden width of a nonlinear main head"""
    bn_momentum: float | None = None
    """scratch: share of a new batch in running statistics; unset: 1000/steps, from 0.001 (FixMatch's) to 0.1"""
    unit_features: bool = True
    """frozen: scale features to equal length"""
    bn_apart: bool = False
    """labeled and unlabeled views have batch norm apart, running statistics of the former (not if views mix)"""
    sync_bn: bool = True
    """several devices: batch norm takes its statistics of the whole batch, not of a device's share of it"""
    save_backbone: bool = True
    """frozen: keep the backbone's weights with the model, so that it predicts from its folder alone"""


@dataclass(frozen=True)
class OptimSettings:
    lr: float = UNSET
    """learning rate at the start"""
    momentum: float = 0.9
    """of SGD"""
    nesterov: bool = True
    """Nesterov momentum"""
    weight_decay: float = 5e-4
    """L2 penalty"""
    norm_decay: bool = True
    """weight decay on biases and normalisation layers too"""
    backbone_lr: float = UNSET
    """factor of the learning rate in the backbone"""
    schedule: Literal["cosine", "exponential", "constant"] = "cosine"
    """lr cos(7 pi t/16 N), lr (1 + gamma t)^-decay, or lr"""
    gamma: float = 0.0004
    """of the exponential schedule"""
    decay: float = 0.75
    """of the exponential schedule"""
    clip: float = 0.0
    """largest norm of the gradient; 0 for no clipping"""
    ema: float = UNSET
    """decay of the weight average that is evaluated and saved; 0: the last weights themselves"""
    ema_buffers: Literal["copied", "averaged"] = "copied"
    """running statistics of the weight average: those of the newest weights, or averaged like them"""


@dataclass(frozen=True)
class TrainSettings:
    steps: int = UNSET
    """optimiser steps"""
    batch: int = UNSET
    """labeled images a step"""
    unlabeled_batch: int = UNSET
    """unlabeled images a step"""
    eval_every: int | None = None
    """steps between evaluations; unset: a tenth of the run"""
    checkpoint_every: int | None = None
    """steps between checkpoints; unset: as often as evaluations"""
    eval_batch: int = 256
    """images a batch in evaluation"""
    precision: Literal["32", "bf16-mixed"] = "32"
    """32, or bf16-mixed: bfloat16 where it is safe"""
    channels_last: bool = True
    """memory layout of images; quicker for convolutions"""
    compile: bool = False
    """compile the network (torch.compile): a minute or more to start, then somewhat quicker steps"""
    threads: int = 0
    """CPU threads; 0: as torch sees fit"""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """where to compute"""
    devices: int | None = None
    """devices that share each batch, a process for each; unset: as many as torchrun or srun started, else one"""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """several devices: each holds the whole network (ddp), or a share of the backbone's weights (fsdp)"""
    logger: Literal["none", "tensorboard", "wandb"] = "none"
    """where figures go beside metrics.jsonl; needs the extra of the same name"""
    folds: int = 0
    """train so many more times, each with a part of the labels held out, to estimate accuracy without a test set"""


@dataclass(frozen=True)
class Settings:
    """All a run depends on. The same settings on the same machine give the same weights."""

    method: str = "dst(fixmatch)"
    """what to train; see 'selftrain list methods'"""
    regime: Literal["scratch", "finetune", "frozen"] = UNSET
    """from random weights, fine-tuning a pretrained backbone whole, or on its frozen features"""
    seed: int = 0
    """of initial weights, batches and augmentation"""
    data: DataSettings = field(default_factory=DataSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


SECTIONS = {"data": DataSettings, "network": NetworkSettings, "optim": OptimSettings, "train": TrainSettings}

# The protocols of the paper and its released code. Steps are ours; the paper takes 1000k (scratch) and 40k.
REGIMES: dict[str, dict[str, Any]] = {
    "scratch": {
        "network.backbone": "wrn", "network.bottleneck": 0,
        "optim.lr": 0.03, "optim.backbone_lr": 1.0, "optim.ema": 0.999,
        "train.steps": 20000, "train.batch": 64, "train.unlabeled_batch": 448,
        "data.crop": "pad", "data.crop_scale": 0.2, "data.clean_crop": 1.0,
        "data.randaugment_n": 3, "data.randaugment_m": 5.0, "data.cutout": 0.5,
    },
    "finetune": {
        "network.backbone": "lite0", "network.bottleneck": 1024,
        "optim.lr": 0.003, "optim.backbone_lr": 0.1, "optim.ema": 0.0,
        "train.steps": 5000, "train.batch": 32, "train.unlabeled_batch": 32,
        "data.crop": "resized", "data.crop_scale": 0.2, "data.clean_crop": 1.0,
        "data.randaugment_n": 2, "data.randaugment_m": 10.0, "data.cutout": 0.0,
    },
    "frozen": {
        "network.backbone": "lite0", "network.bottleneck": 256, "data.size": 128,
        "optim.lr": 0.01, "optim.backbone_lr": 1.0, "optim.ema": 0.0,
        "train.steps": 1000, "train.batch": 32, "train.unlabeled_batch": 64,
        "data.crop": "resized", "data.crop_scale": 0.5, "data.clean_crop": 1.0,
        "data.randaugment_n": 2, "data.randaugment_m": 10.0, "data.cutout": 0.0,
    },
}  # fmt: skip


def make_settings(regime: str, given: Mapping[str, Any]) -> Settings:
    """Settings from dotted names (``{"optim.lr": 0.01, "seed": 3}``); a regime's defaults fill in the others."""
    if regime not in REGIMES:
        raise UserError(f"--regime {regime}: expected one of {', '.join(REGIMES)}.{nearest(regime, REGIMES)}")
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    top: dict[str, Any] = {"regime": regime}
    for name, value in {**REGIMES[regime], **given}.items():
        section, _, key = name.partition(".")
        if section in SECTIONS and key:
            values[section][known_field(SECTIONS[section], key, f"--set {section}")] = value
        elif not key and section in field_types(Settings) and section not in SECTIONS:
            top[section] = value
        else:
            known = known_settings()
            raise UserError(f"--set {name}={value}: there is no such setting.{nearest(name, known)}")
    sections = {}
    for name, cls in SECTIONS.items():
        sections[name] = cls(**values[name])
        check_fields(sections[name], name)
    settings = Settings(**top, **sections)
    check_fields(settings, "settings")
    _check_ranges(settings)
    return settings


def known_settings() -> list[str]:
    """Every dotted name that ``--set`` reaches, apart from the method's own fields."""
    return [f"{section}.{name}" for section, cls in SECTIONS.items() for name in field_types(cls)] + [
        f.name for f in fields(Settings) if f.name not in SECTIONS
    ]


# The least and the largest value of each number; batches of one sample have no batch statistics.
RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1), "data.split_seed": (0, 2**32 - 1), "data.views_seed": (0, 2**32 - 1),
    "data.labels_per_class": (1, math.inf), "data.validation_per_class": (0, math.inf), "data.size": (8, 4096),
    "data.crop_scale": (0.01, 1), "data.clean_crop": (0.1, 1), "data.randaugment_n": (0, 100),
    "data.randaugment_m": (0, 30), "data.cutout": (0, 0.99),
    "data.workers": (0, 1024), "data.weak_views": (1, 64), "data.strong_views": (1, 64), "data.feature_noise": (0, 100),
    "data.feature_dropout": (0, 0.99), "data.feature_mixup": (0, 1),
    "network.bottleneck": (0, 65536), "network.dropout": (0, 0.99), "network.head_width": (1, 65536),
    "network.bn_momentum": (0, 1),
    "optim.lr": (0, math.inf), "optim.momentum": (0, 0.9999), "optim.weight_decay": (0, math.inf),
    "optim.backbone_lr": (0, math.inf), "optim.gamma": (0, math.inf), "optim.decay": (0, math.inf),
    "optim.clip": (0, math.inf), "optim.ema": (0, 0.999999),
    "train.steps": (1, 10**12), "train.batch": (2, 10**7), "train.unlabeled_batch": (2, 10**7),
    "train.eval_every": (1, math.inf), "train.checkpoint_every": (1, math.inf), "train.eval_batch": (1, 10**7),
    "train.threads": (0, 1024), "train.devices": (1, 10**5), "train.folds": (0, 1000),
}  # fmt: skip


def _check_ranges(settings: Settings) -> None:
    flat = flatten(asdict(settings))
    for name, (low, high) in RANGES.items():
        value = flat[name]
        if value is not None and not low <= value <= high:
            bounds = f"at least {low}" if high == math.inf else f"{low} to {high}"
            raise UserError(f"{name}={value}: expected {bounds}.")


def parse_assignment(text: str) -> tuple[str, str]:
    """``optim.lr=0.01`` as a name and a value."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {text}: write it as name=value, for example --set optim.lr=0.01.")
    return name.strip(), value.strip()


# Where things lie and how quickly they go, which changes no figure.
PLACES = (
    "data.path", "data.labels", "data.test", "data.root", "data.check", "data.strict", "data.workers", "data.cache",
    "network.save_backbone", "train.checkpoint_every", "train.threads", "train.accelerator", "train.folds",
    "train.logger",
)  # fmt: skip


def settings_hash(settings: Settings) -> str:
    """SHA-256 over all settings that a run's figures depend on; the images have the hash of their split."""
    flat = {name: value for name, value in flatten(asdict(settings)).items() if name not in PLACES}
    flat["network.weights"] = Path(settings.network.weights).name  # wherever the file lies
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def dump_settings(settings: Settings) -> str:
    """The text of a ``config.yaml``."""
    tree = asdict(settings)
    return "# Repeats this run: selftrain train --config config.yaml --out ANOTHER\n" + yaml.safe_dump(
        tree, sort_keys=False, allow_unicode=True, width=120
    )


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a ``config.yaml`` as dotted names."""
    tree = read_yaml(path, "--config")
    if not isinstance(tree, dict):
        raise UserError(f"--config {path}: expected settings such as 'optim: {{lr: 0.01}}'.")
    return flatten(tree)


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The same settings with some dotted names replaced."""
    for name, value in values.items():
        section, _, key = name.partition(".")
        if key:
            part = getattr(settings, section)
            settings = replace(settings, **{section: replace(part, **{key: value})})
        else:
            settings = replace(settings, **{section: value})
    return settings


__all__ = [
    "REGIMES",
    "DataSettings",
    "NetworkSettings",
    "OptimSettings",
    "Settings",
    "TrainSettings",
    "convert",
    "dump_settings",
    "known_settings",
    "make_settings",
    "parse_assignment",
    "read_config",
    "settings_hash",
    "with_values",
]
