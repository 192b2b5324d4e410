"""Wide ResNets as FixMatch trains them from random weights: images in, pooled features out.

Knows nothing of classes, heads, pretrained weights or how its input was normalised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

LEAKY_SLOPE = 0.1

# FixMatch's TensorFlow code says momentum=0.999, the share of the *old* value; torch counts the share of the new one.
# With this momentum running statistics need several thousand steps to converge (and an EMA of the weights lags behind
# them). That is right for FixMatch's 2^20 steps; a run of about 1,000 steps needs something like torch's default, 0.1.
FIXMATCH_BN_MOMENTUM = 0.001

BN_EPSILON = 0.001  # TensorFlow's default, which FixMatch uses (torch's is 1e-5)


@dataclass(frozen=True)
class WideResNetShape:
    """The parameters that distinguish one Wide ResNet from another."""

    widths: tuple[int, ...]
    """Channels of each group of blocks; the stem has 16."""
    blocks: int
    """Residual blocks per group."""
    size: int
    """Intended side of the images in pixels."""
    note: str
    """One-line description for the list of backbones."""
    first_stride: int = 1
    """Stride of the first group; every later group halves the side."""
    bn_momentum: float = FIXMATCH_BN_MOMENTUM
    """Share of the new batch in the running statistics."""


# A name counts the convolutions, 1x1 shortcuts included: 1 + groups * (2 * 4 + 1), hence 28 with three groups and 37
# with four. The fourth group of WRN-37-2 is for STL-10's 96 pixels. Its first group has stride 2, as in TorchSSL and
# USB, whose published results are the usual comparison (96 -> 48 -> 24 -> 12 -> 6); FixMatch's own code (--scales=4)
# has stride 1 there: the same parameters at four times the cost.
WIDE_RESNETS = {
    "wrn-28-2": WideResNetShape(
        (32, 64, 128), 4, 32, "Wide ResNet of FixMatch for CIFAR-10 and SVHN, 1.5 M parameters"
    ),
    "wrn-28-8": WideResNetShape((128, 256, 512), 4, 32, "Wide ResNet of FixMatch for CIFAR-100, 23 M parameters"),
    "wrn-37-2": WideResNetShape(
        (32, 64, 128, 256), 4, 96, "Wide ResNet of FixMatch for STL-10, 5.9 M parameters", first_stride=2
    ),
    # 8x8 -> 8 -> 4 -> 2. Made for short runs, hence torch's momentum.
    "wrn-tiny": WideResNetShape(
        (16, 32, 64), 1, 32, "small Wide ResNet for images of 8 to 32 px, fast on a CPU, 0.08 M parameters", 1, 0.1
    ),
}


class Block(nn.Module):
    """A pre-activation residual block: x + conv(act(conv(act(x)))).

    With ``activate_before_residual`` the shortcut starts from act(x) as well. Otherwise it starts from x, and only the
    convolutions see act(x). Some PyTorch ports feed the convolutions x wherever the width changes; FixMatch's own code
    does not.
    """

    def __init__(
        self, width_in: int, width: int, stride: int, bn_momentum: float, activate_before_residual: bool = False
    ) -> None:
        super().__init__()
        self.activate_before_residual = activate_before_residual
        self.bn1 = nn.BatchNorm2d(width_in, eps=BN_EPSILON, momentum=bn_momentum)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=BN_EPSILON, momentum=bn_momentum)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = width_in == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.leaky_relu(self.bn1(x), LEAKY_SLOPE, inplace=True)
        if self.activate_before_residual:
            x = active
        y = self.conv1(active)
        y = self.conv2(F.leaky_relu(self.bn2(y), LEAKY_SLOPE, inplace=True))
        out: Tensor = self.shortcut(x) + y
        return out


class WideResNet(nn.Module):
    """Images (B, channels, H, W), side 8 or more, -> pooled features (B, dim). No classifier."""

    def __init__(
        self,
        widths: tuple[int, ...] = (32, 64, 128),
        blocks: int = 4,
        *,
        channels: int = 3,
        first_stride: int = 1,
        bn_momentum: float = FIXMATCH_BN_MOMENTUM,
    ) -> None:
        super().__init__()
        self.dim = widths[-1]
        width_in = 16
        self.stem = nn.Conv2d(channels, width_in, 3, padding=1, bias=False)
        self.groups = nn.Sequential()
        for g, width in enumerate(widths):
            stride = 2 if g else first_stride
            group = [Block(width_in, width, stride, bn_momentum, activate_before_residual=g == 0)]
            group += [Block(width, width, 1, bn_momentum) for _ in range(blocks - 1)]
            self.groups.append(nn.Sequential(*group))
            width_in = width
        self.bn = nn.BatchNorm2d(self.dim, eps=BN_EPSILON, momentum=bn_momentum)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # Gain sqrt(2) as in FixMatch, which ignores the slope of 0.1.
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.bn(self.groups(self.stem(x))), LEAKY_SLOPE, inplace=True)
        return y.mean(dim=(2, 3))


def wide_resnet(name: str, *, channels: int = 3, bn_momentum: float | None = None) -> WideResNet:
    """Return the Wide ResNet called ``name`` in `WIDE_RESNETS`; ``bn_momentum`` overrides its batch-norm momentum."""
    shape = WIDE_RESNETS[name]
    return WideResNet(
        shape.widths,
        shape.blocks,
        channels=channels,
        first_stride=shape.first_stride,
        bn_momentum=shape.bn_momentum if bn_momentum is None else bn_momentum,
    )
