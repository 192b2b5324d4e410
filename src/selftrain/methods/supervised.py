"""Supervised: labeled data only, the paper's "Baseline".

Knows nothing of unlabeled data: it declares no view of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selftrain.batch import Labeled, Unlabeled, Views
from selftrain.config.options import NonNegative
from selftrain.methods.base import Losses, Method, labeled_loss, labeled_views
from selftrain.methods.prior import label_offset
from selftrain.nn.network import Network


@dataclass(frozen=True, kw_only=True)
class Supervised(Method):
    """min_{psi,h} L_L(psi, h)."""

    name: ClassVar[str] = "supervised"
    title: ClassVar[str] = "Labels only"
    reference: ClassVar[str] = "the baseline of every table: labels only"

    w_strong: NonNegative = 0.0
    """weight of a second labeled loss, on strong views (0.1 in the paper's released fine-tuning code)"""
    adjust: NonNegative = 0.0
    """logit adjustment for uneven labels: factor on log(share of the class in the labels) in the labeled loss"""

    @property
    def views(self) -> Views:
        return Views(labeled=labeled_views(self.w_strong))

    def objective(
        self, net: Network, labeled: Labeled, unlabeled: Unlabeled | None = None, turn: str = "all"
    ) -> Losses:
        l, _ = net.encode(self.views, labeled, Unlabeled(labeled.y[:0]))
        return Losses({"labeled": labeled_loss(net.h, l, self.w_strong, offset=label_offset(net, self.adjust))})
