"""VAT: predictions stay the same in the direction that changes them most.

Knows nothing of images: the perturbation is added to the input of psi, pixels or features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import AtLeast, NonNegative
from selftrain.methods.base import Grid, Losses, Method, labeled_loss, labeled_views
from selftrain.methods.functional import cross_entropy, kl_divergence, linear_ramp, probabilities
from selftrain.nn.contexts import SavedRandomState
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics


def unit(d: Tensor) -> Tensor:
    """Scale the tensor of each sample to length 1."""
    flat = torch.nn.functional.normalize(d.float().flatten(1), dim=1, eps=1e-20)
    return flat.view_as(d)


def length(eps: float | None, x: Tensor) -> float:
    """Return the length of a perturbation of x: as given, or 6 for 3 x 32 x 32 inputs, scaled to other sizes."""
    return 6 * math.sqrt(x[0].numel() / (3 * 32 * 32)) if eps is None else eps


def quiet_logits(net: Network) -> Callable[[Tensor], Tensor]:
    """Return h(psi(.)) in float32, with the same dropout mask in every call and without updating running statistics."""
    random_state = SavedRandomState.capture(net.step.device)

    def logits(x: Tensor) -> Tensor:
        with random_state.replayed(), keeping_running_statistics(net.psi), torch.autocast(x.device.type, enabled=False):
            out: Tensor = net.h(net.psi(x))
        return out

    return logits


@dataclass(frozen=True, kw_only=True)
class VAT(Method):
    """L_L + lambda ramp(t) KL(p(x) || p(x + r_adv)) + lambda_ent H(p(x), p(x))."""

    name: ClassVar[str] = "vat"
    title: ClassVar[str] = "VAT"
    reference: ClassVar[str] = "Miyato et al., TPAMI 2018"
    why_no_base: ClassVar[str] = "its target is a neighbour's prediction, not a label that another head could learn"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"frozen": {"eps": 1.0}}
    remarks: ClassVar[Mapping[str, str]] = {"frozen": "the perturbation is added to the features, scaled to length"}
    grid: ClassVar[Grid] = {"eps": (0.3, 1.0, 3.0), "lam": (0.3, 1.0)}

    eps: Annotated[float | None, AtLeast(0)] = None
    """length of the perturbation, in units of the network's input; none: 6 for an image of 3 x 32 x 32, and
    proportional to the square root of the number of inputs"""
    lam: NonNegative = 0.3
    """lambda, the weight of the smoothness"""
    lam_entropy: NonNegative = 0.06
    """weight of the entropy of the predictions"""
    xi: NonNegative = 0.01
    """length of the step that searches for the direction; much smaller steps are lost to rounding"""
    ramp: NonNegative = 0.4
    """share of training over which lambda rises linearly from 0"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views"""

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak",), gradient=("weak",))

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = net.encode(self.views, labeled, unlabeled)
        x = net.psi.normalise(unlabeled.weak).detach()
        logits = quiet_logits(net)
        with torch.no_grad():
            p = probabilities(logits(x))
        r = length(self.eps, x) * self.direction(logits, x, p, torch.randn_like(x))
        smoothness = kl_divergence(p, logits(x + r)).mean()
        clean = net.h(u.weak)
        return Losses(
            {
                "labeled": labeled_loss(net.h, l, self.w_strong),
                "unlabeled": self.lam * linear_ramp(net.step, self.ramp * net.task.steps) * smoothness,
                "entropy": self.lam_entropy * cross_entropy(clean, probabilities(clean)),
            }
        )

    def direction(self, logits: Callable[[Tensor], Tensor], x: Tensor, p: Tensor, d: Tensor) -> Tensor:
        """Return the direction in which KL grows fastest, from one power iteration that starts at d."""
        r = (self.xi * unit(d)).requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(kl_divergence(p, logits(x + r)).sum(), r)
        return unit(g)
