"""Mutual Learning: two heads on the same views exchange pseudo labels.

Knows nothing beyond co-training: only the views and the softness of the labels differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from selftrain.batch import Views
from selftrain.methods.base import labeled_views
from selftrain.methods.co_training import CoTraining
from selftrain.methods.functional import PseudoLabels, kl_divergence


@dataclass(frozen=True, kw_only=True)
class MutualLearning(CoTraining):
    """Co-training with shared views; softly, KL(p_other || p_own) on the strong view."""

    name: ClassVar[str] = "mutual_learning"
    title: ClassVar[str] = "Mutual learning"
    reference: ClassVar[str] = "Zhang et al., CVPR 2018"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"finetune": {"tau": 0.7}, "frozen": {"tau": 0.7}}

    soft: bool = False
    """imitate the whole prediction of the other head on every sample, without a threshold"""

    def names(self, k: int) -> tuple[str, str]:
        return ("weak", "strong")

    @property
    def views(self) -> Views:
        return Views(labeled_views(self.w_strong), unlabeled=("weak", "strong"), gradient=("strong",))

    def imitate(self, h: nn.Module, z: Tensor, other: PseudoLabels) -> Tensor:
        if not self.soft:
            return super().imitate(h, z, other)
        assert other.note is not None
        return kl_divergence(other.note, h(z)).mean()
