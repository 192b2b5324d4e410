"""Steps with the structure of public implementations, written by us for comparison: not their code, but their work.

Knows nothing of the engine. Like the public ones, they have contiguous images; gradient through views that no loss
trains on; numbers fetched from the device at every step (losses, accuracy) for meters; a weight average through
``state_dict``. Augmentation is not included: they get ready-made tensors.
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


class StateDictAverage:
    """A weight average through state dicts, in three copies.

    New averages go to a dictionary, then all tensors of the model to the average, then the averages over them.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.average = copy.deepcopy(model).eval()
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        for name, p in self.model.named_parameters():
            new = 0.001 * p + 0.999 * self.shadow[name]
            self.shadow[name] = new.clone()
        self.average.load_state_dict(self.model.state_dict())
        self.average.load_state_dict(self.shadow, strict=False)


def _accuracy(logits: Tensor, y: Tensor) -> float:
    return (logits.argmax(dim=1) == y).float().mean().item()


def concatenated_fixmatch(psi: nn.Module, h: nn.Module, l: Labeled, u: Unlabeled) -> Callable[[], None]:
    """Return a FixMatch step: all views in one pass with gradient, an average by state dict, meters read every step."""
    psi, h = _contiguous(psi, h)
    model = nn.Sequential(psi, h).train()
    average = StateDictAverage(model)
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
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        average.update()
        meters[:] = [loss.item(), loss_l.item(), loss_u.item(), keep.mean().item(), _accuracy(of_l, l.y)]

    return step


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return -0.1 * gradient


class _Heads(nn.Module):
    """psi and all three heads: every input goes through every head, needed or not."""

    def __init__(self, psi: nn.Module, h: nn.Module, h_pseudo: nn.Module, h_worst: nn.Module):
        super().__init__()
        self.psi, self.h, self.h_pseudo, self.h_worst = _contiguous(psi, h, h_pseudo, h_worst)
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Dropout):
                    setattr(module, name, nn.Dropout(child.p))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.psi(x)
        return self.h(z), self.h_worst(Reverse.apply(z)), self.h_pseudo(z)


def _pseudo_loss(strong: Tensor, weak: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    confidence, y = torch.softmax(weak.detach(), dim=-1).max(dim=-1)
    keep = confidence.ge(0.95).float()
    return (F.cross_entropy(strong, y, reduction="none") * keep).mean(), keep, y


def _worst_loss(y_l: Tensor, worst_l: Tensor, y_u: Tensor, worst_u: Tensor) -> Tensor:
    p = torch.softmax(worst_u, dim=1)
    mistake = F.nll_loss(torch.log((1 - p + 1e-6).clamp(max=1)), y_u.argmax(dim=1))
    return 2 * F.cross_entropy(worst_l, y_l.argmax(dim=1)) + mistake


def concatenated_dst(*modules: nn.Module, l: Labeled, u: Unlabeled) -> Callable[[], None]:
    """Return a DST step as released for training from scratch.

    All views in one pass with gradient, through all heads; a weight average by state dict.
    """
    model = _Heads(*modules).train()
    average = StateDictAverage(model)
    optimizer = _sgd(model)

    def step() -> None:
        y, worst, pseudo = model(torch.cat([l.weak, u.weak, u.strong]))
        n, weak = len(l), slice(len(l), len(l) + len(u))
        loss_u, *_ = _pseudo_loss(pseudo[weak.stop :], y[weak])
        loss = F.cross_entropy(y[:n], l.y) + loss_u + 0.1 * _worst_loss(y[:n], worst[:n], y[weak], worst[weak])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        average.update()

    return step


def three_pass_dst(*modules: nn.Module, l: Labeled, u: Unlabeled) -> Callable[[], None]:
    """Return a DST step as released for fine-tuning.

    Strong views of labeled samples, all weak views, and strong views of unlabeled samples each get a forward and a
    backward pass through all heads; meters are read at every step.
    """
    model = _Heads(*modules).train()
    optimizer = _sgd(model)
    meters: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        loss_s = 0.1 * F.cross_entropy(model(l.strong)[0], l.y)
        loss_s.backward()  # type: ignore[no-untyped-call]
        y, worst, _ = model(torch.cat([l.weak, u.weak]))
        y_l, y_u = y[: len(l)], y[len(l) :]
        loss_l, loss_w = F.cross_entropy(y_l, l.y), _worst_loss(y_l, worst[: len(l)], y_u, worst[len(l) :])
        (loss_l + loss_w).backward()  # type: ignore[no-untyped-call]
        loss_u, keep, labels = _pseudo_loss(model(u.strong)[2], y_u)
        loss_u.backward()  # type: ignore[no-untyped-call]
        meters[:] = [one.item() for one in (loss_s + loss_l, loss_w, loss_u, loss_s + loss_l + loss_w + loss_u)]
        meters[:] = [_accuracy(y_l, l.y), keep.mean().item()]
        if keep.sum() > 0:
            meters.append(_accuracy(y_u, labels))
        optimizer.step()

    return step
