"""Tensor functions that the equations of several methods share.

Knows nothing of networks, methods or data: tensors in, tensors out.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class PseudoLabels(NamedTuple):
    """f_hat on a batch: the class of each unlabeled sample, and whether it is kept. Never carries gradient."""

    y: Tensor
    """(B,) the class; -1 where a sample has no label yet"""
    keep: Tensor
    """(B,) bool, f_hat != -1"""
    target: Tensor | None = None
    """(B, K) the distribution to imitate, where the target is soft"""
    note: Tensor | None = None
    """further values of this batch that the method needs in ``imitate`` or ``record``"""
    weight: Tensor | None = None
    """(B,) how much a label that is kept counts, from 0 to 1; None: 1"""
    inner: PseudoLabels | None = None
    """the labels of the method that an add-on wraps"""

    @property
    def counted(self) -> Tensor:
        """(B,) keep, times the weight of the label where there is one."""
        return self.keep if self.weight is None else self.keep * self.weight


def threshold(p: Tensor, tau: float | Tensor) -> PseudoLabels:
    """Return f_hat = argmax p where max p >= tau, else -1 (Eq. 2)."""
    confidence, y = p.detach().max(dim=1)
    return PseudoLabels(y, confidence >= tau)


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax in float32, whatever the precision of the logits."""
    return torch.softmax(logits.float(), dim=1)


def sharpen(p: Tensor, T: float) -> Tensor:
    """Return p^(1/T), normalised: T = 1 leaves p unchanged, T close to 0 makes it one-hot."""
    return torch.softmax(p.clamp(min=1e-12).log() / T, dim=1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return (1/B) sum H(y, p) for classes (B,) or distributions (B, K), in float32."""
    return F.cross_entropy(logits.float(), y)


def pseudo_cross_entropy(logits: Tensor, f_hat: PseudoLabels, cap: float | None = None) -> Tensor:
    """Return L_U (Eq. 3): (1/B) sum 1[f_hat != -1] H(f_hat, p). Divides by B, never by the number kept.

    Labels that have a weight count as much as it says.

    ``cap`` is an upper bound per sample: the cross entropy of a head that is trained to be wrong has no other.
    """
    target = f_hat.y.clamp(min=0) if f_hat.target is None else f_hat.target
    loss = F.cross_entropy(logits.float(), target, reduction="none")
    if cap is not None:
        loss = loss.clamp(max=cap)
    return (loss * f_hat.counted).mean()


def kl_divergence(p: Tensor, logits: Tensor) -> Tensor:
    """Return KL(p || softmax(logits)) per sample."""
    return F.kl_div(torch.log_softmax(logits.float(), dim=1), p, reduction="none").sum(dim=1)


def squared_error(p: Tensor, q: Tensor, reduction: str = "class_mean") -> Tensor:
    """Return the mean over classes of (p - q)^2 per sample, or with ``class_sum`` the sum, K times as large."""
    squares = (p - q).square()
    return squares.mean(dim=1) if reduction == "class_mean" else squares.sum(dim=1)


def mixup(
    x: Tensor, y: Tensor, partner: Tensor, a: float, per: str = "sample", lam: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return lam x + (1 - lam) x[partner], and the same mix of y.

    lam ~ Beta(a, a) is drawn per sample or once per batch, and is replaced by max(lam, 1 - lam).
    """
    if lam is None:
        draws = len(partner) if per == "sample" else 1
        lam = torch.distributions.Beta(torch.full((draws,), a, device=x.device), a).sample().expand(len(partner))
        lam = torch.maximum(lam, 1 - lam)
    own, n = lam.to(x.dtype), len(partner)
    share = own.view(-1, *[1] * (x.dim() - 1))
    return torch.lerp(x[partner], x[:n], share), torch.lerp(y[partner], y[:n], own[:, None].to(y.dtype))


def mistake_loss(logits: Tensor, f_hat: PseudoLabels) -> Tensor:
    """Return -(1/B) sum 1[f_hat != -1] log min(1, 1 - p[f_hat] + 1e-6), small where a head disagrees with f_hat."""
    p = probabilities(logits).gather(1, f_hat.y.clamp(min=0)[:, None]).squeeze(1)
    return -(torch.log((1 - p + 1e-6).clamp(max=1)) * f_hat.counted).mean()


def moving_average(old: Tensor, new: Tensor, m: float, step: Tensor, mean_start: bool) -> Tensor:
    """Return m_t old + (1 - m_t) new.

    m_t = min(m, 1 - 1/(t + 1)) with ``mean_start``, so that the average starts as the mean of the steps so far, and m
    without it.
    """
    rest = torch.clamp(1 / (step + 1), min=1 - m) if mean_start else torch.full_like(step, 1 - m, dtype=old.dtype)
    return torch.lerp(old, new.to(old.dtype), rest.to(old.dtype))


def align(p: Tensor, target: Tensor, mean: Tensor) -> Tensor:
    """Return p target / mean, normalised: predictions whose mean was ``mean`` get the mean ``target``."""
    p = p * target / mean.clamp(min=1e-6)
    return p / p.sum(dim=1, keepdim=True)


def linear_ramp(step: Tensor, length: float) -> Tensor | float:
    """Rise linearly from 0 to 1 over the first ``length`` steps; always 1 if ``length`` is 0."""
    return (step / length).clamp(max=1) if length > 0 else 1.0


def gaussian_ramp(step: Tensor, length: float) -> Tensor | float:
    """Rise as exp(-5 (1 - t/T)^2) to 1 over the first ``length`` steps; always 1 if ``length`` is 0."""
    return torch.exp(-5 * (1 - (step / length).clamp(max=1)).square()) if length > 0 else 1.0


def clean_probability(losses: Tensor) -> Tensor:
    """Fit two Gaussians to losses scaled to [0, 1]; return the posterior of the one with the lower mean."""
    from sklearn.mixture import GaussianMixture

    low, high = losses.min(), losses.max()
    if len(losses) < 2 or not high - low > 1e-6:  # equal losses do not separate clean from doubtful
        return torch.zeros_like(losses)
    scaled = ((losses - low) / (high - low)).double().cpu().numpy()[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten iterations need not converge
        mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled)
    posterior = mixture.predict_proba(scaled)[:, mixture.means_.argmin()]
    return torch.from_numpy(posterior).to(losses)


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
    """Return x in the forward pass; multiply the gradient by -c in the backward pass."""
    out: Tensor = _ReverseGradient.apply(x, c)
    return out


def reversal_coefficient(step: Tensor, hi: float | Tensor, warmup: float) -> Tensor:
    """Return 2 hi / (1 + exp(-i/N)) - hi, which rises from 0 at step 0 towards hi; always hi if the warm-up N is 0."""
    if warmup == 0:
        return hi * torch.ones((), device=step.device)
    return 2 * hi / (1 + torch.exp(-step / warmup)) - hi
