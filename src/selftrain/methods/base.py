"""The contract of every method, and the code that self-training methods share.

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
from selftrain.methods.prior import label_offset
from selftrain.nn.network import Network

W = TypeVar("W", bound="Wrapper")
Notes = dict[str, Tensor]
Grid = Mapping[str, tuple[Any, ...]]
# Values that the paper searched when fine-tuning.
LAMBDAS, TAUS, TEMPERATURES = (0.1, 0.3, 1.0, 3.0), (0.7, 0.8, 0.9, 0.95), (0.1, 0.5, 1.0, 2.0)


class Losses(NamedTuple):
    """The result of an objective: the weighted terms whose sum is minimised, and the pseudo labels that were made."""

    terms: dict[str, Tensor]
    pseudo: PseudoLabels | None = None
    notes: Notes = {}  # noqa: RUF012 -- never modified
    """intermediate values without gradient that observers may read, such as the logits of other heads"""

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()

    @classmethod
    def sum(cls, several: Iterable[Losses]) -> Losses:
        """Add the losses of several networks term by term; pseudo labels and notes are those of the first."""
        first, *others = several
        if not others:
            return first
        terms = {
            name: torch.stack([term, *(o.terms[name] for o in others)]).sum() for name, term in first.terms.items()
        }
        return first._replace(terms=terms)

    def backward(self) -> None:
        torch.autograd.backward(self.total)


# Defaults that belong to the regime: all methods share them, so that comparisons are fair.
SHARED_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "finetune": {"w_strong": 0.1},
    "frozen": {"w_strong": 1.0, "adjust": 1.0},
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """Hyper-parameters and equations. All state that changes during training is in the network."""

    name: ClassVar[str]
    """how the method is spelled in a method string"""
    title: ClassVar[str]
    """how people write its name"""
    reference: ClassVar[str]
    """authors, venue and year"""
    regimes: ClassVar[tuple[str, ...]] = ("scratch", "finetune", "frozen")
    """regimes in which the method can be trained"""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """options whose defaults in a regime differ from those of the class"""
    remarks: ClassVar[Mapping[str, str]] = {}
    """a note to the user about the method in a regime"""
    grid: ClassVar[Grid] = {}
    """values that a search tries for each option that matters most; the paper's where it gives them"""
    flows: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """parts that each loss term trains, {"unlabeled": ("psi", "h")}, for ``selftrain test-method``; empty: unknown"""
    spelled_as: ClassVar[str]
    """how a class from outside the package is written in a method string, set when it is loaded"""
    fitted: ClassVar[bool] = False
    """it is fitted once to all images (``fit``) instead of trained step by step (``losses``)"""
    why_no_base: ClassVar[str] = "it makes no pseudo labels that another head could learn from"
    """why DST cannot wrap it"""

    @classmethod
    def regime_defaults(cls, regime: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults of ``regime``, which may depend on the options that the user has given."""
        known = field_types(cls)
        shared = {name: value for name, value in SHARED_DEFAULTS.get(regime, {}).items() if name in known}
        return {**shared, **cls.defaults.get(regime, {})}

    @classmethod
    def preset_values(cls, preset: str) -> Mapping[str, Any]:
        """Return the options that a named preset sets, where the method has presets."""
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
        """Raise a UserError if the method cannot be trained in ``regime``."""
        if regime not in self.regimes:
            why = f": {self.remarks[regime]}" if regime in self.remarks else ""
            possible = " or ".join(f'`regime="{one}"`' for one in self.regimes)
            raise UserError(f"`method`: {self.name} does not run in the {regime} regime{why}. It runs with {possible}.")

    @property
    def views(self) -> Views:
        """The views the objective reads, and which of them carry gradient."""
        raise NotImplementedError

    @property
    def reads_prior(self) -> bool:
        """Whether the equations depend on the class frequencies of the pool."""
        return False

    @property
    def rounds(self) -> int:
        """Number of training rounds; each round but the first starts from a newly initialised network."""
        return 1

    @property
    def averaged(self) -> bool:
        """Whether the predictor is a moving average already, so that the engine keeps none."""
        return False

    @property
    def lasting(self) -> tuple[str, ...]:
        """Names of the parts that are kept from one round to the next."""
        return ()

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns of a step, in order; each has its own call of the objective and its own optimiser step."""
        return ("all",)

    def setup(self, net: Network) -> None:
        """Add the modules and buffers that the equations need to ``net.parts``."""

    def objective(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        """Return the losses of one batch of images (or features) in this turn."""
        return Losses.sum(self.losses(one, labeled, unlabeled, turn) for one in net.members)

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        """Return the losses of one network; ``objective`` adds those of twin networks."""
        raise NotImplementedError

    def fit(self, net: Network, labeled: Labeled, unlabeled: Unlabeled) -> PseudoLabels | None:
        """Fit the predictor to all images, if the method is ``fitted``, and return labels that it gave on the way."""
        raise NotImplementedError

    def survey_due(self, t: int, steps: int) -> bool:
        """Tell whether ``survey`` must be called before step t; a round has ``steps`` steps."""
        return False

    def survey(self, net: Network, model: nn.Module, pool: Iterable[Unlabeled]) -> None:
        """Update the state that depends on the whole unlabeled set.

        ``pool`` yields batches of weak views of this rank's share of the set, in order. ``model`` is the model that
        would be evaluated now: the predictor, or its average.
        """

    def optimizers(self, net: Network) -> list[torch.optim.Optimizer]:
        """Return additional optimisers, for parts that must not be trained with SGD."""
        return []

    def after_step(self, net: Network, t: int) -> None:
        """Update moving averages and queues after the optimiser step t = 0, 1, ..."""

    def predictor(self, net: Network) -> nn.Module:
        """Return the module to evaluate and export; the engine averages it where it is the classifier itself."""
        return net.classifier


def labeled_loss(
    h: nn.Module,
    l: Labeled,
    w_strong: float = 0.0,
    weak: str = "weak",
    strong: str = "strong",
    offset: Tensor | None = None,
) -> Tensor:
    """Return L_L(psi, h) (Eq. 1), plus w_strong times the same loss on strong views.

    ``offset`` is added to the logits, as ``label_offset`` explains.
    """

    def loss(view: str) -> Tensor:
        z = h(l[view])
        return cross_entropy(z if offset is None else z + offset, l.y)

    return loss(weak) + w_strong * loss(strong) if w_strong else loss(weak)


def labeled_views(w_strong: float) -> tuple[str, ...]:
    """Return the labeled views that ``labeled_loss`` reads."""
    return ("weak", "strong") if w_strong else ("weak",)


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Method):
    """L_L(psi, h) + lambda L_U(psi, h, f_hat_{psi,h}) (Eq. 4) for methods that label and imitate."""

    lam: NonNegative = 1.0
    """lambda, the weight of the unlabeled loss"""
    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views (0.1 in the paper's released fine-tuning code)"""
    adjust: NonNegative = 0.0
    """logit adjustment for uneven labels: factor on log(share of the class in the labels) in the labeled loss"""

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        """Return f_hat_{psi,h} from features of the unlabeled views. Pure: it changes no state."""
        raise NotImplementedError

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        """Return L_U(psi, h, f_hat), the loss of head h on the pseudo labels."""
        raise NotImplementedError

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        """Update the statistics that later labels depend on; called once per step."""

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        """Return psi of the views that ``label``, ``imitate`` and ``supervise`` read."""
        return net.encode(views, labeled, unlabeled)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        """Return L_L(psi, h) from features of the labeled views."""
        return labeled_loss(h, l, self.w_strong, offset=label_offset(net, self.adjust))

    def weight(self, net: Network) -> Tensor | float:
        """Return lambda, which may depend on the step."""
        return self.lam

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        return _losses(self, net, labeled, unlabeled)


def _losses(method: SelfTraining | AddOn, net: Network, labeled: Labeled, unlabeled: Unlabeled) -> Losses:
    l, u = method.encode(net, method.views, labeled, unlabeled)
    f_hat = method.label(net, net.h, u)
    terms = {
        "labeled": method.supervise(net, net.h, l),
        "unlabeled": method.weight(net) * method.imitate(net, net.h, u, f_hat),
    }
    method.record(net, l, u, f_hat)
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

    base: SelfTraining | AddOn
    """the method that labels with h and imitates with the pseudo head"""

    objective = Method.objective  # which calls the wrapper's own losses, not those of the base

    def __post_init__(self) -> None:
        if not self.base.can_be_base():
            raise UserError(f"`method`: {self.name} cannot wrap {self.base.name!r}: {self.base.why_no_base}.")
        super().__post_init__()

    def check_regime(self, regime: str) -> None:
        super().check_regime(regime)
        self.base.check_regime(regime)


@dataclass(frozen=True)
class AddOn(Wrapper):
    """A wrapper that DST can wrap in turn: it changes how its base labels, imitates or learns from labels.

    Hooks that it does not define are those of the base.
    """

    base: SelfTraining | AddOn
    """the method that is changed"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.base).predictor is not Method.predictor and not isinstance(self.base, AddOn):
            why = "it predicts with a network of its own, which the add-on would not reach"
            raise UserError(f"`method`: {self.name} cannot wrap {self.base.name!r}: {why}.")
        inner: Any = self.base
        while isinstance(inner, AddOn):
            if inner.name == self.name:
                raise UserError(f"`method`: {self.name} is given twice, one inside the other. Keep one of them.")
            inner = inner.base

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        return self.base.label(net, h, u)

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        return self.base.imitate(net, h, u, f_hat)

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        self.base.record(net, l, u, f_hat)

    def encode(self, net: Network, views: Views, labeled: Labeled, unlabeled: Unlabeled) -> tuple[Labeled, Unlabeled]:
        return self.base.encode(net, views, labeled, unlabeled)

    def supervise(self, net: Network, h: nn.Module, l: Labeled) -> Tensor:
        return self.base.supervise(net, h, l)

    def weight(self, net: Network) -> Tensor | float:
        return self.base.weight(net)

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        return _losses(self, net, labeled, unlabeled)
