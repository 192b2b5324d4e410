"""ALI: a discriminator tells real from generated pairs (x, z), and the classes of real ones.

Knows nothing of pseudo labels; it works on images and on feature vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import Count, NonNegative
from selftrain.methods.base import Grid, Losses, Method, labeled_views
from selftrain.methods.functional import cross_entropy
from selftrain.nn.adversarial import Generator, Inference, Joint
from selftrain.nn.contexts import frozen
from selftrain.nn.layers import Encoder
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics


class Predictor(nn.Module):
    """The first K logits of D(x, mu(x)), so that "generated" is never predicted."""

    def __init__(self, psi: Encoder, inference: nn.Module, joint: nn.Module):
        super().__init__()
        self.psi, self.inference, self.joint = psi, inference, joint

    def forward(self, x: Tensor) -> Tensor:
        x = self.psi.normalise(x)
        logits: Tensor = self.joint(self.psi(x), self.inference(x)[0])[:, :-1]
        return logits


class Probe(nn.Module):
    """A linear classifier on features of the inference network."""

    def __init__(self, psi: Encoder, inference: Inference, linear: nn.Module):
        super().__init__()
        self.psi, self.inference, self.linear = psi, inference, linear

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.inference.features(self.psi.normalise(x)))
        return logits.float()


def log_real(logits: Tensor) -> Tensor:
    """Return log(1 - P_{K+1})."""
    return logits[:, :-1].logsumexp(dim=1) - logits.logsumexp(dim=1)


def log_fake(logits: Tensor) -> Tensor:
    """Return log P_{K+1}."""
    return torch.log_softmax(logits, dim=1)[:, -1]


@dataclass(frozen=True, kw_only=True)
class ALI(Method):
    """D: H(y, P(x, z)) - lambda [log(1 - P_{K+1}(x, G_z(x))) + log P_{K+1}(G_x(z), z)]; G: the reverse."""

    name: ClassVar[str] = "ali"
    title: ClassVar[str] = "ALI"
    reference: ClassVar[str] = "Dumoulin et al., ICLR 2017"
    why_no_base: ClassVar[str] = "it separates real samples from generated ones and makes no pseudo labels"
    grid: ClassVar[Grid] = {"lam": (0.1, 0.3, 1.0)}

    lam: NonNegative = 1.0
    """lambda, the weight of the adversarial losses"""
    z: Count = 64
    """length of the hidden vector"""
    lr: NonNegative = 1e-4
    """initial learning rate of Adam for the generator and the inference network"""
    features: bool = False
    """adversarial training without labels, which train only a linear classifier on features of the inference network"""

    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak",))

    @property
    def turns(self) -> tuple[str, ...]:
        return ("discriminator", "generator")

    def setup(self, net: Network) -> None:
        shape = net.task.shape
        net.parts["joint"] = Joint(net.psi.dim, self.z, 1 if self.features else net.task.classes)
        net.parts["generator"] = Generator(self.z, net.psi, shape)
        net.parts["inference"] = Inference(self.z, shape)
        if self.features:
            scaled = nn.LayerNorm(Inference.HIDDEN, elementwise_affine=False)
            net.parts["linear"] = nn.Sequential(scaled, nn.Linear(Inference.HIDDEN, net.task.classes))

    def optimizers(self, net: Network) -> list[torch.optim.Optimizer]:
        players = [*net.parts["generator"].parameters(), *net.parts["inference"].parameters()]
        return [torch.optim.Adam([{"params": players, "base_lr": self.lr}], lr=self.lr, betas=(0.5, 0.999))]

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "discriminator") -> Losses:
        *x_l, x_u = map(net.psi.normalise, (*map(labeled.__getitem__, labeled_views(self.w_strong)), unlabeled.weak))
        D, G_x, G_z = net.parts["joint"], net.parts["generator"], net.part("inference", Inference)
        z = torch.randn(len(x_u), self.z, device=x_u.device)
        if turn == "discriminator":
            with torch.no_grad():
                *z_l, z_u = (self.sample(*G_z(x)) for x in (*x_l, x_u))
                generated = G_x(z)
            *real_l, real_u = net.embed(*x_l, x_u)
            if self.features:
                classes = [net.parts["linear"](G_z.features(x).detach()) for x in x_l]
            else:
                classes = [D(*pair) for pair in zip(real_l, z_l, strict=True)]
            labeled_losses = [cross_entropy(logits, labeled.y) for logits in classes]
            fake = D(self.still(net, generated), z)
            return Losses(
                {
                    "labeled": labeled_losses[0] + self.w_strong * sum(labeled_losses[1:]),
                    "real": -self.lam * log_real(D(real_u, z_u)).mean(),
                    "fake": -self.lam * log_fake(fake).mean(),
                }
            )
        with frozen(net.psi, D):
            fake, real = D(self.still(net, G_x(z)), z), D(self.still(net, x_u), self.sample(*G_z(x_u)))
        return Losses({"generator": -self.lam * (log_real(fake).mean() + log_fake(real).mean())})

    def sample(self, mean: Tensor, log_sigma: Tensor) -> Tensor:
        return mean + log_sigma.exp() * torch.randn_like(mean)

    def still(self, net: Network, x: Tensor) -> Any:
        with keeping_running_statistics(net.psi):
            return net.psi(x)

    def predictor(self, net: Network) -> nn.Module:
        if self.features:
            return Probe(net.psi, net.part("inference", Inference), net.parts["linear"])
        return Predictor(net.psi, net.parts["inference"], net.parts["joint"])
