"""Pure tensor functions that the equations of several methods share.

Knows nothing of networks, methods or data: tensors in, tensors out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class PseudoLabels(NamedTuple):
    """f_hat on a batch: the class given to each unlabeled sample, and whether it is kept. Never carries gradient."""

    y: Tensor
    """(B,) the class"""
    keep: Tensor
    """(B,) bool, f_hat != -1"""


def threshold(p: Tensor, tau: float) -> PseudoLabels:
    """f_hat = argmax p where max p >= tau, else -1 (Eq. 2)."""
    confidence, y = p.detach().max(dim=1)
    return PseudoLabels(y, confidence >= tau)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """(1/B) sum H(y, p), in float32 whatever the precision of the logits."""
    return F.cross_entropy(logits.float(), y)


def pseudo_cross_entropy(logits: Tensor, f_hat: PseudoLabels, cap: float | None = None) -> Tensor:
    """L_U (Eq. 3): (1/B) sum 1[f_hat != -1] H(f_hat, p). Divides by B, never by the number kept.

    With ``cap`` no sample counts for more than that: the cross entropy of a head that *wants* to be wrong is unbounded.
    """
    loss = F.cross_entropy(logits.float(), f_hat.y, reduction="none")
    if cap is not None:
        loss = loss.clamp(max=cap)
    return (loss * f_hat.keep).mean()


def mistake_loss(logits: Tensor, f_hat: PseudoLabels) -> Tensor:
    """-(1/B) sum 1[f_hat != -1] log min(1, 1 - p[f_hat] + 1e-6): small where a head disagrees with f_hat."""
    p = torch.softmax(logits.float(), dim=1).gather(1, f_hat.y[:, None]).squeeze(1)
    return -(torch.log((1 - p + 1e-6).clamp(max=1)) * f_hat.keep).mean()


def linear_ramp(step: Tensor, length: float) -> Tensor | float:
    """0 to 1 over the first ``length`` steps; 1 throughout if ``length`` is 0."""
    return (step / length).clamp(max=1) if length > 0 else 1.0


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, c: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(c)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (c,) = ctx.saved_tensors
        return -c.to(grad.dtype) * grad, None


def reverse_gradient(x: Tensor, c: Tensor) -> Tensor:
    """x itself going forward; -c times the gradient going back."""
    out: Tensor = _ReverseGradient.apply(x, c)
    return out


def reversal_coefficient(step: Tensor, hi: float, warmup: float) -> Tensor:
    """2 hi / (1 + exp(-i/N)) - hi: from 0 at step 0 towards hi; hi throughout if the warm-up N is 0."""
    if warmup == 0:
        return torch.full((), hi, device=step.device)
    return 2 * hi / (1 + torch.exp(-step / warmup)) - hi
