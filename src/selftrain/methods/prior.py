"""The class frequencies of the labels and of the unlabeled pool, for methods that would otherwise assume them.

Knows nothing of images or runs. A network without this part has a pool with the frequencies of its labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from selftrain.nn.network import Network

PART = "prior"
LARGEST_WEIGHT = 10.0
"""largest weight of a class, and the inverse of the smallest one, before they are scaled"""
NEAR, FAR = 0.1, 0.2
"""total variation up to which a pool counts as one with the labels' frequencies, and from which as another"""
TRUSTED = 0.85
"""agreement of two models from which the shares that they predict are believed in full"""


class Prior(nn.Module):
    """pi_l, the class frequencies of the labels, and pi_u, those of the pool."""

    labels: Tensor
    pool: Tensor

    def __init__(self, counts: Sequence[float]) -> None:
        super().__init__()
        labels = torch.tensor(counts, dtype=torch.float32)
        self.register_buffer("labels", labels / labels.sum())
        self.register_buffer("pool", self.labels.clone())
        self.even = len(set(counts)) == 1

    @property
    def distance(self) -> Tensor:
        """Total variation between both, 0 to 1."""
        return total_variation(self.pool, self.labels)

    @property
    def unlike(self) -> Tensor:
        """0 if the pool has the labels' frequencies, up to the error of an estimate; 1 if it clearly has others."""
        return ((self.distance - NEAR) / (FAR - NEAR)).clamp(0, 1)

    def weights(self) -> Tensor:
        """Return w_k ~ pi_u(k) / pi_l(k), clipped, with mean 1 over the labels."""
        w = (self.pool / self.labels.clamp(min=1e-6)).clamp(1 / LARGEST_WEIGHT, LARGEST_WEIGHT)
        return w / (self.labels * w).sum()


def prior_of(net: Network) -> Prior | None:
    """Return the prior of a network, if its pool may have other frequencies than its labels."""
    return net.part(PART, Prior) if PART in net.parts else None


def pool_shares(net: Network, p: Tensor) -> Tensor:
    """Return pi_u for classes as in the last dimension of p; uniform in a network without a prior."""
    prior = prior_of(net)
    return torch.full_like(p[0], 1 / p.shape[-1]) if prior is None else prior.pool.to(p.dtype)


def label_offset(net: Network, adjust: float) -> Tensor | None:
    """Return adjust * log pi_l, which logit adjustment adds to the logits of labeled images; None if labels are even.

    (Menon et al., ICLR 2021.) A head that is trained with it favours no class for having more labels.
    """
    prior = prior_of(net)
    if not adjust or prior is None or prior.even:
        return None
    return adjust * prior.labels.clamp(min=1e-6).log()


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().sum() / 2


def estimate_shares(p: Tensor, q: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Return the estimated class frequencies of a pool, and the share of images on which two models agree.

    They are the shares of the classes that the mean of the two models' probabilities p and q predicts, each image with
    its weight. Where the two agree on few images, their shares say little: the estimate moves towards the labels'.
    """
    K = p.shape[1]
    weight = weight.double()
    total = weight.sum().clamp(min=1e-9)
    agreement = float((weight * (p.argmax(dim=1) == q.argmax(dim=1))).sum() / total)
    counts = torch.zeros(K, dtype=torch.float64, device=p.device).index_add_(0, (p + q).argmax(dim=1), weight)
    shares = (counts + 0.5) / (total + 0.5 * K)  # a class that is never predicted may still be there
    rho = min(1.0, agreement / TRUSTED)
    return (rho * shares + (1 - rho) * labels.double()).float(), agreement
