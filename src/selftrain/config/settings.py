"""Every setting of a run: its type, default, range, help text, and whether it changes results.

Knows nothing of what a setting does. A default of ``UNSET`` differs between regimes: ``regimes`` has it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from selftrain.config.options import (
    ADDED,
    NEUTRAL,
    UNSET,
    AtLeast,
    Between,
    field_kinds,
    flatten,
    is_added,
    is_neutral,
)

Seed = Annotated[int, Between(0, 2**32 - 1)]
BatchSize = Annotated[int, Between(2, 10**7)]  # batch norm has no statistics of a single sample


@dataclass(frozen=True)
class DataSettings:
    path: Annotated[str, NEUTRAL] = ""
    """folder of images, name of a dataset, hf:NAME, tar files, or features (.npz)"""
    labels: Annotated[str | None, NEUTRAL] = None
    """CSV file with the columns path,label"""
    keep_odd_labels: Annotated[bool, NEUTRAL] = False
    """do not stop at a class with a single label whose name looks like a mistyped other one"""
    test: Annotated[str | None, NEUTRAL] = None
    """folder of test images with one subfolder per class; with data.labels also a CSV file path,label of images in the
    data folder"""
    unlabeled: Annotated[str | None, NEUTRAL] = None
    """more unlabeled images: a folder, tar files such as shards/{000..099}.tar, or hf:NAME"""
    root: Annotated[str | None, NEUTRAL] = None
    """folder that holds the datasets; unset: the user's cache folder for named datasets"""
    labels_per_class: Annotated[int | None, AtLeast(1)] = None
    """labels to keep per class; the others are hidden"""
    split_seed: Seed = 0
    """seed that draws the labeled images; the same for every training seed unless set"""
    include_labeled: bool = True
    """the unlabeled pool contains the labeled images as well, without their labels"""
    validation_per_class: Annotated[int, AtLeast(0)] = 0
    """labels per class held out of training, to evaluate on where there is no test set"""
    fold: str | None = None
    """part of the labels held out of training, such as 1/5 for the first of five; unset: none"""
    evaluate_on: Literal["test", "validation"] | None = None
    """evaluate on the test set or on the held-out labels; unset: the test set where there is one"""
    imbalance: Annotated[float, AtLeast(1), ADDED] = 1.0
    """images of the most frequent class in the unlabeled pool per image of the rarest one; 1: the pool as it is"""
    label_imbalance: Annotated[float, AtLeast(1), ADDED] = 1.0
    """labels of the class with most labels, which is data.labels_per_class, per label of the class with fewest"""
    imbalance_order: Annotated[Literal["same", "reversed"], ADDED] = "same"
    """whether the classes with most labels are those with most or, reversed, with fewest images in the pool"""
    junk: Annotated[float, Between(0, 0.95), ADDED] = 0.0
    """share of the unlabeled pool that are images of no class, from data.junk_from"""
    junk_from: Annotated[str | None, ADDED] = None
    """folders of images of no class, separated by commas; relative to data.root if it is set"""
    prior: str = "auto"
    """class frequencies of the unlabeled pool, for methods that assume them: auto (estimated in the frozen regime, else
    as the labels), labels, uniform, or a CSV file class,share"""
    screen: bool = True
    """frozen: look for unlabeled images of no class, and draw them less often or not at all"""
    label_modes: Annotated[int | None, AtLeast(1), ADDED] = None
    """labels of a class: this many random images and those that look most like them; unset: all at random"""
    size: Annotated[int | None, Between(8, 4096)] = None
    """side of the network's input in pixels; unset: as the backbone's weights expect, or as the images are"""
    crop: Literal["pad", "resized"] = UNSET
    """random crop of the padded image (small images), or random resized crop (photos)"""
    crop_scale: Annotated[float, Between(0.01, 1)] = UNSET
    """smallest share of an image's area that a random resized crop keeps"""
    clean_crop: Annotated[float, Between(0.1, 1)] = UNSET
    """resized: share of the shorter side that the central crop keeps in evaluation and prediction"""
    clean_zoom: Annotated[float, Between(0, 1)] = UNSET
    """frozen: share of that crop which a second, smaller central crop keeps; evaluation and prediction use the mean of
    the features of both; 0: no second crop"""
    flip: bool | None = None
    """mirror images at random; unset: as the dataset says; for your own images decided from the names of the classes
    and, frozen, from the labeled images"""
    randaugment_n: Annotated[int, Between(0, 100)] = UNSET
    """strong views: operations per image"""
    randaugment_m: Annotated[float, Between(0, 30)] = UNSET
    """strong views: magnitude of the operations, 0 to 30"""
    randaugment_jitter: bool = False
    """strong views: draw each magnitude from 0 to m instead of using m itself"""
    cutout: Annotated[float, Between(0, 0.99)] = UNSET
    """strong views: side of a grey square, as a share of the image's side; 0 for none"""
    check: Annotated[Literal["full", "header"], NEUTRAL] = "full"
    """before training, decode every image once (full) or read its header only"""
    strict: Annotated[bool, NEUTRAL] = False
    """stop at an image that cannot be decoded instead of leaving it out"""
    max_pixels: Annotated[int, Between(1, 10**12), NEUTRAL] = 50_000_000
    """images with more pixels are left out like unreadable ones; JPEGs count at the size at which they are decoded"""
    workers: Annotated[int | None, Between(0, 1024), NEUTRAL] = None
    """processes that prepare batches; unset: none for images or features in memory, else up to 4"""
    cache: Annotated[str | None, NEUTRAL] = None
    """frozen: folder of cached features; unset: $SELFTRAIN_CACHE, or the user's cache folder"""
    cache_dtype: Literal["float16", "float32"] = "float16"
    """frozen: number format of stored features"""
    engine: Annotated[Literal["auto", "torch", "onnx", "openvino"], NEUTRAL] = "auto"
    """frozen: what runs the backbone; their features differ by rounding; auto: on a CPU onnxruntime if it is
    installed (the extra onnx), else OpenVINO (the extra openvino), else torch"""
    precision: Annotated[Literal["32", "bf16"], ADDED] = "32"
    """frozen: numbers with which the backbone computes; bf16: twice as fast where the processor has such numbers, with
    OpenVINO, or on a GPU; set by --quality"""
    extract_on: Annotated[Literal["local", "ray"], NEUTRAL] = "local"
    """frozen: extract features in this process, or on a Ray cluster ($RAY_ADDRESS, else the cores of this machine)
    whose machines share the folders of images and of cached features"""
    weak_views: Annotated[int, Between(1, 64)] = 2
    """frozen: weak views stored per image"""
    strong_views: Annotated[int, Between(1, 64)] = 4
    """frozen: strong views stored per image"""
    views_seed: Seed = 0
    """frozen: seed of the stored views, which runs with different training seeds share"""
    feature_noise: Annotated[float, Between(0, 100)] = 0.1
    """frozen, features with one view: Gaussian noise of a strong view, as a share of each feature's spread"""
    feature_dropout: Annotated[float, Between(0, 0.99)] = 0.2
    """frozen, features with one view: share of a strong view's features that are set to 0"""
    feature_mixup: Annotated[float, Between(0, 1)] = 0.0
    """frozen, features with one view: how far at most a strong view moves towards a near neighbour"""


