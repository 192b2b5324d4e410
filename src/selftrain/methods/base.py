"""The contract every method keeps, and what the self-training methods have in common.

Knows nothing of loops, devices, files or datasets: a method is its hyper-parameters and its equations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative, check_fields, field_types
from selftrain.errors import UserError
from selftrain.methods.functional import PseudoLabels, cross_entropy
from selftrain.nn.network import Network

W = TypeVar("W", bound="Wrapper")
Notes = dict[str, Tensor]
Grid = Mapping[str, tuple[Any, ...]]
# Values that the paper searched when fine-tuning.
LAMBDAS, TAUS, TEMPERATURES = (0.1, 0.3, 1.0, 3.0), (0.7, 0.8, 0.9, 0.95), (0.1, 0.5, 1.0, 2.0)


class Losses(NamedTuple):
    """What a call of an objective gives: the weighted terms whose sum is minimised, and the pseudo labels made."""

    terms: dict[str, Tensor]
    pseudo: PseudoLabels | None = None
    notes: Notes = {}  # noqa: RUF012 -- nobody adds to it
    """what was computed on the way and may interest observers, without gradient: logits of other heads, for example"""

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()

    @classmethod
    def sum(cls, several: Iterable[Losses]) -> Losses:
        """Those of several networks, term by term; pseudo labels and notes are those of the first."""
        first, *others = several
        if not others:
            return first
        terms = {
            name: torch.stack([term, *(o.terms[name] for o in others)]).sum() for name, term in first.terms.items()
        }
        return first._replace(terms=terms)

    def backward(self) -> None:
        self.total.backward()


# What is a matter of the regime and not of the method: so that comparisons are fair, all methods share it.
SHARED_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"finetune": {"w_strong": 0.1}, "frozen": {"w_strong": 1.0}}


@dataclass(frozen=True, kw_only=True)
class Method:
    """Hyper-parameters plus equations. All that changes in training lives in the network."""

    name: ClassVar[str]
    """how the method is spelled in a method string"""
    title: ClassVar[str]
    """how people write its name"""
    reference: ClassVar[str]
    """authors, title or venue, year"""
    regimes: ClassVar[tuple[str, ...]] = ("scratch", "finetune", "frozen")
    """where the method makes sense"""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """field values of a regime that differ from those of the class"""
    remarks: ClassVar[Mapping[str, str]] = {}
    """what a user should know about the method in a regime"""
    grid: ClassVar[Grid] = {}
    """values that a search tries for each option that matters most; the paper's where it gives them"""
    why_no_base: ClassVar[str] = "it makes no pseudo labels that a head of its own could learn from"
    """why DST cannot wrap it"""

    @classmethod
    def regime_defaults(cls, regime: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The field values of ``regime``, which may depend on those the user has given."""
        known = field_types(cls)
        shared = {name: value for name, value in SHARED_DEFAULTS.get(regime, {}).items() if name in known}
        return {**shared, **cls.defaults.get(regime, {})}

    @classmethod
    def preset_values(cls, preset: str) -> Mapping[str, Any]:
        """The field values a named preset stands for, where the method has presets."""
        return {}

    @classmethod
    def in_words(cls, options: Mapping[str, Any]) -> str:
        """Return options as words that follow a title ("without worst case"), where people have words for them."""
        return ""

    @classmethod
    def can_be_base(cls) -> bool:
        """Tell whether DST can wrap the method: whether it can label with one head and train another."""
        return hasattr(cls, "label") and hasattr(cls, "imitate")

    def __post_init__(self) -> None:
        check_fields(self, f"{self.name}({{}})".format)

    def check_regime(self, regime: str) -> None:
        """Refuse a regime in which the method makes no sense."""
        if regime not in self.regimes:
            why = f": {self.remarks[regime]}" if regime in self.remarks else ""
            possible = " or ".join(f'`regime="{one}"`' for one in self.regimes)
            raise UserError(f"`method`: {self.name} does not run in the {regime} regime{why}. It runs with {possible}.")

    @property
    def views(self) -> Views:
        """The views the objective reads, and which of them carry gradient."""
        raise NotImplementedError

    @property
    def rounds(self) -> int:
        """How often training is run; before each but the first the network starts afresh."""
        return 1

    @property
    def averaged(self) -> bool:
        """Its predictor is a moving average already."""
        return False

    @property
    def lasting(self) -> tuple[str, ...]:
        """Parts that outlive a round."""
        return ()

    @property
    def turns(self) -> tuple[str, ...]:
        """The players of a step, in order; each gets a call of the objective and an optimiser step of its own."""
        return ("all",)

    def setup(self, net: Network) -> None:
        """Add the modules and buffers the equations need to ``net.parts``."""

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        """The loss of one batch of images (or features), as this turn's player sees it."""
        return Losses.sum(self.losses(one, labeled, unlabeled, turn) for one in net.members)

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        """The terms of one network, where there are twins."""
        raise NotImplementedError

    def survey_due(self, t: int, steps: int) -> bool:
        """Whether the method wants to see the whole unlabeled set before step t; a round has ``steps``."""
        return False

    def survey(self, net: Network, model: nn.Module, pool: Iterable[Unlabeled]) -> None:
        """Take note of the unlabeled set: ``pool`` has weak views of this rank's share of it, in order, batch by batch.

        ``model`` is what would be evaluated at this moment: the predictor, or its average.
        """

    def optimizers(self, net: Network) -> list[torch.optim.Optimizer]:
        """Optimisers of the method's own, for parts that plain SGD does not suit."""
        return []

    def after_step(self, net: Network, t: int) -> None:
        """What follows the optimiser step t = 0, 1, ...: moving averages, queues."""

    def predictor(self, net: Network) -> nn.Module:
        """The module to evaluate and export; the engine averages it where it is the classifier itself."""
        return net.classifier


def labeled_loss(h: nn.Module, l: Labeled, w_strong: float = 0.0, weak: str = "weak", strong: str = "strong") -> Tensor:
    """L_L(psi, h) (Eq. 1), plus w_strong times the same on strong views where asked for."""
    loss = cross_entropy(h(l[weak]), l.y)
    return loss + w_strong * cross_entropy(h(l[strong]), l.y) if w_strong else loss


def labeled_views(w_strong: float) -> tuple[str, ...]:
    return ("weak", "strong") if w_strong else ("weak",)


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Method):
    """L_L(psi, h) + lambda L_U(psi, h, f_hat_{psi,h}) (Eq. 4) for methods that label and imitate."""

    lam: NonNegative = 1.0
    """lambda, the weight of the unlabeled loss"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views (0.1 in the paper's released fine-tuning code)"""

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        """f_hat_{psi,h} on features of the unlabeled views. Pure: it changes no state."""
        raise NotImplementedError

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        """L_U(psi, h, f_hat): how far head h is from the pseudo labels."""
        raise NotImplementedError

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        """Keep the statistics that later labels depend on; called once a step."""

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        """psi of the views that ``label``, ``imitate`` and ``supervise`` read."""
        return net.encode(views, labeled, unlabeled)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        """L_L(psi, h) on features of the labeled views."""
        return labeled_loss(h, l, self.w_strong)

    def weight(self, net: Network) -> Tensor | float:
        """lambda, which may depend on the step."""
        return self.lam

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        l, u = self.encode(net, self.views, labeled, unlabeled)
        f_hat = self.label(net, net.h, u)
        terms = {
            "labeled": self.supervise(net, net.h, l),
            "unlabeled": self.weight(net) * self.imitate(net, net.h, u, f_hat),
        }
        self.record(net, l, u, f_hat)
        return Losses(terms, f_hat)


