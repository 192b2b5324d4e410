"""Parts of a backbone that are trained: the same network at the start, gradient where declared, ordinary when saved."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import selftrain
from selftrain.config.resolve import make_settings
from selftrain.engine.optim import make_sgd
from selftrain.errors import UserError
from selftrain.nn.backbones import Backbone, build_backbone
from selftrain.nn.layers import Classifier, Encoder
from selftrain.nn.network import Network, Task
from selftrain.nn.tuning import LowRank, merged_state, tune
from tests.engine.test_resume import assert_same
from tests.folders import layout_2

VIT, CNN, SIDE = "test_vit", "test_efficientnet", 32


def weights_of(name: str, folder: Path) -> str:
    """Return a file of weights, so that the backbone counts as pretrained."""
    torch.manual_seed(0)
    backbone = build_backbone(name, weights="none", size=SIDE)
    file = folder / f"{name}.safetensors"
    safetensors.torch.save_file(backbone.net.state_dict(), file)
    return str(file)


def backbone_of(name: str, folder: Path) -> Backbone:
    return build_backbone(name, weights=weights_of(name, folder), size=SIDE)


def network_of(backbone: Backbone) -> Network:
    psi = Encoder(backbone, mean=(0.5,) * 3, std=(0.25,) * 3, bottleneck=16, dropout=0.0)
    return Network(Classifier(psi, nn.Linear(16, 3)), Task(3, 10, 10, (3, SIDE, SIDE)))


def images(n: int = 6) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize(("name", "how"), [(VIT, "lora"), (VIT, "norm"), (CNN, "norm"), (CNN, "all")])
def test_a_tuned_network_starts_as_the_pretrained_one(tmp_path: Path, name: str, how: str) -> None:
    backbone = backbone_of(name, tmp_path)
    before = copy.deepcopy(backbone).eval()
    tune(backbone, how, 4, SIDE)
    x = torch.randn(2, 3, SIDE, SIDE)
    assert torch.equal(backbone.eval()(x), before(x))


def test_lora_reaches_every_linear_layer_of_a_transformer(tmp_path: Path) -> None:
    backbone = backbone_of(VIT, tmp_path)
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    tune(backbone, "lora", 4, SIDE)
    assert [name for name, module in backbone.named_modules() if isinstance(module, LowRank)] == linear
    assert len(linear) >= 4


def trained_names(net: Network) -> set[str]:
    """Return the parameters that a step of SGD changes, and check that they are those with a gradient."""
    optimizer = make_sgd(net, make_settings("finetune", {"optim.lr": 0.1, "optim.weight_decay": 0.0}).optim)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for _ in range(2):  # A has no gradient as long as B is zero
        loss = torch.nn.functional.cross_entropy(net.classifier(images()), torch.arange(6) % 3)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize(("name", "how"), [(VIT, "lora"), (VIT, "norm"), (CNN, "norm")])
def test_gradient_flows_into_the_tuned_part_and_the_heads_alone(tmp_path: Path, name: str, how: str) -> None:
    backbone = backbone_of(name, tmp_path)
    tune(backbone, how, 4, SIDE)
    changed = trained_names(network_of(backbone))
    inside = {name for name in changed if ".backbone." in name}
    assert {name for name in changed if ".backbone." not in name} >= {"classifier.h.weight", "classifier.h.bias"}
    declared = {f"classifier.psi.backbone.{name}" for name, p in backbone.named_parameters() if p.requires_grad}
    assert inside == declared
    wanted = ("lora_a", "lora_b") if how == "lora" else ("norm", "bn", "weight", "bias")
    assert inside
    assert all(any(word in name for word in wanted) for name in inside)
    assert sum(p.numel() for p in backbone.parameters() if p.requires_grad) < 0.25 * sum(
        p.numel() for p in backbone.parameters()
    )


def test_norm_trains_what_a_list_of_norm_layers_says(tmp_path: Path) -> None:
    backbone = backbone_of(CNN, tmp_path)
    tune(backbone, "norm", 4, SIDE)
    batch_norm = {
        f"{name}.{kind}"
        for name, module in backbone.named_modules()
        for kind in ("weight", "bias")
        if isinstance(module, nn.BatchNorm2d)
    }
    assert {name for name, p in backbone.named_parameters() if p.requires_grad} == batch_norm


def test_low_rank_weights_learn_at_the_rate_of_the_heads(tmp_path: Path) -> None:
    backbone = backbone_of(VIT, tmp_path)
    tune(backbone, "lora", 4, SIDE)
    optimizer = make_sgd(network_of(backbone), make_settings("finetune", {"optim.lr": 0.1}).optim)
    assert {group["lr"] for group in optimizer.param_groups} == {0.1}
    backbone = backbone_of(VIT, tmp_path)
    tune(backbone, "norm", 4, SIDE)
    optimizer = make_sgd(network_of(backbone), make_settings("finetune", {"optim.lr": 0.1}).optim)
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([0.01, 0.1])


def test_merged_weights_are_those_of_an_ordinary_network(tmp_path: Path) -> None:
    backbone = backbone_of(VIT, tmp_path)
    plain = network_of(copy.deepcopy(backbone)).classifier
    tune(backbone, "lora", 4, SIDE)
    net = network_of(backbone)
    trained_names(net)
    state = merged_state(net.classifier)
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    a, b = plain.eval()(images()), net.classifier.eval()(images())
    assert torch.allclose(a, b, atol=1e-5)
    for name, module in net.classifier.named_modules():
        if isinstance(module, LowRank):
            with torch.no_grad():
                naive = module.weight + module.lora_b @ module.lora_a
            assert torch.allclose(state[f"{name}.weight"], naive)


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        (CNN, "lora", "has no linear layers. LoRA is for transformers"),
        ("vgg11", "norm", "has no normalisation layers"),
    ],
)
def test_errors_where_a_part_does_not_exist(name: str, how: str, words: str) -> None:
    backbone = build_backbone(name, weights="none", size=SIDE)
    backbone.pretrained = True
    with pytest.raises(UserError, match=words):
        tune(backbone, how, 4, SIDE)


def test_random_weights_and_other_regimes_are_refused(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data", per_class=4)
    given: dict[str, Any] = {"labels_per_class": 2, "out": tmp_path / "run", "quiet": True, "backbone": CNN}
    with pytest.raises(UserError, match="has random weights, most of which would never be trained"):
        selftrain.train(
            data, regime="finetune", size=SIDE, settings={"network.tune": "norm", "network.weights": "none"}, **given
        )
    for regime in ("scratch", "frozen"):
        with pytest.raises(UserError, match=f"in the finetune regime only, not in the {regime} regime"):
            selftrain.train(data, regime=regime, settings={"network.tune": "lora"}, **given)


SETTINGS = {
    "network.lora_rank": 2, "network.bottleneck": 16, "network.dropout": 0.0, "train.batch": 6,
    "train.unlabeled_batch": 8, "train.eval_every": 3, "train.checkpoint_every": 2, "optim.lr": 0.05,
    "train.threads": 1, "optim.ema": 0.5,
}  # fmt: skip
METHOD = "dst(fixmatch(tau=0.3), dropout=0.0)"


def finetuned(data: Path, out: Path, weights: str, how: str, **more: Any) -> selftrain.Run:
    settings = {**SETTINGS, "network.tune": how, "network.weights": weights}
    name = Path(weights).stem
    return selftrain.train(
        data, regime="finetune", backbone=name, size=SIDE, steps=6, method=METHOD, labels_per_class=2,
        settings=settings, out=out, quiet=True, **more,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("name", "how"), [(VIT, "lora"), (CNN, "norm")])
def test_a_tuned_run_resumes_predicts_and_exports_as_any_other(tmp_path: Path, name: str, how: str) -> None:
    data, weights = layout_2(tmp_path / "data", per_class=6), weights_of(name, tmp_path)
    run = finetuned(data, tmp_path / "whole", weights, how)
    saved = safetensors.torch.load_file(run.folder / "model" / "model.safetensors")
    assert not [key for key in saved if "lora" in key]
    predicted = run.predict(data / "test")
    outputs = np.load(run.folder / "outputs.npz")  # of the network as it was trained, before merging
    assert np.array_equal([list(run.results["classes"]).index(c) for c in predicted.labels], outputs["eval_predicted"])
    pytest.importorskip("onnxruntime")
    said = selftrain.ExportedModel(run.export(tmp_path / "model.onnx")).predict(data / "test").probabilities
    assert np.allclose(said, predicted.probabilities, atol=1e-4)
    before = safetensors.torch.load_file(weights)
    same = [key for key, value in before.items() if torch.equal(value, saved[f"psi.backbone.net.{key}"])]
    assert 0 < len(same) < len(before)

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetuned(data, tmp_path / "stopped", weights, how, watch=stop)
    finetuned(data, tmp_path / "stopped", weights, how, resume=True)
    assert_same(run.folder, tmp_path / "stopped")


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_tune_as_one_does(tmp_path: Path, strategy: str) -> None:
    data, weights = layout_2(tmp_path / "data", per_class=6), weights_of(VIT, tmp_path)
    alone = finetuned(data, tmp_path / "alone", weights, "lora")
    more = {"network.tune": "lora", "network.weights": weights, "train.devices": 2, "train.strategy": strategy}
    given = {**SETTINGS, **more, "train.accelerator": "cpu"}
    command = [
        sys.executable, "-m", "selftrain", "train", str(data), "--regime", "finetune", "--backbone", VIT,
        "--size", str(SIDE), "--steps", "6", "--method", METHOD, "--labels-per-class", "2", "--quiet",
        "--out", str(tmp_path / "two"),
        *(word for name, value in given.items() for word in ("--set", f"{name}={value}")),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=300)
    one, two = (
        safetensors.torch.load_file(run / "model" / "model.safetensors") for run in (alone.folder, tmp_path / "two")
    )
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.allclose(value.float(), two[name].float(), atol=2e-4), name
