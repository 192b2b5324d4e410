"""DebiasMatch: remove the average prediction before labelling, and add it to the loss as a margin.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.config.options import NonNegative, ZeroToOne
from selftrain.methods.base import LAMBDAS, TAUS, Grid
from selftrain.methods.fixmatch import FixMatch
from selftrain.methods.functional import PseudoLabels, probabilities, pseudo_cross_entropy, threshold
from selftrain.methods.prior import pool_shares
from selftrain.nn.collectives import all_mean
from selftrain.nn.network import Network


class MeanPrediction(nn.Module):
    """q_hat, the running mean of the predictions on unlabeled data."""

    q: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("q", torch.full((classes,), 1 / classes))


@dataclass(frozen=True, kw_only=True)
class DebiasMatch(FixMatch):
    """FixMatch with labels from softmax(z_w - kappa log q_hat) and the loss on softmax(z_s + kappa log q_hat)."""

    name: ClassVar[str] = "debiasmatch"
    title: ClassVar[str] = "DebiasMatch"
    reference: ClassVar[str] = "Wang et al., CVPR 2022"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"tau": 0.7, "kappa": 0.3},
        "frozen": {"tau": 0.7, "kappa": 1.0},
    }
    grid: ClassVar[Grid] = {"kappa": (0.1, 0.3, 1.0, 3.0), "tau": TAUS, "lam": LAMBDAS}

    kappa: NonNegative = 0.4
    """debias factor: how much of the average prediction is removed"""
    m: ZeroToOne = 0.999
    """decay of the average prediction"""
    update_first: bool = True
    """a batch updates the average before it is labeled; the original uses the average of earlier batches only"""

    @property
    def reads_prior(self) -> bool:
        return True

    def setup(self, net: Network) -> None:
        net.parts["debiasmatch"] = MeanPrediction(net.task.classes)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            z = h(u.weak).float()
            before = net.part("debiasmatch", MeanPrediction).q
            after = torch.lerp(all_mean(probabilities(z).mean(dim=0)), before, self.m)
            q = after if self.update_first else before
            excess = (q / pool_shares(net, z)).log()  # uniform shares change nothing: softmax ignores constants
            return threshold(torch.softmax(z - self.kappa * excess, dim=1), self.tau)._replace(
                note=torch.stack([q, after])
            )

    def imitate(self, net: Network, h: nn.Module, u: Unlabeled, f_hat: PseudoLabels) -> Tensor:
        assert f_hat.note is not None
        return pseudo_cross_entropy(h(u.strong).float() + self.kappa * f_hat.note[0].log(), f_hat)

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        net.part("debiasmatch", MeanPrediction).q.copy_(f_hat.note[1])