@dataclass(frozen=True)
class NetworkSettings:
    backbone: str = UNSET
    """wrn-28-2, wrn-tiny, wrn (whichever of these suits the image size), lite0, lite1, lite2, mobilenet, augnet, any
    timm model, several (lite0+lite2), or, frozen, a file (.onnx, or .pt2 of torch.export)"""
    weights: str = "auto"
    """auto, none, pretrained, or a local checkpoint file"""
    pixels: Annotated[str, ADDED] = "imagenet"
    """backbone in a file: how it expects pixels: imagenet, clip, half (-1 to 1), unit (0 to 1), bytes (0 to 255), or
    six numbers, the means and standard deviations of red, green and blue"""
    tune: Annotated[Literal["all", "norm", "lora"], ADDED] = "all"
    """finetune: train the whole backbone (all), its normalisation layers (norm), or low-rank changes of its linear
    layers (lora, for transformers), which are added to its weights when the model is saved; heads are always trained"""
    lora_rank: Annotated[int, Between(1, 4096), ADDED] = 8
    """network.tune=lora: rank of the change of each linear layer"""
    bottleneck: Annotated[int, Between(0, 65536)] = UNSET
    """width of Linear-BN-ReLU-Dropout between backbone and heads; 0 for none"""
    dropout: Annotated[float, Between(0, 0.99)] = 0.5
    """dropout of the bottleneck"""
    head: Literal["linear", "mlp"] = "linear"
    """the main head h"""
    head_width: Annotated[int, Between(1, 65536)] = 1024
    """hidden width of an mlp main head"""
    bn_momentum: Annotated[float | None, Between(0, 1)] = None
    """scratch: weight of a new batch in running statistics; unset: 1000/steps, from 0.001 (FixMatch's) to 0.1"""
    unit_features: bool = True
    """frozen: scale features to equal length"""
    bn_apart: bool = False
    """separate batch-norm passes for labeled and unlabeled views; only labeled views update the running statistics
    (not for methods that mix views)"""
    sync_bn: bool = True
    """several devices: batch-norm statistics of the whole batch, not of each device's share"""
    save_backbone: Annotated[bool, NEUTRAL] = True
    """frozen: save the backbone's weights with the model, so that its folder alone is enough to predict"""


