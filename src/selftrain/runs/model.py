"""A trained classifier as files: ``model.safetensors`` and ``model.json`` (classes, preprocessing, backbone).

Knows nothing of training. The files are all that prediction needs, and hold no code.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from selftrain.config.settings import NetworkSettings
from selftrain.errors import UserError
from selftrain.files import cannot_write, read_json, replacing, write_json
from selftrain.methods import make_method
from selftrain.methods.fitted import FittedMethod
from selftrain.methods.junk import Novelty
from selftrain.nn.backbones import Backbone, Preprocessing, build_backbone
from selftrain.nn.layers import Classifier, Committee, Encoder, OnFeatures, UnitFeatures, mlp_head
from selftrain.nn.network import Network, Task
from selftrain.runs.layout import ModelLayout
from selftrain.text import first_line
from selftrain.version import __version__

FORMAT = 1
WITHOUT_NOVELTY = "If you delete it, the model predicts without novelty."
BACKBONE = "encoder.backbone."  # prefix of a frozen backbone's weights
OPTIONAL = ("neighbours", "reference", "integer_classes", "origin")  # fields that older models lack


@dataclass(frozen=True)
class ModelCard:
    """Everything needed to rebuild a classifier and its input, apart from the weights."""

    classes: tuple[str, ...]
    backbone: str
    channels: int
    preprocessing: Preprocessing
    """mean, std, side in pixels and interpolation of the images that the network sees"""
    bottleneck: int = 0
    dropout: float = 0.5
    head: str = "linear"
    head_width: int = 1024
    frozen: bool = False
    """psi is trained on fixed features of the backbone"""
    features: int = 0
    """number of features, if the input is the user's own features and there is no backbone"""
    unit_features: bool = True
    weights: str = ""
    """hash of a frozen backbone's weights"""
    predictor: str = ""
    """the method that rebuilds the predictor, if it is more than one network with one head"""
    neighbours: str = ""
    """the method that rebuilds the second model of a blend, if there is one"""
    reference: bool = False
    """whether a model that was trained on the labels alone is the third model of the blend"""
    integer_classes: bool = False
    """whether the labels were integers, which predictions in Python then are as well"""
    origin: dict[str, Any] | None = None
    """the backbone that made the features, if the input is features and it is known"""


def make_card(
    network: NetworkSettings,
    backbone: Backbone | None,
    classes: tuple[str, ...],
    side: int,
    crop: float = 1.0,
    zoom: float = 0.0,
    **more: Any,
) -> ModelCard:
    like = backbone.preprocessing if backbone else Preprocessing((0.0,), (1.0,), 0, "nearest")
    return ModelCard(
        classes=classes,
        backbone=network.backbone,
        channels=backbone.channels if backbone else 0,
        preprocessing=Preprocessing(like.mean, like.std, side, like.interpolation, crop, zoom),
        bottleneck=network.bottleneck,
        dropout=network.dropout,
        head=network.head,
        head_width=network.head_width,
        unit_features=network.unit_features,
        **more,
    )


def make_classifier(card: ModelCard, backbone: nn.Module, *, channels_last: bool = True) -> Classifier:
    """Return h(psi(.)) as the card describes it, with new random heads."""
    psi = Encoder(
        backbone,
        mean=card.preprocessing.mean,
        std=card.preprocessing.std,
        bottleneck=card.bottleneck,
        dropout=card.dropout,
        channels_last=channels_last,
    )
    K = len(card.classes)
    h: nn.Module = nn.Linear(psi.dim, K) if card.head == "linear" else mlp_head(psi.dim, card.head_width, K)
    return Classifier(psi, h)


def make_encoder(card: ModelCard, backbone: Backbone) -> Encoder:
    """Return the backbone with the normalisation of pixels in front of it."""
    return Encoder(backbone, mean=card.preprocessing.mean, std=card.preprocessing.std)


def save_model(
    folder: Path, model: nn.Module, card: ModelCard, about: dict[str, Any], *, save_backbone: bool = True
) -> None:
    """Write the weights, then the card, so that a folder with a card is complete. A frozen backbone may be left out."""
    left_out = () if save_backbone or not card.frozen else (BACKBONE,)
    state = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if not (left_out and name.startswith(left_out))
    }
    files = ModelLayout(folder)
    _write_tensors(files.weights, state)
    write_json(files.card, {"format": FORMAT, "selftrain": __version__, **asdict(card), **about})


