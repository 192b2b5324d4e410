"""Steps with the structure of public implementations, written by us to compare with: not their code, but their work.

Knows nothing of the engine. What they have in common with the public ones: contiguous pictures; gradient through views
that no loss trains on; numbers fetched from the device at every step (losses, accuracy) for meters; a weight average
that goes through ``state_dict``. Augmentation is not included: they are given tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled


def _sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=5e-4, nesterov=True)


def _contiguous(*modules: nn.Module) -> list[nn.Module]:
    return [copy.deepcopy(module).to(memory_format=torch.contiguous_format) for module in modules]


def _accuracy(logits: Tensor, y: Tensor) -> float:
    return (logits.argmax(dim=1) == y).float().mean().item()


def concatenated_fixmatch(psi: nn.Module, h: nn.Module, l: Labeled, u: Unlabeled) -> Callable[[], None]:
    """All views in one pass with gradient, a weight average by state dict, losses and masks fetched at every step."""
    psi, h = _contiguous(psi, h)
    model = nn.Sequential(psi, h).train()
    average = copy.deepcopy(model).eval()
    optimizer = _sgd(model)
    meters: list[float] = []

    def step() -> None:
        logits = model(torch.cat([l.weak, u.weak, u.strong]))
        of_l = logits[: len(l)]
        weak, strong = logits[len(l) :].chunk(2)
        loss_l = F.cross_entropy(of_l, l.y)
        confidence, y = torch.softmax(weak.detach(), dim=-1).max(dim=-1)
        keep = confidence.ge(0.95).float()
        loss_u = (F.cross_entropy(strong, y, reduction="none") * keep).mean()
        loss = loss_l + loss_u
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            new = model.state_dict()
            for name, value in average.state_dict().items():
                value.copy_(0.999 * value + 0.001 * new[name] if value.is_floating_point() else new[name])
        meters[:] = [loss.item(), loss_l.item(), loss_u.item(), keep.mean().item(), _accuracy(of_l, l.y)]

    return step


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return -0.1 * gradient


def three_pass_dst(
    psi: nn.Module, h: nn.Module, h_pseudo: nn.Module, h_worst: nn.Module, l: Labeled, u: Unlabeled
) -> Callable[[], None]:
    """Labeled, strong and weak views in a pass each, all with gradient; meters fetched at every step; no average."""
    psi, h, h_pseudo, h_worst = _contiguous(psi, h, h_pseudo, h_worst)
    for module in (psi, h, h_pseudo, h_worst):
        module.train()
        for child in list(module.modules()):
            for name, grandchild in list(child.named_children()):
                if isinstance(grandchild, nn.Dropout):
                    setattr(child, name, nn.Dropout(grandchild.p))
    optimizer = _sgd(psi, h, h_pseudo, h_worst)
    meters: list[float] = []

    def step() -> None:
        f_l = psi(l.weak)
        f_strong = psi(u.strong)
        f_weak = psi(u.weak)
        y_l, y_weak = h(f_l), h(f_weak)
        loss_l = F.cross_entropy(y_l, l.y)
        confidence, y = torch.softmax(y_weak.detach(), dim=-1).max(dim=-1)
        keep = confidence.ge(0.95).float()
        loss_u = (F.cross_entropy(h_pseudo(f_strong), y, reduction="none") * keep).mean()
        worst_l, worst_u = h_worst(_Reverse.apply(f_l)), h_worst(_Reverse.apply(f_weak))
        p = torch.softmax(worst_u, dim=1).gather(1, y[:, None]).squeeze(1)
        loss_w = 2 * F.cross_entropy(worst_l, y_l.detach().argmax(dim=1)) - torch.log(1 - p + 1e-6).mean()
        loss = loss_l + loss_u + loss_w
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters[:] = [one.item() for one in (loss, loss_l, loss_u, loss_w, keep.sum())]
        meters[:] = [_accuracy(y_l, l.y), _accuracy(y_weak, y)]

    return step
