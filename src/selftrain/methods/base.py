"""The contract every method keeps, and what the self-training methods have in common.

Knows nothing of loops, devices, files or datasets: a method is its hyper-parameters and its equations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.errors import UserError
from selftrain.functional import PseudoLabels, cross_entropy
from selftrain.network import Network
from selftrain.options import check_fields


class Losses(NamedTuple):
    """What a call of an objective gives: the weighted terms whose sum is minimised, and the pseudo labels made."""

    terms: dict[str, Tensor]
    pseudo: PseudoLabels | None = None

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()

    def backward(self) -> None:
        self.total.backward()


@dataclass(frozen=True, kw_only=True)
class Method:
    """Hyper-parameters plus equations. All that changes in training lives in the network."""

    name: ClassVar[str]
    """how the method is spelled in a method string"""
    reference: ClassVar[str]
    """authors, title or venue, year"""
    regimes: ClassVar[tuple[str, ...]] = ("scratch", "finetune", "frozen")
    """where the method makes sense"""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """field values of a regime that differ from those of the class"""

    @classmethod
    def regime_defaults(cls, regime: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The field values of ``regime``, which may depend on those the user has given."""
        return cls.defaults.get(regime, {})

    @classmethod
    def preset_values(cls, preset: str) -> Mapping[str, Any]:
        """The field values a named preset stands for, where the method has presets."""
        return {}

    def __post_init__(self) -> None:
        check_fields(self, self.name)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and value < 0:
                raise UserError(f"{self.name}.{field.name}={value}: expected a number of at least 0.")

    @property
    def views(self) -> Views:
        """The views the objective reads, and which of them carry gradient."""
        raise NotImplementedError

    @property
    def turns(self) -> tuple[str, ...]:
        """The players of a step, in order; each gets a call of the objective and an optimiser step of its own."""
        return ("all",)

    def setup(self, net: Network) -> None:
        """Add the modules and buffers the equations need to ``net.parts``."""

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        """The loss of one batch of images (or features), as this turn's player sees it."""
        raise NotImplementedError

    def after_step(self, net: Network, t: int) -> None:
        """What follows the optimiser step t = 0, 1, ...: moving averages, queues."""

    def predictor(self, net: Network) -> nn.Module:
        """The module to evaluate and export; the engine averages it where it is the classifier itself."""
        return net.classifier


def labeled_loss(h: nn.Module, l: Labeled, w_strong: float = 0.0) -> Tensor:
    """L_L(psi, h) (Eq. 1), plus w_strong times the same on strong views where asked for."""
    loss = cross_entropy(h(l.weak), l.y)
    return loss + w_strong * cross_entropy(h(l.strong), l.y) if w_strong else loss


def labeled_views(w_strong: float) -> tuple[str, ...]:
    return ("weak", "strong") if w_strong else ("weak",)


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Method):
    """L_L(psi, h) + lambda L_U(psi, h, f_hat_{psi,h}) (Eq. 4) for methods that label and imitate."""

    lam: float = 1.0
    """lambda, the weight of the unlabeled loss"""
    w_strong: float = 0.0
    """weight of a second labeled loss, on strong views (0.1 in the paper's released fine-tuning code)"""

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        """f_hat_{psi,h} on features of the unlabeled views. Pure: it changes no state."""
        raise NotImplementedError

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        """L_U(psi, h, f_hat): how far head h is from the pseudo labels."""
        raise NotImplementedError

    def record(self, net: Network, u: Unlabeled, f_hat: PseudoLabels) -> None:
        """Keep the statistics that later labels depend on; called once a step."""

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        """L_L(psi, h) on features of the labeled views."""
        return labeled_loss(h, l, self.w_strong)

    def weight(self, net: Network) -> Tensor | float:
        """lambda, which may depend on the step."""
        return self.lam

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = net.encode(self.views, labeled, unlabeled)
        f_hat = self.label(net, net.h, u)
        terms = {
            "labeled": self.supervise(net, net.h, l),
            "unlabeled": self.weight(net) * self.imitate(net, net.h, u, f_hat),
        }
        self.record(net, u, f_hat)
        return Losses(terms, f_hat)
