"""A trained classifier as files: ``model.safetensors`` and ``model.json`` (classes, preprocessing, backbone).

Knows nothing of training. The files are all that prediction needs, and hold no code.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from selftrain.checksums import FIELD, is_damaged, sealed
from selftrain.config.options import Between
from selftrain.config.schema import check
from selftrain.config.settings import NetworkSettings
from selftrain.errors import UserError
from selftrain.files import read_json, write_json
from selftrain.methods import make_method
from selftrain.methods.fitted import FittedMethod
from selftrain.methods.junk import Novelty
from selftrain.nn.backbones import Backbone, Preprocessing, build_backbone, file_backbone
from selftrain.nn.layers import Blend, Classifier, Committee, Encoder, OnFeatures, Tempered, UnitFeatures, mlp_head
from selftrain.nn.network import Network, Task
from selftrain.nn.onnx_backbone import OnnxBackbone, is_file_backbone
from selftrain.nn.tensor_file import Stored, check_finite, read_tensors, stored_tensors, write_tensors
from selftrain.nn.tuning import merged_state
from selftrain.runs.layout import ModelLayout
from selftrain.text import first_line
from selftrain.version import __version__

FORMAT = 1
WITHOUT_NOVELTY = "If you delete it, the model predicts without novelty."
LARGEST_NOVELTY = 1 << 28  # bytes
BACKBONE = "encoder.backbone."  # prefix of a frozen backbone's weights
OPTIONAL = (
    "neighbours",
    "inner_neighbours",
    "reference",
    "integer_classes",
    "origin",
    "temperature",
    "doubt",
    "prior",
    "backbone_dim",
    "precision",
)  # fields that older models lack


@dataclass(frozen=True)
class ModelCard:
    """Everything needed to rebuild a classifier and its input, apart from the weights."""

    classes: tuple[str, ...]
    backbone: str
    channels: Annotated[int, Between(0, 64)]
    preprocessing: Preprocessing
    """mean, std, side in pixels and interpolation of the images that the network sees"""
    bottleneck: Annotated[int, Between(0, 65536)] = 0
    dropout: Annotated[float, Between(0, 1)] = 0.5
    head: Literal["linear", "mlp"] = "linear"
    head_width: Annotated[int, Between(1, 65536)] = 1024
    frozen: bool = False
    """psi is trained on fixed features of the backbone"""
    features: Annotated[int, Between(0, 1048576)] = 0
    """number of features, if the input is the user's own features and there is no backbone"""
    unit_features: bool = True
    weights: str = ""
    """hash of a frozen backbone's weights"""
    predictor: str = ""
    """the method that rebuilds the predictor, if it is more than one network with one head"""
    neighbours: str = ""
    """the method that rebuilds the second model of a blend, if there is one"""
    inner_neighbours: bool = False
    """whether the blend also has a model of that method on the features of its own psi"""
    reference: bool = False
    """whether a model that was trained on the labels alone is the last model of the blend"""
    integer_classes: bool = False
    """whether the labels were integers, which predictions in Python then are as well"""
    origin: dict[str, Any] | None = None
    """the backbone that made the features, if the input is features and it is known"""
    temperature: tuple[float, ...] = ()
    """by which logits are divided, for each predicted class; empty if probabilities are not calibrated"""
    doubt: Annotated[float, Between(0, 100)] = 0.0
    """the temperature of an image is multiplied by 1 + doubt (1 - its highest probability)"""
    prior: tuple[float, ...] = ()
    """class frequencies of the images that the model was trained on; empty if they are not known"""
    backbone_dim: Annotated[int, Between(0, 1048576)] = 0
    """number of features of a backbone that came in a file"""
    precision: Literal["32", "bf16"] = "32"
    """numbers with which a frozen backbone computed the features that the model was trained on"""


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
    from_file = backbone is not None and not backbone.trainable
    return ModelCard(
        classes=classes,
        backbone=backbone.name if backbone is not None and from_file else network.backbone,
        backbone_dim=backbone.dim if backbone is not None and from_file else 0,
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
    folder: Path,
    model: nn.Module,
    card: ModelCard,
    about: dict[str, Any],
    *,
    novelty: Novelty | None = None,
    save_backbone: bool = True,
) -> None:
    """Write the weights, then the card with their checksums, so that a folder with a card is complete.

    ``novelty`` tells images of no class; without one, an older file is removed. A frozen backbone may be left out.
    """
    left_out = () if save_backbone or not card.frozen else (BACKBONE,)
    state = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in merged_state(model).items()
        if not (left_out and name.startswith(left_out))
    }
    files, within = ModelLayout(folder), folder.parent
    sums = {files.weights.name: write_tensors(files.weights, state, within=within)}
    if (found := save_novelty(folder, novelty)) is not None:
        sums[files.novelty.name] = found
    record = {"format": FORMAT, "selftrain": __version__, **asdict(card), **about, "checksums": sums}
    write_json(files.card, sealed(json.loads(json.dumps(record))), within=within)