def save_novelty(folder: Path, novelty: Novelty | None) -> None:
    """Write the novelty of images beside the model, before its card is written; without one, remove an older file."""
    path = ModelLayout(folder).novelty
    if novelty is None:
        path.unlink(missing_ok=True)
    else:
        _write_tensors(path, {name: value.detach().cpu().contiguous() for name, value in novelty.state_dict().items()})


def load_novelty(folder: Path, *, classes: int | None = None, dim: int | None = None) -> Novelty | None:
    """Return the novelty of images that is stored beside the model, or None.

    ``classes`` and ``dim`` (the length of a feature vector) are checked if they are given.
    """
    path = ModelLayout(folder).novelty
    if not path.exists():
        return None
    try:
        novelty = Novelty(**safetensors.torch.load_file(path))
    except (TypeError, OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}). {WITHOUT_NOVELTY}") from None
    K, d = novelty.prototypes.shape if novelty.prototypes.ndim == 2 else (-1, -1)
    single = (novelty.threshold, novelty.scale, novelty.quartile)
    if novelty.centre.shape != (d,) or any(value.shape != () for value in single):
        raise UserError(f"{path}: its arrays do not fit together. {WITHOUT_NOVELTY}")
    if classes not in (None, K) or dim not in (None, d):
        raise UserError(
            f"{path}: made for {K} classes and {d} features, but the model has {classes or K} classes and {dim or d} "
            "features. Does the file belong to another model?"
        )
    return novelty.eval()


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with replacing(path) as temporary:
        try:
            safetensors.torch.save_file(tensors, temporary)
        except safetensors.SafetensorError as error:
            raise cannot_write(path, error) from None


def load_model(folder: Path) -> tuple[nn.Module, ModelCard]:
    """Return the model of a run's ``model`` folder, in evaluation mode on the CPU, and its card."""
    files = ModelLayout(folder)
    if not files.card.exists():
        raise UserError(f"{folder}: no trained model here ({files.card.name} is missing). Is the run finished?")
    values = read_json(files.card)
    try:
        card = ModelCard(
            **{
                **{key: values[key] for key in ModelCard.__dataclass_fields__ if key in values or key not in OPTIONAL},
                "classes": tuple(values["classes"]),
                "preprocessing": preprocessing_from(values["preprocessing"]),
            }
        )
        state = safetensors.torch.load_file(files.weights)
        model = _empty_model(card, state)
        model.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError, OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: not a model that this version can read ({first_line(error)}).") from None
    return model.eval(), card


def preprocessing_from(values: dict[str, Any]) -> Preprocessing:
    """Return the preprocessing that a card describes."""
    return Preprocessing(
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
        size=values["size"],
        interpolation=values["interpolation"],
        crop=values.get("crop", 1.0),  # older models lack the last two
        zoom=values.get("zoom", 0.0),
    )


def _empty_model(card: ModelCard, state: dict[str, Tensor]) -> nn.Module:
    """Return the model that a saved state belongs to. If a frozen backbone was left out of the state, add it."""
    if card.features:
        return _empty_predictor(card, UnitFeatures(card.features, card.unit_features), (card.features,))
    kept = not card.frozen or any(name.startswith(BACKBONE) for name in state)
    how = "none" if kept else "pretrained"
    side, channels = card.preprocessing.size, card.channels
    backbone = build_backbone(card.backbone, weights=how, size=side, channels=channels)
    if not card.frozen:
        return _empty_predictor(card, backbone, (channels, side, side))
    if not kept:
        if weights_hash(backbone) != card.weights:
            raise UserError(f"backbone {card.backbone}: these are not the weights that this model was trained on.")
        state |= {f"{BACKBONE}{name}": value for name, value in backbone.state_dict().items()}
    unit = UnitFeatures(backbone.dim, card.unit_features)
    predictor = _empty_predictor(card, unit, (backbone.dim,))
    return OnFeatures(make_encoder(card, backbone), predictor, card.preprocessing.zoom)


def _empty_predictor(card: ModelCard, backbone: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    if card.neighbours:
        second = make_method(card.neighbours, "frozen")
        assert isinstance(second, FittedMethod)
        own = _empty_predictor(replace(card, neighbours=""), backbone, shape)
        third = [make_classifier(card, copy.deepcopy(backbone))] if card.reference else []
        return Committee(own, second.empty_predictor(), *third)
    classifier = make_classifier(card, backbone)
    if not card.predictor:
        return classifier
    method = make_method(card.predictor, "frozen" if card.frozen else "scratch")
    net = Network(classifier, Task(len(card.classes), unlabeled=1, steps=1, shape=shape))
    method.setup(net)
    return method.predictor(net)


def weights_hash(module: nn.Module) -> str:
    """Return a hash of every number in a module."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
