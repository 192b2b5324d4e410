"""The adversarial networks of ALI, for images and for feature vectors.

Knows nothing of their losses: those are in ``methods/ali.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.nn.layers import Encoder


class Generator(nn.Module):
    """G_x: z -> a sample in the form of psi's input. Images are generated at 32 x 32 and then resized."""

    def __init__(self, z: int, psi: Encoder, shape: tuple[int, ...]):
        super().__init__()
        self.shape = shape
        if len(shape) == 1:
            self.body = nn.Sequential(nn.Linear(z, 512), nn.BatchNorm1d(512), nn.LeakyReLU(0.1), nn.Linear(512, *shape))
            return
        layers: list[nn.Module] = [nn.Linear(z, 128 * 16), nn.Unflatten(1, (128, 4, 4))]
        for a, b in ((128, 64), (64, 32)):
            layers += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.1)]
        self.body = nn.Sequential(*layers, nn.ConvTranspose2d(32, shape[0], 4, 2, 1), nn.Tanh())
        low, high = (255 * k - psi.mean for k in (0, 1))
        self.register_buffer("middle", (low + high) / 2 * psi.inverse_std, persistent=False)
        self.register_buffer("spread", (high - low) / 2 * psi.inverse_std, persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        x: Tensor = self.body(z).float()
        if len(self.shape) == 1:
            return x
        if x.shape[2:] != self.shape[1:]:
            x = F.interpolate(x, self.shape[1:], mode="bilinear", antialias=True)
        return x * self.spread + self.middle  # type: ignore[operator]


class Inference(nn.Module):
    """G_z: a sample -> mean and log deviation of its z, through ``HIDDEN`` features."""

    HIDDEN = 512

    def __init__(self, z: int, shape: tuple[int, ...]):
        super().__init__()
        if len(shape) == 1:
            body: list[nn.Module] = [nn.Linear(*shape, self.HIDDEN), nn.LeakyReLU(0.1)]
        else:
            body = []
            for a, b in zip((shape[0], 32, 64), (32, 64, 128), strict=True):
                body += [nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.1)]
            body += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        self.features = nn.Sequential(*body)
        self.top = nn.Linear(self.HIDDEN, 2 * z)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_sigma = self.top(self.features(x)).chunk(2, dim=1)
        return mean, log_sigma


class Joint(nn.Module):
    """psi(x), z -> logits of the classes and, last, of "generated"."""

    def __init__(self, dim: int, z: int, classes: int):
        super().__init__()
        self.e = nn.Sequential(
            nn.Linear(z, 256),
            nn.LeakyReLU(0.1),
            nn.Dropout(0.2),
            nn.Linear(256, 256),
            nn.LeakyReLU(0.1),
            nn.Dropout(0.2),
        )
        self.top = nn.Sequential(
            nn.Linear(dim + 256, 512), nn.LeakyReLU(0.1), nn.Dropout(0.5),
            nn.Linear(512, 512), nn.LeakyReLU(0.1), nn.Dropout(0.5), nn.Linear(512, classes + 1),
        )  # fmt: skip

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        logits: Tensor = self.top(torch.cat([features, self.e(z)], dim=1))
        return logits.float()