def hooks_of(cls: type) -> dict[str, Any]:
    """Return the methods and properties that a class body defines for the engine to call, by name."""
    return {
        name: member
        for name, member in vars(cls).items()
        if not name.startswith("_") and isinstance(member, (FunctionType, property))
    }


def _forwarded(name: str, hook: Any) -> Any:
    if isinstance(hook, property):
        return property(lambda self: getattr(self.base, name), doc=hook.__doc__)

    @wraps(hook)
    def forward(self: Wrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.base, name)(*args, **kwargs)

    return forward


def forwarding_hooks(cls: type[W]) -> type[W]:
    """Make every hook of ``Method`` that the body of ``cls`` does not define call the same hook of ``self.base``."""
    for name, hook in hooks_of(Method).items():
        if name not in vars(cls):
            setattr(cls, name, _forwarded(name, hook))
    return cls


@dataclass(frozen=True)
@forwarding_hooks
class Wrapper(Method):
    """A method around another that can label and imitate; hooks that it does not define are those of the base."""

    base: SelfTraining
    """the method that labels with h and imitates with the pseudo head"""

    objective = Method.objective  # which calls the wrapper's own losses, not those of the base

    def __post_init__(self) -> None:
        if not self.base.can_be_base():
            raise UserError(f"{self.name} cannot wrap {self.base.name!r}: {self.base.why_no_base}.")
        super().__post_init__()

    def check_regime(self, regime: str) -> None:
        super().check_regime(regime)
        self.base.check_regime(regime)