@dataclass(frozen=True)
class OptimSettings:
    lr: Annotated[float, AtLeast(0)] = UNSET
    """initial learning rate"""
    momentum: Annotated[float, Between(0, 0.9999)] = 0.9
    """momentum of SGD"""
    nesterov: bool = True
    """Nesterov momentum"""
    weight_decay: Annotated[float, AtLeast(0)] = 5e-4
    """L2 penalty"""
    norm_decay: bool = True
    """apply weight decay to biases and normalisation layers as well"""
    backbone_lr: Annotated[float, AtLeast(0)] = UNSET
    """factor on the learning rate of the backbone"""
    schedule: Literal["cosine", "exponential", "constant"] = "cosine"
    """lr cos(7 pi t/16 N), lr (1 + gamma t)^-decay, or lr"""
    gamma: Annotated[float, AtLeast(0)] = 0.0004
    """gamma of the exponential schedule"""
    decay: Annotated[float, AtLeast(0)] = 0.75
    """decay of the exponential schedule"""
    clip: Annotated[float, AtLeast(0)] = 0.0
    """largest norm of the gradient; 0 for no clipping"""
    ema: Annotated[float, Between(0, 0.999999)] = UNSET
    """decay of the weight average that is evaluated and saved; 0 for the last weights themselves"""
    ema_buffers: Literal["copied", "averaged"] = "copied"
    """running statistics of the weight average: copied from the newest weights, or averaged as the weights are"""


