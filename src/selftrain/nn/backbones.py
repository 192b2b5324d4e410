"""Backbones (psi in the paper) by name: networks that turn images into pooled features.

Knows nothing of classes, methods, training or datasets. Images must be normalised as `Preprocessing` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.errors import UserError, nearest
from selftrain.files import expanded
from selftrain.nn.offline import OFFLINE, is_published, load_in_order, offline_file
from selftrain.nn.onnx_backbone import OnnxBackbone, is_file_backbone, open_backbone
from selftrain.nn.preprocessing import Preprocessing as Preprocessing
from selftrain.nn.timm_models import check_hub, create_timm, data_config, is_network_error, measure_dim, timm_config
from selftrain.nn.weights import load_file, read_checkpoint, short_reason
from selftrain.nn.wide_resnet import WIDE_RESNETS, wide_resnet

# timm is imported where it is used: importing it takes as long as torch itself, and a Wide ResNet does not need it.

KEYWORDS = ("auto", "none", "pretrained")


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
        self.weights = weights  # their origin: "none", "offline", "timm", "file" or the path of a local checkpoint
        self.pretrained = weights != "none"
        self.preprocessing = preprocessing

    @property
    def trainable(self) -> bool:
        """Whether it consists of torch's operations, so that it can be trained, folded and exported."""
        return not isinstance(self.net, OnnxBackbone)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features

    def extra_repr(self) -> str:
        return f"name={self.name!r}, dim={self.dim}, channels={self.channels}, weights={self.weights!r}"


