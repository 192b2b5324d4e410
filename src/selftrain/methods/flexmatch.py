"""FlexMatch: FixMatch with one threshold per class, which follows how well the class is learned.

Knows nothing of which head it trains: ``label`` and ``imitate`` take it as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods.fixmatch import FixMatch
from selftrain.methods.functional import PseudoLabels, probabilities, threshold
from selftrain.nn.collectives import all_rows
from selftrain.nn.network import Network


class LearningStatus(nn.Module):
    """The last confident label of each unlabeled sample, and the number of samples per label.

    The cost of an update does not depend on the number of samples.
    """

    selected: Tensor
    counts: Tensor

    def __init__(self, unlabeled: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("selected", torch.full((unlabeled,), -1))
        self.register_buffer(
            "counts", torch.zeros(classes + 1, dtype=torch.int64)
        )  # the first counts samples without a label
        self.counts[0] = unlabeled

    def update(self, index: Tensor, y: Tensor, sure: Tensor) -> None:
        """Set selected[index] = y where sure. If a sample occurs twice in a batch, its last sure label counts."""
        same = index[:, None] == index[None]
        place = torch.arange(1, len(index) + 1, device=index.device)
        last = (same & sure).mul(place).amax(dim=1)
        old = self.selected[index]
        new = torch.where(last > 0, y[last - 1], old)
        first = (~same.tril(-1).any(dim=1)).to(self.counts.dtype)
        self.counts.index_add_(0, old + 1, -first).index_add_(0, new + 1, first)
        self.selected[index] = new


@dataclass(frozen=True, kw_only=True)
class FlexMatch(FixMatch):
    """FixMatch with 1[max p_w >= tau M(beta(y_hat))], M(b) = b/(2 - b), beta = sigma(c) / max sigma."""

    name: ClassVar[str] = "flexmatch"
    title: ClassVar[str] = "FlexMatch"
    reference: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "finetune": {"tau": 0.7, "warmup": False},
        "frozen": {"tau": 0.9, "warmup": False},
    }

    warmup: bool = True
    """thresholds stay low while most samples have not had a confident label yet"""

    def setup(self, net: Network) -> None:
        net.parts["flexmatch"] = LearningStatus(net.task.unlabeled, net.task.classes)

    def thresholds(self, net: Network) -> Tensor:
        """Return tau M(beta(c)) per class; tau itself while no sample has had a confident label."""
        counts = net.part("flexmatch", LearningStatus).counts
        sigma = counts[1:].float()
        most = (counts if self.warmup else counts[1:]).max()
        beta = torch.where(most > 0, sigma / most.clamp(min=1), 1.0)
        return self.tau * beta / (2 - beta)

    def label(self, net: Network, h: nn.Module, u: Unlabeled) -> PseudoLabels:
        with torch.no_grad():
            f_hat = threshold(p := probabilities(h(u.weak)), self.tau)
            return f_hat._replace(keep=p.amax(dim=1) >= self.thresholds(net)[f_hat.y], note=f_hat.keep)

    def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
        assert f_hat.note is not None
        net.part("flexmatch", LearningStatus).update(*map(all_rows, (u.index, f_hat.y, f_hat.note)))
