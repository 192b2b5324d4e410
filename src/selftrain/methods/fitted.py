"""Methods that are fitted once to the features of all images, and the predictors that they fit.

Knows nothing of backbones, files or runs: features in, a predictor of features out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.methods.base import Method
from selftrain.methods.functional import PseudoLabels
from selftrain.nn.contexts import using_threads
from selftrain.nn.network import Network

PART = "fitted"


def unit_centred(x: Tensor, centre: Tensor) -> Tensor:
    """Return features of unit length, centred, and of unit length again (CL2N of SimpleShot)."""
    return F.normalize(F.normalize(x.float(), dim=1) - centre, dim=1)


class FittedPredictor(nn.Module):
    """From features to logits. Its buffers get their shapes when it is fitted, or when a state is loaded."""

    centre: Tensor
    """(dim,) mean of the unit features of all images"""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in ("centre", *names):
            self.register_buffer(name, torch.zeros(0))

    def hold(self, state: Mapping[str, Tensor]) -> None:
        """Replace buffers by fitted values."""
        for name, value in state.items():
            old = self.get_buffer(name)
            setattr(self, name, value.detach().to(old.device, torch.float32).contiguous())

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *more: Any) -> None:
        for name, old in list(self.named_buffers(recurse=False)):
            if isinstance(saved := state_dict.get(prefix + name), Tensor):
                setattr(self, name, torch.empty_like(saved, device=old.device))
        super()._load_from_state_dict(state_dict, prefix, *more)

    def prepare(self, x: Tensor) -> Tensor:
        return unit_centred(x, self.centre)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # similarities need all digits of float32
            return self.logits(self.prepare(x))

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of prepared features."""
        raise NotImplementedError


class LinearPredictor(FittedPredictor):
    """z = W x + b."""

    weight: Tensor
    bias: Tensor

    def __init__(self) -> None:
        super().__init__("weight", "bias")

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class SoftNeighbours(FittedPredictor):
    """The log of the mean answer of the k nearest known images (0: of all), weighted by exp(cos/T).

    An image that is known itself keeps its own answer.
    """

    known: Tensor
    """(n, dim) prepared features"""
    answers: Tensor
    """(n, K) probabilities"""
    basis: Tensor
    """(dim, components) directions in which features are compared; empty: as they are"""

    def __init__(self, T: float, k: int = 0) -> None:
        super().__init__("known", "answers", "basis")
        self.T, self.k = T, k

    def logits(self, x: Tensor) -> Tensor:
        cos = project(x, self.basis) @ self.known.T
        k = min(self.k or len(self.known), len(self.known))
        if k == len(self.known):
            p = torch.softmax(_outweighing(cos) / self.T, dim=1) @ self.answers
        else:
            cos, rows = cos.topk(k, dim=1)
            p = torch.einsum("bk,bkc->bc", torch.softmax(_outweighing(cos) / self.T, dim=1), self.answers[rows])
        return p.clamp(min=1e-12).log()


def _outweighing(cos: Tensor) -> Tensor:
    """Return similarities in which an image outweighs all others in its own answer."""
    return torch.where(cos > 1 - 1e-5, cos + 10, cos)


def principal_directions(x: Tensor, count: int) -> Tensor:
    """Return the directions (dim, count) in which centred features vary most; empty if there are no more than count."""
    if not 0 < count < min(x.shape):
        return x.new_zeros(0)
    square = x.T @ x
    with using_threads(1):  # with another number of threads, the result has other last digits
        try:
            found: Tensor = torch.linalg.eigh(square).eigenvectors
        except RuntimeError:  # LAPACK's, in single precision: fewer images than numbers, and nearly alike
            found = torch.linalg.eigh(square.double()).eigenvectors.to(x.dtype)
    return found[:, -count:].contiguous()


def project(x: Tensor, basis: Tensor) -> Tensor:
    """Return features in a basis, of unit length again; as they are if the basis is empty."""
    return F.normalize(x @ basis, dim=1) if len(basis) else x


class Solution(NamedTuple):
    """What a method has found: the buffers of its predictor, and the labels it gave to the unlabeled images."""

    state: Mapping[str, Tensor]
    pseudo: PseudoLabels | None = None


_NEEDS_FEATURES = "it is fitted to the features of a frozen backbone"


@dataclass(frozen=True, kw_only=True)
class FittedMethod(Method):
    """A method that is fitted once. ``solve`` sees unit, centred features and returns what its predictor holds."""

    fitted: ClassVar[bool] = True
    regimes: ClassVar[tuple[str, ...]] = ("frozen",)
    remarks: ClassVar[Mapping[str, str]] = {"scratch": _NEEDS_FEATURES, "finetune": _NEEDS_FEATURES}
    why_no_base: ClassVar[str] = "it is fitted at once and trains no head"
    needs_pool: ClassVar[bool] = False
    """unlabeled images do more than move the centre of the features"""

    def empty_predictor(self) -> FittedPredictor:
        """Return the predictor before it is fitted."""
        raise NotImplementedError

    def solve(self, x: Tensor, y: Tensor, pool: Tensor, classes: int) -> Solution:
        """Return the state of the predictor from prepared features and labels of the labeled images, and the pool."""
        raise NotImplementedError

    @property
    def views(self) -> Views:
        return Views(labeled=("clean",), unlabeled=("clean",) if self.needs_pool else ())

    @property
    def averaged(self) -> bool:
        return True  # there is nothing to average over steps

    def setup(self, net: Network) -> None:
        net.parts[PART] = self.empty_predictor()

    @torch.no_grad()
    def fit(self, net: Network, labeled: Labeled, unlabeled: Unlabeled) -> PseudoLabels | None:
        predictor = net.part(PART, FittedPredictor)
        return self.fit_predictor(predictor, labeled["clean"], labeled.y, unlabeled["clean"], net.task.classes)

    def fit_predictor(
        self, predictor: FittedPredictor, x: Tensor, y: Tensor, pool: Tensor, classes: int
    ) -> PseudoLabels | None:
        """Fit a predictor to the features of labeled images and of the pool; return the labels it gave to the pool."""
        predictor.hold({"centre": F.normalize(torch.cat([x, pool]).float(), dim=1).mean(dim=0)})
        state, pseudo = self.solve(predictor.prepare(x), y, predictor.prepare(pool), classes)
        predictor.hold(state)
        return pseudo

    def predictor(self, net: Network) -> nn.Module:
        return net.part(PART, FittedPredictor)