@dataclass(frozen=True)
class TrainSettings:
    steps: Annotated[int, Between(1, 10**12)] = UNSET
    """optimiser steps"""
    batch: BatchSize = UNSET
    """labeled images per step"""
    unlabeled_batch: BatchSize = UNSET
    """unlabeled images per step"""
    eval_every: Annotated[int | None, AtLeast(1)] = None
    """steps between evaluations; unset: a tenth of the run"""
    checkpoint_every: Annotated[int | None, AtLeast(1), NEUTRAL] = None
    """steps between checkpoints; unset: as often as evaluations"""
    eval_batch: Annotated[int, Between(1, 10**7)] = 256
    """images per batch in evaluation"""
    precision: Literal["32", "bf16-mixed"] = "32"
    """32, or bf16-mixed: bfloat16 where it is safe"""
    channels_last: bool = True
    """channels-last memory layout of images, faster for convolutions"""
    compile: bool = False
    """compile the network (torch.compile): a minute or more to start, then somewhat faster steps"""
    threads: Annotated[int, Between(0, 1024), NEUTRAL] = 0
    """CPU threads; 0: one for steps on small features, otherwise as many as torch uses"""
    accelerator: Annotated[Literal["auto", "cpu", "cuda", "mps"], NEUTRAL] = "auto"
    """device to train on"""
    devices: Annotated[int | None, Between(1, 10**5), NEUTRAL] = None
    """devices that share each batch, one process each; unset: as many as torchrun or srun started, else one"""
    strategy: Annotated[Literal["ddp", "fsdp"], NEUTRAL] = "ddp"
    """several devices: each holds the whole network (ddp), or a share of the backbone's weights (fsdp)"""
    logger: Annotated[Literal["none", "tensorboard", "wandb"], NEUTRAL] = "none"
    """where metrics go in addition to metrics.jsonl; needs the extra of the same name"""
    guard: Literal["auto", "none"] = "auto"
    """frozen: train on the labels alone as well, compare, and blend or fall back to the safer model; none: the method's
    own model as it is"""
    folds: Annotated[int, Between(0, 1000), NEUTRAL] = 0
    """after training, train this many more times, each with a part of the labels held out, to estimate accuracy
    without a test set"""


@dataclass(frozen=True)
class Settings:
    """Everything a run depends on. The same settings on the same machine give the same weights."""

    method: str = "dst(fixmatch)"
    """method to train; see 'selftrain list methods'"""
    regime: Literal["scratch", "finetune", "frozen"] = UNSET
    """train from random weights, fine-tune a whole pretrained backbone, or train on its frozen features"""
    seed: Seed = 0
    """seed of initial weights, batches and augmentation"""
    data: DataSettings = field(default_factory=DataSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


SECTIONS = {"data": DataSettings, "network": NetworkSettings, "optim": OptimSettings, "train": TrainSettings}


def known_settings() -> list[str]:
    """Return every setting by its dotted name; the options of a method are not among them."""
    return [f"{section}.{f.name}" for section, cls in SECTIONS.items() for f in fields(cls)] + [
        f.name for f in fields(Settings) if f.name not in SECTIONS
    ]


@cache
def _neutral() -> frozenset[str]:
    return frozenset(
        f"{section}.{name}" for section, cls in SECTIONS.items() for name, kind in field_kinds(cls).items()
        if is_neutral(kind)
    )  # fmt: skip


def changes_results(name: str) -> bool:
    """Tell whether a run gives other results when this setting changes; a method's options always do."""
    return name not in _neutral()


@cache
def _added() -> dict[str, frozenset[str]]:
    return {
        section: frozenset(name for name, kind in field_kinds(cls).items() if is_added(kind))
        for section, cls in SECTIONS.items()
    }


def identity(settings: Settings) -> dict[str, Any]:
    """Return the settings as nested names, without those that are younger than hashes and have their default."""
    tree = asdict(settings)
    for section, names in _added().items():
        for f in fields(SECTIONS[section]):
            if f.name in names and tree[section][f.name] == f.default:
                del tree[section][f.name]
    return tree


def settings_hash(settings: Settings) -> str:
    """Return the SHA-256 of all settings that change results; the split has a hash of its own for the images."""
    flat: dict[str, Any] = {name: value for name, value in flatten(identity(settings)).items() if changes_results(name)}
    flat["network.weights"] = Path(settings.network.weights).name  # the folder it is in does not matter
    if settings.data.junk_from is not None:  # nor here; names below data.root are the same on every machine
        flat["data.junk_from"] = [junk_name(folder) for folder in junk_folders(settings.data.junk_from)]
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()


def junk_folders(junk_from: str) -> list[str]:
    """Return the folders that ``data.junk_from`` names."""
    return [folder.strip() for folder in junk_from.split(",") if folder.strip()]


def junk_name(folder: str) -> str:
    """Return the name of a folder of junk: its path below ``data.root``, or its last part if it lies elsewhere."""
    return Path(folder).name if Path(folder).is_absolute() else Path(folder).as_posix()
