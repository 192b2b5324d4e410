"""Backbones (psi in the paper) by name: networks that turn images into pooled features.

Knows nothing of classes, methods, training or datasets. Images must be normalised as `Preprocessing` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from torch import Tensor, nn

from selftrain.config.options import Above, Between
from selftrain.errors import UserError, nearest
from selftrain.nn.timm_models import check_hub, create_timm, data_config, is_network_error, measure_dim, timm_config
from selftrain.nn.weights import LITE0, lite0_file, load_file, load_lite0, read_checkpoint, short_reason
from selftrain.nn.wide_resnet import WIDE_RESNETS, wide_resnet

# timm is imported where it is used: importing it takes as long as torch itself, and a Wide ResNet does not need it.

LITE0_TIMM = "tf_efficientnet_lite0"
LITE0_NOTE = "EfficientNet-Lite0 with ImageNet weights, fast on a CPU, offline with the extra selftrain[offline]"
KEYWORDS = ("auto", "none", "pretrained")


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone expects its pixels: x = (pixel/255 - mean) / std."""

    mean: tuple[float, ...]
    """one value per channel"""
    std: tuple[Annotated[float, Above(0)], ...]
    size: Annotated[int, Between(0, 4096)]
    """side in pixels at which the weights were trained; with random weights, the requested or intended side"""
    interpolation: str
    """bilinear, bicubic or nearest"""
    crop: Annotated[float, Between(0, 1)] = 1.0
    """share of the shorter side that the central crop of a clean view keeps"""
    zoom: Annotated[float, Between(0, 1)] = 0.0
    """share of that crop which a second, smaller one keeps; clean features are the mean of both; 0: none"""


# EfficientNet-Lite was trained on (pixel - 127) / 128, whichever file its weights come from.
LITE0_PREPROCESSING = Preprocessing((127 / 255,) * 3, (128 / 255,) * 3, 224, "bicubic")


@dataclass(frozen=True)
class BackboneInfo:
    """One row of the list of backbones."""

    name: str
    note: str
    pretrained: bool  # whether weights="pretrained" can work


class Backbone(nn.Module):
    """Normalised images (B, channels, H, W) -> pooled features (B, dim)."""

    def __init__(
        self, net: nn.Module, *, name: str, dim: int, channels: int, weights: str, preprocessing: Preprocessing
    ) -> None:
        super().__init__()
        self.net = net
        self.name = name
        self.dim = dim
        self.channels = channels
        self.weights = weights  # their origin: "none", "offline", "timm" or the path of a local file
        self.pretrained = weights != "none"
        self.preprocessing = preprocessing

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features

    def extra_repr(self) -> str:
        return f"name={self.name!r}, dim={self.dim}, channels={self.channels}, weights={self.weights!r}"


def build_backbone(name: str, *, weights: str = "auto", size: int | None = None, channels: int = 3) -> Backbone:
    """Build the backbone called ``name``: a Wide ResNet, "lite0", or any model of timm.

    ``weights``: "auto" loads pretrained weights if there are any, "none" is random, "pretrained" requires pretrained
    weights, and anything else is the path of a local checkpoint. ``size`` is the side of the input images (the
    backbone's own when None). timm's models always take three channels: with ``channels=1`` the result has
    ``channels == 3``, and the caller repeats the channel of grey images.
    """
    if weights not in KEYWORDS and not Path(weights).expanduser().is_file():
        choices = f"Choose auto, none, pretrained, or the path of a checkpoint.{nearest(weights, KEYWORDS)}"
        raise UserError(f"weights {weights!r}: the file does not exist. {choices}")
    if size is not None and size < 8:
        raise UserError(f"`size={size}`: images must be at least 8 pixels wide and high.")
    if name in WIDE_RESNETS:
        return _build_wide_resnet(name, weights, size, channels)
    if channels not in (1, 3):
        raise UserError(
            f"backbone {name!r} takes images with 1 or 3 channels, not {channels}; wrn-28-2 takes any number."
        )
    return _build_timm(name, weights, size)


def list_backbones(pattern: str | None = None) -> list[BackboneInfo]:
    """Return our own backbones; with a shell ``pattern``, all matching names, ours first and then timm's."""
    rows = [BackboneInfo(name, shape.note, pretrained=False) for name, shape in WIDE_RESNETS.items()]
    rows.append(BackboneInfo(LITE0, LITE0_NOTE, pretrained=True))
    if pattern is None:
        return rows
    import timm

    ours = [row for row in rows if fnmatchcase(row.name, pattern)]
    return ours + [BackboneInfo(name, "timm", timm.is_model_pretrained(name)) for name in timm.list_models(pattern)]


def _build_wide_resnet(name: str, weights: str, size: int | None, channels: int) -> Backbone:
    if weights == "pretrained":
        choices = f"Choose none or the path of a checkpoint, or a pretrained backbone such as {LITE0}"
        raise UserError(f"weights 'pretrained': there are none for backbone {name!r}. {choices}.")
    net = wide_resnet(name, channels=channels)
    source = "none" if weights in KEYWORDS else load_file(net, name, weights)
    # Fixed rather than measured, so that a run needs no extra pass over its images: pixels land in [-2, 2].
    prep = Preprocessing((0.5,) * channels, (0.25,) * channels, size or WIDE_RESNETS[name].size, "bilinear")
    return Backbone(net, name=name, dim=net.dim, channels=channels, weights=source, preprocessing=prep)


def _build_timm(name: str, weights: str, size: int | None) -> Backbone:
    architecture = LITE0_TIMM if name == LITE0 else name
    config = timm_config(architecture, (*WIDE_RESNETS, LITE0))
    if weights == "pretrained" and not config.has_weights:
        raise UserError(f"weights 'pretrained': timm has none for {name!r}. Choose none or the path of a checkpoint.")
    offline = lite0_file() if name == LITE0 and weights in ("auto", "pretrained") else None
    download = weights in ("auto", "pretrained") and bool(config.has_weights) and offline is None
    try:
        if download:
            check_hub(config)
        net = create_timm(architecture, config, size, pretrained=download)
    except Exception as error:
        if not download or not is_network_error(error):
            raise
        raise _no_weights(name, error) from error

    source = "timm" if download else "none"
    if offline is not None:
        load_lite0(net, read_checkpoint(offline), offline)
        source = "offline"
    elif weights not in KEYWORDS:
        source = load_file(net, name, weights)

    if name == LITE0:
        prep = LITE0_PREPROCESSING
    else:
        data = data_config(net)
        prep = Preprocessing(tuple(data["mean"]), tuple(data["std"]), data["input_size"][-1], data["interpolation"])
    dim = measure_dim(net, name, config, size or prep.size)
    if source == "none" and size is not None:
        prep = replace(prep, size=size)
    return Backbone(net, name=name, dim=dim, channels=3, weights=source, preprocessing=prep)


def _no_weights(name: str, error: Exception) -> UserError:
    advice = 'pip install "selftrain[offline]"' + ("" if name == LITE0 else f" and choose backbone {LITE0}")
    advice += ", or pass `network.weights=FILE` with a local checkpoint, or `network.weights=none` for random weights"
    return UserError(f"backbone {name!r}: its weights could not be downloaded ({short_reason(error)}). Run {advice}.")
