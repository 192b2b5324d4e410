"""A trained classifier as files: ``model.safetensors`` and ``model.json`` (classes, preprocessing, backbone).

Knows nothing of training: what is here is enough to predict, and holds no code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from selftrain import __version__
from selftrain.backbones import Backbone, Preprocessing, build_backbone
from selftrain.errors import UserError
from selftrain.files import read_json, replacing, write_json
from selftrain.network import Classifier, Encoder, mlp_head
from selftrain.settings import NetworkSettings

WEIGHTS, CARD = "model.safetensors", "model.json"
FORMAT = 1


@dataclass(frozen=True)
class ModelCard:
    """All that is needed to rebuild a classifier and feed it, apart from its weights."""

    classes: tuple[str, ...]
    backbone: str
    channels: int
    preprocessing: Preprocessing
    """mean, std, side in pixels and interpolation of what the network sees"""
    bottleneck: int = 0
    dropout: float = 0.5
    head: str = "linear"
    head_width: int = 1024


def make_card(network: NetworkSettings, backbone: Backbone, classes: tuple[str, ...], side: int) -> ModelCard:
    like = backbone.preprocessing
    return ModelCard(
        classes=classes,
        backbone=network.backbone,
        channels=backbone.channels,
        preprocessing=Preprocessing(like.mean, like.std, side, like.interpolation),
        bottleneck=network.bottleneck,
        dropout=network.dropout,
        head=network.head,
        head_width=network.head_width,
    )


def make_classifier(card: ModelCard, backbone: Backbone, *, channels_last: bool = True) -> Classifier:
    """h(psi(.)) as the card describes it, with fresh heads."""
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


def save_model(folder: Path, classifier: nn.Module, card: ModelCard, about: dict[str, Any]) -> None:
    """Write weights, then the card; a folder with a card is whole."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in classifier.state_dict().items()}
    with replacing(folder / WEIGHTS) as temporary:
        safetensors.torch.save_file(state, temporary)
    write_json(folder / CARD, {"format": FORMAT, "selftrain": __version__, **asdict(card), **about})


def load_model(folder: Path) -> tuple[Classifier, ModelCard]:
    """The classifier of a run's ``model`` folder, in evaluation mode on the CPU."""
    if not (folder / CARD).exists():
        raise UserError(f"{folder}: no trained model here ({CARD} is missing). Is the run finished?")
    values = read_json(folder / CARD)
    try:
        card = ModelCard(
            **{
                **{key: values[key] for key in ModelCard.__dataclass_fields__},
                "classes": tuple(values["classes"]),
                "preprocessing": Preprocessing(
                    mean=tuple(values["preprocessing"]["mean"]),
                    std=tuple(values["preprocessing"]["std"]),
                    size=values["preprocessing"]["size"],
                    interpolation=values["preprocessing"]["interpolation"],
                ),
            }
        )
        backbone = build_backbone(card.backbone, weights="none", size=card.preprocessing.size, channels=card.channels)
        classifier = make_classifier(card, backbone)
        classifier.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    except (KeyError, TypeError, RuntimeError, OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: not a model this version can read ({str(error).splitlines()[0]}).") from None
    return classifier.eval(), card
