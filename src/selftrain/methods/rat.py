"""RAT: VAT with an adversarial affine transformation, colour change and noise.

Knows nothing of features: it transforms pixels, so it needs images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import AtLeast, NonNegative
from selftrain.methods.base import Losses, Method, labeled_loss, labeled_views
from selftrain.methods.functional import gaussian_ramp, kl_divergence, probabilities
from selftrain.methods.vat import length, quiet_logits, unit
from selftrain.nn.network import Network

Phi = tuple[Tensor, ...]
"""per sample: (6,) added to the 2 x 3 matrix of the identity, (2 C,) gain and shift per channel, noise"""


def transform(x: Tensor, phi: Phi) -> Tensor:
    """Return noise(colour(affine(x))); the identity where phi is 0."""
    affine, colour, noise = phi
    identity = torch.eye(2, 3, dtype=x.dtype, device=x.device)
    with torch.autocast(x.device.type, enabled=False):  # half precision would misplace pixels
        grid = F.affine_grid(identity + affine.view(-1, 2, 3), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    gain, shift = colour[..., None, None].chunk(2, dim=1)
    return x * (1 + gain) + shift + noise


@dataclass(frozen=True, kw_only=True)
class RAT(Method):
    """L_L + lambda KL(p(x) || p(T(x, Phi_adv))), |phi_i| = eps_i ramp(t)."""

    name: ClassVar[str] = "rat"
    title: ClassVar[str] = "RAT"
    reference: ClassVar[str] = "Suzuki and Sato, AAAI 2020"
    regimes: ClassVar[tuple[str, ...]] = ("scratch", "finetune")
    remarks: ClassVar[dict[str, str]] = {"frozen": "it transforms pixels, which cached features do not have"}
    why_no_base: ClassVar[str] = "its target is a neighbour's prediction, not a label that another head could learn"

    eps_affine: NonNegative = 0.3
    """length of the affine perturbation"""
    eps_colour: NonNegative = 0.3
    """length of the perturbation of channel gains and shifts"""
    eps_noise: Annotated[float | None, AtLeast(0)] = None
    """length of the noise, in units of the network's input; none: 6 for an image of 3 x 32 x 32, and proportional to
    the square root of the number of inputs"""
    lam: NonNegative = 1.0
    """lambda, the weight of the smoothness"""
    xi: NonNegative = 0.01
    """length of the step that searches for the directions"""
    ramp: NonNegative = 0.4
    """share of training over which the perturbations grow to their full length"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak",))

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, _ = net.encode(self.views, labeled, unlabeled)  # also updates the running statistics with unlabeled images
        x = net.psi.normalise(unlabeled.weak).detach()
        logits = quiet_logits(net)
        with torch.no_grad():
            p = probabilities(logits(x))
        n, channels = len(x), x.shape[1]
        d = (x.new_empty(n, 6).normal_(), x.new_empty(n, 2 * channels).normal_(), torch.randn_like(x))
        smoothness = kl_divergence(p, logits(transform(x, self.adversary(net, logits, x, p, d)))).mean()
        return Losses({"labeled": labeled_loss(net.h, l, self.w_strong), "unlabeled": self.lam * smoothness})

    def adversary(self, net: Network, logits: Callable[[Tensor], Tensor], x: Tensor, p: Tensor, d: Phi) -> Phi:
        """Return Phi_adv: the steepest direction per group of parameters, searched from d, at its current length."""
        lengths = (self.eps_affine, self.eps_colour, length(self.eps_noise, x))
        # the gradient is zero at zero, so the search starts beside it, except in groups of length 0
        start = [
            ((self.xi if size else 0.0) * unit(part)).requires_grad_() for size, part in zip(lengths, d, strict=True)
        ]
        with torch.enable_grad():
            kl = kl_divergence(p, logits(transform(x, tuple(start)))).sum()
            directions = map(unit, torch.autograd.grad(kl, start))
        grown = gaussian_ramp(net.step, self.ramp * net.task.steps)
        return tuple(grown * size * part for size, part in zip(lengths, directions, strict=True))
