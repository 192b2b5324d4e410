"""Plain formulas retyped for the tests, and networks simple enough to compute by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled
from selftrain.methods import Method
from selftrain.nn.layers import Classifier, Encoder
from selftrain.nn.network import Network, Task


def p_of(model: nn.Module, x: Tensor) -> Tensor:
    """Class probabilities."""
    z: Tensor = model(x)
    return z.exp() / z.exp().sum(dim=1, keepdim=True)


def through(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules)


def cross(q: Tensor, p: Tensor) -> Tensor:
    """H(q, p) of each sample."""
    return -(q * p.log()).sum(dim=1)


def kl(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p) of each sample; 0 log 0 = 0."""
    return (torch.xlogy(q, q) - q * p.log()).sum(dim=1)


def sharp(p: Tensor, T: float) -> Tensor:
    return p.double().pow(1 / T).div(p.double().pow(1 / T).sum(dim=1, keepdim=True)).float()


def one_hot(y: Tensor, K: int) -> Tensor:
    return torch.eye(K)[y]


def L_L(net: Network, labeled: Labeled, view: str = "weak", h: nn.Module | None = None) -> Tensor:  # noqa: N802
    """(1/B_l) sum H(y, p)."""
    p = p_of(through(net.psi, h or net.h), labeled[view])
    return torch.stack([-p[i, y].log() for i, y in enumerate(labeled.y)]).sum() / len(labeled)


def assert_same_gradient(parameters: Iterable[Tensor], ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    trained = [p for p in parameters if p.requires_grad]
    a, b = (torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True) for loss in (ours, theirs))
    assert any(g is not None and g.abs().sum() > 0 for g in b)
    for p, g, h in zip(trained, a, b, strict=True):
        zero = torch.zeros_like(p)
        torch.testing.assert_close(zero if g is None else g, zero if h is None else h, rtol=1e-3, atol=tolerance)


class Same(nn.Module):
    """Features that are the inputs."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x


def logit_net(method: Method, *, classes: int = 3, unlabeled: int = 20, steps: int = 100) -> Network:
    """A network whose logits are its inputs, so that log probabilities can be fed."""
    h = nn.Linear(classes, classes, bias=False)
    nn.init.eye_(h.weight)
    net = Network(
        Classifier(Encoder(Same(classes), mean=(0.0,), std=(1.0,)), h), Task(classes, unlabeled, steps, (classes,))
    )
    method.setup(net)
    return net


class PictureBackbone(nn.Module):
    """Pictures of 1 x 4 x 4 -> features of length 6."""

    dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def picture_net(method: Method, *, classes: int = 3, steps: int = 100) -> Network:
    torch.manual_seed(0)
    psi = Encoder(PictureBackbone(), mean=(0.5,), std=(0.5,))
    net = Network(Classifier(psi, nn.Linear(6, classes)), Task(classes, 50, steps, (1, 4, 4)))
    with torch.no_grad():
        net.h.weight.mul_(4)  # type: ignore[operator]
    method.setup(net)
    return net


def inputs_of(module: nn.Module) -> list[Tensor]:
    """What the module is fed from now on, call by call."""
    seen: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].detach().clone())

    module.register_forward_pre_hook(note)
    return seen


def randomise(module: nn.Module, seed: int, spread: float = 0.5) -> None:
    """Other weights, so that nothing equals anything else by construction."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(spread * torch.randn(p.shape, generator=g))


def turn_partners(monkeypatch: pytest.MonkeyPatch, by: int = 3) -> None:
    """Sample i is mixed with sample i - by, never with itself."""
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n).roll(by))


def never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """lam = 1."""
    monkeypatch.setattr(torch.distributions.Beta, "rsample", lambda self, *_: torch.ones(self._batch_shape))


def own_shares(mixed: Tensor, x: Tensor, partner: Tensor) -> Tensor:
    """lam of each sample, solved from what it was mixed to, which must lie between it and its partner."""
    n = len(mixed)
    mixed, own, other = mixed.flatten(1), x[:n].flatten(1), x[partner[:n]].flatten(1)
    lam = ((mixed - other) * (own - other)).sum(dim=1, keepdim=True) / (own - other).square().sum(dim=1, keepdim=True)
    torch.testing.assert_close(mixed, lam * own + (1 - lam) * other, rtol=1e-4, atol=1e-5)
    return lam
