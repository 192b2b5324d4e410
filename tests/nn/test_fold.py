"""Networks whose batch norms are folded into convolutions give the same outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from selftrain.nn import fold
from selftrain.nn.backbones import build_backbone
from selftrain.nn.fold import PackedConvolution, fold_batch_norm


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "wrn-tiny"])
@pytest.mark.parametrize("packs", [True, False])
def test_folding_batch_norm_does_not_change_the_output(name: str, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if not packs:  # as in a torch without oneDNN's operations

        def refuse(*given: object) -> None:
            raise RuntimeError("no such operation")

        monkeypatch.setattr(fold, "PackedConvolution", refuse)
    net = build_backbone(name, weights="none", size=64 if name != "vit_tiny_patch16_224" else 224)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.get_buffer("running_mean"), 0, 0.1)
            nn.init.uniform_(module.get_buffer("running_var"), 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    net.eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    x = torch.randn(3, 3, net.preprocessing.size, net.preprocessing.size)
    folded = fold_batch_norm(net, x[:2])
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    left = sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    convolutional = name in ("resnet18", "mobilenetv3_small_050", "wrn-tiny")
    assert (left < norms) == convolutional
    assert any(type(module).__name__ == "PackedConvolution" for module in folded.modules()) == (packs and convolutional)
    with torch.inference_mode():
        expected, found = net(x), folded(x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_network_that_cannot_be_folded_is_returned_unchanged() -> None:
    class Twice(nn.Module):
        """The output of its convolution is used twice: by the norm and beside it."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.norm.get_buffer("running_var").fill_(9.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x)
            out: torch.Tensor = self.norm(x) + x
            return out

    net = Twice().eval()
    assert fold_batch_norm(net, torch.randn(2, 3, 8, 8)) is net


def test_convolutions_apply_the_activation_that_follows() -> None:
    for activation in (nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.GELU(), nn.Identity()):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1, groups=1), _WithActivation(4, activation)).eval()
        x = 5 * torch.randn(2, 3, 9, 9)
        with torch.inference_mode():
            folded = fold_batch_norm(net, x)
            torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)
        kinds = {type(module) for module in folded.modules()}
        assert PackedConvolution in kinds  # a wrong activation would have been noticed, and nothing packed
        assert (type(activation) in kinds) == (type(activation) in (nn.GELU, nn.Identity))


class _WithActivation(nn.BatchNorm2d):
    """A batch norm with dropout and activation, as in timm."""

    def __init__(self, dim: int, act: nn.Module):
        super().__init__(dim)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(self.drop(super().forward(x)))
        return out


def test_too_little_memory_does_not_change_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another form is rounded differently: the next attempt must find the same one."""

    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    monkeypatch.setattr(fold, "_folded", fail)
    with pytest.raises(RuntimeError, match="memory"):
        fold.fold_batch_norm(net, torch.zeros(1, 3, 8, 8))