def save_novelty(folder: Path, novelty: Novelty | None) -> str | None:
    """Write the novelty of images beside the model and return its checksum; without one, remove an older file."""
    path = ModelLayout(folder).novelty
    if novelty is None:
        path.unlink(missing_ok=True)
        return None
    arrays = {name: value.detach().cpu().contiguous() for name, value in novelty.state_dict().items()}
    return write_tensors(path, arrays, within=folder.parent)


def load_novelty(folder: Path, *, classes: int | None = None, dim: int | None = None) -> Novelty | None:
    """Return the novelty of images that is stored beside the model, or None.

    ``classes`` and ``dim`` (the length of a feature vector) are checked if they are given.
    """
    files = ModelLayout(folder)
    path = files.novelty
    if not path.exists():
        return None
    try:
        known = _checksums(_read_card(files)) if files.card.exists() else {}
        stored = read_tensors(path, checksum=known.get(path.name), most=LARGEST_NOVELTY)
        check_finite(stored, path)
        novelty = Novelty(**stored)
    except (TypeError, UserError) as error:
        why = str(error) if isinstance(error, UserError) else f"{path}: cannot be read ({first_line(error)})."
        raise UserError(f"{why} {WITHOUT_NOVELTY}") from None
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


def load_model(folder: Path) -> tuple[nn.Module, ModelCard]:
    """Return the model of a run's ``model`` folder, in evaluation mode on the CPU, and its card.

    The folder may come from anybody. Shapes are compared before memory is taken for them, checksums before numbers are
    used, and the weights of a frozen backbone are hashed: features are stored under the hash of what computed them.
    Its logits are calibrated: their softmax is what ``predict`` writes.
    """
    files = ModelLayout(folder)
    values = _read_card(files)
    try:
        card = ModelCard(
            **{
                **{key: values[key] for key in ModelCard.__dataclass_fields__ if key in values or key not in OPTIONAL},
                "classes": tuple(values["classes"]),
                "preprocessing": preprocessing_from(values["preprocessing"]),
                "temperature": _per_class(values, "temperature"),
                "prior": _per_class(values, "prior"),
            }
        )
        if {len(card.preprocessing.mean), len(card.preprocessing.std)} - {1, card.channels}:
            raise ValueError("mean and std need one number per channel")
        _compare_shapes(card, stored_tensors(files.weights), files.weights)
        state = read_tensors(files.weights, checksum=_checksums(values).get(files.weights.name))
        check_finite(state, files.weights)
        model = _empty_model(card, state)
        model.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError, AssertionError, ValueError, OSError) as error:
        raise UserError(f"{folder}: not a model that this version can read ({first_line(error)}).") from None
    if isinstance(model, OnFeatures):
        card = replace(card, weights=_backbone_hash(model, card, folder))
    return calibrated(model, card).eval(), card


def calibrated(model: nn.Module, card: ModelCard) -> nn.Module:
    """Return a model whose probabilities are calibrated as the card says: the same classes, other confidences."""
    if not card.temperature:
        return model
    if isinstance(model, OnFeatures):
        return OnFeatures(model.encoder, Tempered(model.predictor, card.temperature, card.doubt), model.zoom)
    return Tempered(model, card.temperature, card.doubt)


def _per_class(values: dict[str, Any], name: str) -> tuple[float, ...]:
    """Return one positive number per class from a card, or nothing if the card has none."""
    found = tuple(float(value) for value in values.get(name) or ())
    if found and (len(found) != len(values["classes"]) or not all(0 <= value < math.inf for value in found)):
        raise ValueError(f"{name}: expected {len(values['classes'])} positive numbers, one per class")
    if name == "temperature" and not all(found):
        raise ValueError(f"{name}: must be positive")
    return found


