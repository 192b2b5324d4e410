"""A network small enough to reason about, and batches for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import Method
from selftrain.network import Classifier, Encoder, Network, Task

K, DIM, INPUT = 4, 6, 5


class TinyBackbone(nn.Module):
    """Vectors of length 5 -> features of length 6, with a norm layer so that buffers matter."""

    dim = DIM

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(INPUT, DIM), nn.BatchNorm1d(DIM), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def tiny_net(method: Method, *, classes: int = K, unlabeled: int = 50, steps: int = 100, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    psi = Encoder(TinyBackbone(), mean=(0.0,), std=(1.0,))
    net = Network(Classifier(psi, nn.Linear(psi.dim, classes)), Task(classes, unlabeled, steps))
    method.setup(net)
    return net


def tiny_batch(labeled: int = 8, unlabeled: int = 12, *, classes: int = K, seed: int = 1) -> tuple[Labeled, Unlabeled]:
    """Samples around one centre a class; strong views lie further out than weak ones."""
    centres = 2 * torch.eye(INPUT)
    g = torch.Generator().manual_seed(seed)

    def views(y: Tensor) -> dict[str, Tensor]:
        return {
            name: centres[y] + spread * torch.randn(len(y), INPUT, generator=g)
            for name, spread in (("weak", 0.5), ("strong", 1.0))
        }

    y = torch.arange(labeled) % classes
    hidden = torch.randint(classes, (unlabeled,), generator=g)
    return (
        Labeled(y, **views(y)),
        Unlabeled(torch.randperm(50, generator=g)[:unlabeled], **views(hidden)),
    )


def gradients(net: Network, loss: Tensor) -> dict[str, float]:
    """The gradient's size in each part of the network: psi, h, h_pseudo, h_worst, ..."""
    net.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    parts: dict[str, nn.Module] = {"psi": net.psi, "h": net.h, **net.parts}
    return {
        name: sum(float(p.grad.abs().sum()) for p in part.parameters() if p.grad is not None)
        for name, part in parts.items()
    }