class SideBySide(nn.Module):
    """The features of several backbones beside each other, those of each scaled to length 1.

    Images are normalised as the first backbone expects; the others get them as they expect.
    """

    def __init__(self, members: Sequence[Backbone]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        first = members[0].preprocessing
        for k, member in enumerate(members):
            mean, std, own_mean, own_std = (
                torch.tensor(values).view(-1, 1, 1)
                for values in (first.mean, first.std, member.preprocessing.mean, member.preprocessing.std)
            )
            self.register_buffer(f"scale_{k}", std / own_std, persistent=False)
            self.register_buffer(f"shift_{k}", (mean - own_mean) / own_std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            F.normalize(member(x * self.get_buffer(f"scale_{k}") + self.get_buffer(f"shift_{k}")), dim=1)
            for k, member in enumerate(self.members)
        ]
        return torch.cat(parts, dim=1)


def build_backbone(
    name: str, *, weights: str = "auto", size: int | None = None, channels: int = 3, pixels: str = "imagenet"
) -> Backbone:
    """Build the backbone called ``name``: a Wide ResNet, one of ``OFFLINE`` such as "lite0", any of timm, a file
    (.onnx, .pt2), or several with a plus sign between them, "lite0+lite2".

    ``weights``: "auto" loads pretrained weights if there are any, "none" is random, "pretrained" requires pretrained
    weights, and anything else is the path of a local checkpoint. ``size`` is the side of the input images (the
    backbone's own when None). timm's models always take three channels: with ``channels=1`` the result has
    ``channels == 3``, and the caller repeats the channel of grey images. ``pixels`` is what a file expects.
    """
    if weights not in KEYWORDS and not expanded(weights).is_file():
        choices = f"Choose auto, none, pretrained, or the path of a checkpoint.{nearest(weights, KEYWORDS)}"
        raise UserError(f"weights {weights!r}: the file does not exist. {choices}")
    if size is not None and size < 8:
        raise UserError(f"`size={size}`: images must be at least 8 pixels wide and high.")
    if "+" in name:
        return _build_side_by_side(name, weights, size, channels)
    if is_file_backbone(name):
        return _build_from_file(name, weights, size, pixels)
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
    rows += [BackboneInfo(name, offline.note, pretrained=True) for name, offline in OFFLINE.items()]
    if pattern is None:
        return rows
    import timm

    ours = [row for row in rows if fnmatchcase(row.name, pattern)]
    return ours + [BackboneInfo(name, "timm", timm.is_model_pretrained(name)) for name in timm.list_models(pattern)]


def _build_wide_resnet(name: str, weights: str, size: int | None, channels: int) -> Backbone:
    if weights == "pretrained":
        choices = "Choose none or the path of a checkpoint, or a pretrained backbone such as lite0"
        raise UserError(f"weights 'pretrained': there are none for backbone {name!r}. {choices}.")
    net = wide_resnet(name, channels=channels)
    source = "none" if weights in KEYWORDS else load_file(net, name, weights)
    # Fixed rather than measured, so that a run needs no extra pass over its images: pixels land in [-2, 2].
    prep = Preprocessing((0.5,) * channels, (0.25,) * channels, size or WIDE_RESNETS[name].size, "bilinear")
    return Backbone(net, name=name, dim=net.dim, channels=channels, weights=source, preprocessing=prep)


def _build_from_file(name: str, weights: str, size: int | None, pixels: str) -> Backbone:
    if weights not in ("auto", "pretrained"):
        raise UserError(f"weights {weights!r}: backbone {name!r} is a file that holds its weights. Leave them out.")
    net, dim, prep = open_backbone(name, pixels, size)
    return file_backbone(Path(name).name, net, dim, prep)


def file_backbone(name: str, net: OnnxBackbone, dim: int, preprocessing: Preprocessing) -> Backbone:
    """Return a network that came in a file as a backbone."""
    return Backbone(net, name=name, dim=dim, channels=3, weights="file", preprocessing=preprocessing)


def _build_side_by_side(name: str, weights: str, size: int | None, channels: int) -> Backbone:
    names = name.split("+")
    if any(is_file_backbone(one) for one in names):
        raise UserError(f"backbone {name!r}: a file cannot stand beside other backbones.")
    if not all(names) or len(set(names)) < len(names):
        raise UserError(f"backbone {name!r}: write different names with a plus sign between them, such as lite0+lite2.")
    if weights not in KEYWORDS:
        raise UserError(f"weights {weights!r}: one file cannot hold the weights of {len(names)} backbones, {name}.")
    members: list[Backbone] = []
    for one in names:
        side = size or (members[0].preprocessing.size if members else None)
        members.append(build_backbone(one, weights=weights, size=side, channels=channels))
    if len({member.channels for member in members}) > 1:
        raise UserError(f"backbone {name!r}: they take images with different numbers of channels.")
    sources = [member.weights for member in members]
    return Backbone(
        SideBySide(members),
        name=name,
        dim=sum(member.dim for member in members),
        channels=members[0].channels,
        weights="none" if "none" in sources else sources[0],
        preprocessing=members[0].preprocessing,
    )


def _build_timm(name: str, weights: str, size: int | None) -> Backbone:
    ours = OFFLINE.get(name)
    architecture = name if ours is None else ours.architecture
    config = timm_config(architecture, (*WIDE_RESNETS, *OFFLINE))
    wanted = weights in ("auto", "pretrained")
    if weights == "pretrained" and not config.has_weights:
        raise UserError(f"weights 'pretrained': timm has none for {name!r}. Choose none or the path of a checkpoint.")
    offline = offline_file(name) if ours is not None and wanted else None
    if ours is not None and not ours.downloads and wanted and offline is None:
        raise UserError(f"backbone {name!r}: its weights are not installed. Run {OFFLINE[name].install}.")
    download = wanted and bool(config.has_weights) and offline is None
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
        if not is_published(name, offline):
            raise UserError(f"weights {offline}: not the file that was published for backbone {name!r}. Reinstall it.")
        load_in_order(net, read_checkpoint(offline), offline, name)
        source = "offline"
    elif weights not in KEYWORDS:
        source = load_file(net, name, weights)

    if ours is not None:
        prep = ours.preprocessing
    else:
        data = data_config(net)
        prep = Preprocessing(tuple(data["mean"]), tuple(data["std"]), data["input_size"][-1], data["interpolation"])
    dim = measure_dim(net, name, config, size or prep.size)
    if source == "none" and size is not None:
        prep = replace(prep, size=size)
    return Backbone(net, name=name, dim=dim, channels=3, weights=source, preprocessing=prep)


def _no_weights(name: str, error: Exception) -> UserError:
    best = _next_best()
    advice = (
        f"Choose backbone {best}, which is installed" if best else f"Run {OFFLINE['lite0'].install} and choose lite0"
    )
    if name in OFFLINE:
        advice = f"Run {OFFLINE[name].install}"
    advice += ", or pass `network.weights=FILE` with a local checkpoint, or `network.weights=none` for random weights"
    return UserError(f"backbone {name!r}: its weights could not be downloaded ({short_reason(error)}). {advice}.")


def _next_best() -> str | None:
    """Return the best backbone whose weights are installed."""
    return next((name for name in ("lite2", "lite1", "lite0") if offline_file(name) is not None), None)