def _read_card(files: ModelLayout) -> dict[str, Any]:
    """Return the content of ``model.json``, if it is a card and not damaged."""
    if not files.card.exists():
        raise UserError(f"{files.folder}: no trained model here ({files.card.name} is missing). Is the run finished?")
    values: dict[str, Any] = check(read_json(files.card), ModelCard, str(files.card))
    if is_damaged(values):
        raise UserError(
            f"{files.card}: differs from its checksum: it is damaged, or was edited. If you edited it, remove the line "
            f"{FIELD!r}."
        )
    return values


def _checksums(values: dict[str, Any]) -> dict[str, str]:
    """Return the checksums of the other files of a model; models of older versions have none."""
    found: dict[str, str] = check(values.get("checksums", {}), dict[str, str], "model.json, checksums")
    return found


def _compare_shapes(card: ModelCard, stored: dict[str, Stored], path: Path) -> None:
    """Raise a UserError if a file holds other tensors than the card describes, before memory is taken for either."""
    with torch.device("meta"):
        described = _empty_model(card, stored).state_dict()
    expected = {name: tuple(value.shape) for name, value in described.items()}
    if not any(name.startswith(BACKBONE) for name in stored):
        expected = {name: shape for name, shape in expected.items() if not name.startswith(BACKBONE)}
    for name in expected.keys() | stored.keys():
        if name not in stored or name not in expected:
            raise UserError(f"{path}: does not belong to its model.json: {name} is {_where(name in stored)}.")
        if math.prod(expected[name]) and stored[name].shape != expected[name]:  # fitted methods restore their shapes
            raise UserError(
                f"{path}: does not belong to its model.json: {name} has the shape {stored[name].shape}, not "
                f"{expected[name]}."
            )


def _where(stored: bool) -> str:
    return "in the file but not in the model" if stored else "missing"


def _backbone_hash(model: OnFeatures, card: ModelCard, folder: Path) -> str:
    found = weights_hash(model.encoder.backbone)
    if card.weights and card.weights != found:
        raise UserError(
            f"{folder}: its backbone has other weights than the one that it was trained on ({found[:12]} instead of "
            f"{card.weights[:12]}): the files are damaged, or were changed."
        )
    return found


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


def _empty_model(card: ModelCard, state: dict[str, Tensor] | dict[str, Stored]) -> nn.Module:
    """Return the model that a saved state belongs to. If a frozen backbone was left out of the state, add it."""
    in_memory = torch.get_default_device().type != "meta"
    if card.features:
        return _empty_predictor(card, UnitFeatures(card.features, card.unit_features), (card.features,))
    kept = not card.frozen or any(name.startswith(BACKBONE) for name in state)
    how = "pretrained" if in_memory and not kept else "none"
    side, channels = card.preprocessing.size, card.channels
    if is_file_backbone(card.backbone):  # the file's path may be anybody's: only what the model itself holds is run
        if not kept or not card.frozen:
            raise UserError(f"backbone {card.backbone}: came in a file, which is not part of this model.")
        backbone = file_backbone(card.backbone, OnnxBackbone(), card.backbone_dim, card.preprocessing)
    else:
        backbone = build_backbone(card.backbone, weights=how, size=side, channels=channels)
    if not card.frozen:
        return _empty_predictor(card, backbone, (channels, side, side))
    if in_memory and not kept:
        if weights_hash(backbone) != card.weights:
            raise UserError(f"backbone {card.backbone}: these are not the weights that this model was trained on.")
        state.update({f"{BACKBONE}{name}": value for name, value in backbone.state_dict().items()})
    unit = UnitFeatures(backbone.dim, card.unit_features)
    predictor = _empty_predictor(card, unit, (backbone.dim,))
    return OnFeatures(make_encoder(card, backbone), predictor, card.preprocessing.zoom)


def _empty_predictor(card: ModelCard, backbone: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    if card.neighbours:
        second = make_method(card.neighbours, "frozen")
        assert isinstance(second, FittedMethod)
        own = _empty_predictor(replace(card, neighbours=""), backbone, shape)
        others: list[nn.Module] = [second.empty_predictor()]
        if card.reference:
            others.append(make_classifier(card, copy.deepcopy(backbone)))
        if not card.inner_neighbours:
            return Committee(own, *others)
        assert isinstance(own, Classifier)
        return Blend(own, second.empty_predictor(), *others)
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
        digest.update(value.detach().cpu().contiguous().reshape(-1).numpy())
    return digest.hexdigest()
