"""Debiased Self-Training, an add-on for any method that can label and imitate.

Knows nothing of the base that it wraps beyond the hooks of ``SelfTraining``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import UNSET, AtLeast, Below, NonNegative
from selftrain.methods import functional as st
from selftrain.methods.base import Losses, Notes, Wrapper
from selftrain.methods.prior import prior_of
from selftrain.nn.contexts import frozen, recording_output
from selftrain.nn.layers import apply_in_one_pass, mlp_head
from selftrain.nn.network import Network
from selftrain.nn.norms import keeping_running_statistics

# The paper's equations and the code that its authors released differ; both are presets.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"worst_view": "strong", "worst_loss": "cross_entropy", "worst_threshold": True, "worst_labels": "true",
              "eta_prime": 1.0, "optimiser": "alternating", "reversal": 1.0, "warmup": 0.0},
    "released": {"worst_view": "weak", "worst_loss": "mistake", "worst_threshold": False, "worst_labels": "predicted",
                 "eta_prime": 2.0, "optimiser": "grl", "reversal": 0.1, "warmup": 1000.0},
}  # fmt: skip


@dataclass(frozen=True)
class DST(Wrapper):
    """min_{psi,h,h_pseudo} max_{h'} L_L(h) + lambda L_U(h_pseudo, f_hat) + eta [L_U(h', f_hat) - L_L(h')]  (Eq. 8)."""

    name: ClassVar[str] = "dst"
    title: ClassVar[str] = "DST"
    reference: ClassVar[str] = "Chen et al., NeurIPS 2022"
    why_no_base: ClassVar[str] = "it has a pseudo head already"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "scratch": {"eta": 0.3, "warmup": 0.1, "worst_layers": 3},
        "finetune": {"width": 2048},
        "frozen": {
            "width": 256,
            "reversal": 0.5,
            "uneven_reversal": 0.1,
            "warmup": 0.3,
            "worst_layers": 3,
            "weighted": True,
        },
    }

    preset: Literal["released", "paper"] = "released"
    """values of the options left unset below: those of the paper's equations, or of its authors' released code"""
    pseudo_head: Literal["mlp", "linear", "none"] = "mlp"
    """h_pseudo, the only head that learns from pseudo labels; none: h itself, as in the base"""
    worst: bool = True
    """estimate the worst case with h' and train psi to avoid it"""
    worst_view: Literal["weak", "strong", "base"] = UNSET
    """unlabeled view of h': strong (paper), weak (released), or one that the base trains on (cheapest)"""
    worst_loss: Literal["cross_entropy", "mistake"] = UNSET
    """error of h' on unlabeled data: cross_entropy (paper) or mistake, the bounded -log(1 - p) (released)"""
    worst_threshold: bool = UNSET
    """h' departs from the kept pseudo labels only (paper) or from all (released)"""
    worst_labels: Literal["true", "predicted"] = UNSET
    """on labeled data h' learns the true labels (paper) or those that h predicts (released)"""
    eta: NonNegative = 1.0
    """weight of the worst case"""
    eta_prime: NonNegative = UNSET
    """weight of labeled relative to unlabeled data within the worst case"""
    optimiser: Literal["grl", "alternating"] = UNSET
    """grl: one backward pass with gradient reversal; alternating (paper): a step of h', then one of the others"""
    reversal: NonNegative = UNSET
    """hi, the factor c on the reversed gradient into psi after the warm-up"""
    uneven_reversal: Annotated[float | None, AtLeast(0)] = None
    """hi where the pool's class frequencies are not those of the labels; none: reversal there as well"""
    weighted: bool = False
    """in the worst case, weigh a labeled image by the frequency of its class in the pool relative to the labels"""
    warmup: NonNegative = UNSET
    """N of c = 2 hi/(1 + exp(-i/N)) - hi, in steps, or as a share of training if below 1; 0: c = hi from the start"""
    width: Annotated[int | None, AtLeast(0)] = None
    """hidden width of h_pseudo and h'; none: twice the feature dimension"""
    dropout: Annotated[float, AtLeast(0), Below(1)] = 0.5
    """dropout of h_pseudo and h'"""
    worst_layers: Literal[2, 3] = 2
    """layers of h'; 3 layers use batch norm instead of dropout"""
    ce_cap: Annotated[float | None, AtLeast(0)] = None
    """upper bound of the cross entropy of h' per sample; none: unbounded"""

    @classmethod
    def regime_defaults(cls, regime: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        paper = given.get("preset") == "paper"  # the paper has the same equations in every regime
        return {key: value for key, value in cls.defaults.get(regime, {}).items() if key == "width" or not paper}

    @classmethod
    def in_words(cls, options: Mapping[str, Any]) -> str:
        return "without worst case" if options == {"worst": False} else ""

    @classmethod
    def preset_values(cls, preset: str) -> Mapping[str, Any]:
        return PRESETS.get(preset, {})

    def __post_init__(self) -> None:
        for key, value in self.preset_values(self.preset).items():
            if getattr(self, key) is UNSET:
                object.__setattr__(self, key, value)
        super().__post_init__()

    @property
    def reads_prior(self) -> bool:
        return (self.worst and (self.weighted or self.uneven_reversal is not None)) or self.base.reads_prior

    @property
    def views(self) -> Views:
        return self.base.views.with_unlabeled(self.sees) if self.worst else self.base.views

    @property
    def sees(self) -> str:
        """The unlabeled view of h'."""
        return (*self.base.views.gradient, "weak")[0] if self.worst_view == "base" else self.worst_view

    @property
    def turns(self) -> tuple[str, ...]:
        return ("worst", "others") if self.worst and self.optimiser == "alternating" else ("all",)

    def setup(self, net: Network) -> None:
        self.base.setup(net)
        dim, K, width = net.psi.dim, net.task.classes, self.width or 2 * net.psi.dim
        for one in net.members:
            if self.pseudo_head != "none":
                mlp = self.pseudo_head == "mlp"
                one.parts["h_pseudo"] = mlp_head(dim, width, K, dropout=self.dropout) if mlp else nn.Linear(dim, K)
            if self.worst:
                one.parts["h_worst"] = mlp_head(dim, width, K, dropout=self.dropout, layers=self.worst_layers)

    def losses(self, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        if turn == "worst":  # max over h' alone, Eq. 6
            with torch.no_grad(), keeping_running_statistics(net.psi):
                l, u = self.base.encode(net, self.views, labeled, unlabeled)
            return Losses({"worst": self.eta * self.E(net, l, u, self.base.label(net, net.h, u), {})})
        l, u = self.base.encode(net, self.views, labeled, unlabeled)
        f_hat = self.base.label(net, net.h, u)
        h_pseudo = net.h if self.pseudo_head == "none" else net.parts["h_pseudo"]
        terms, notes = {"labeled": self.base.supervise(net, net.h, l)}, Notes()
        with recording_output(h_pseudo, notes, "h" if h_pseudo is net.h else "h_pseudo"):
            terms["unlabeled"] = self.base.weight(net) * self.base.imitate(net, h_pseudo, u, f_hat)  # Eq. 5
        if self.worst and turn == "all":  # one backward pass for psi and h': the gradient is reversed on its way to psi
            reverse = partial(st.reverse_gradient, c=self.coefficient(net))
            terms["worst"] = self.eta * self.E(net, l, u, f_hat, notes, reverse)
        elif self.worst:  # min over psi with h' fixed, Eq. 7
            with frozen(net.parts["h_worst"]):
                terms["worst"] = -self.coefficient(net) * self.eta * self.E(net, l, u, f_hat, notes)
        self.base.record(net, l, u, f_hat)
        return Losses(terms, f_hat, notes)

    def E(  # noqa: N802
        self, net: Network, l: Labeled, u: Unlabeled, f_hat: st.PseudoLabels, notes: Notes,
        reverse: Callable[[Tensor], Tensor] = lambda z: z,
    ) -> Tensor:  # fmt: skip
        """Return the loss of h': its error on labeled data plus its agreement with f_hat on unlabeled data."""
        h_worst, exists = net.parts["h_worst"], f_hat.y >= 0
        f_hat = f_hat._replace(target=None, note=None) if self.worst_threshold else st.PseudoLabels(f_hat.y, exists)
        on_u, on_l = apply_in_one_pass(h_worst, reverse(u[self.sees]), reverse(l.weak))
        mistake = self.worst_loss == "mistake"
        agreement = st.mistake_loss(on_u, f_hat) if mistake else -st.pseudo_cross_entropy(on_u, f_hat, self.ce_cap)
        with torch.no_grad():
            y = l.y if self.worst_labels == "true" else net.h(l.weak).argmax(dim=1)
        wrong = self.labeled_error(net, on_l, y, l.y)
        notes |= {"h_worst": on_u.detach(), "L_worst": wrong.detach()}
        return (self.eta_prime * wrong + agreement) * exists.any()  # no worst case until the base has made labels

    def labeled_error(self, net: Network, logits: Tensor, y: Tensor, true: Tensor) -> Tensor:
        """Return the error of h' on labeled data; weighted, its classes are as frequent as those of the pool.

        Without weights, psi is trained to give the pool the class frequencies of the labels, whatever they are.
        """
        prior = prior_of(net)
        if not self.weighted or prior is None:
            return st.cross_entropy(logits, y)
        return (prior.weights()[true] * F.cross_entropy(logits.float(), y, reduction="none")).mean()

    def coefficient(self, net: Network) -> Tensor:
        """Return c at the current step."""
        N = self.warmup * net.task.steps if 0 < self.warmup < 1 else self.warmup
        return st.reversal_coefficient(net.step, self.strength(net), N)

    def strength(self, net: Network) -> float | Tensor:
        """Return hi: ``reversal``, or less the further the pool's class frequencies are from the labels'."""
        prior = prior_of(net)
        if self.uneven_reversal is None or prior is None:
            return self.reversal
        return self.reversal + (self.uneven_reversal - self.reversal) * prior.unlike
