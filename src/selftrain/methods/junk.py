"""Junk: which images of a pool belong to none of the classes, judged by features of a frozen backbone.

Knows nothing of files, runs or methods. An image is compared with the mean of each class (its prototype). A labeled
image that is left out of its own prototype shows how similar a member of a class should be. Images of the pool that are
less similar than almost all labeled ones, and whose neighbours are so as well, get a low weight.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from selftrain.methods.fitted import unit_centred

Q = 0.05
"""share of the members of classes that may fall below the threshold"""
UNKNOWN_MEMBERS = 0.03
"""share of the unlabeled members of classes that may count as unknown"""
NEIGHBOURS = 10
"""nearest images of the pool whose likeness counts as much as the image's own"""
MOST_DOUBTED = 1.5
"""images with a weight below 1, as a multiple of the estimated share of junk"""
CHUNK = 8192
"""images that are compared with all prototypes at once"""
MOST_FITTED = 20_000
"""values to which the mixture is fitted; of more, every n-th in increasing order"""
LEAST_SCALE, LEAST_VARIANCE = 0.01, 1e-6
"""cosines that differ by less are the same"""

Array = NDArray[Any]


class Novelty(nn.Module):
    """How little an image resembles any class: 0.5 at the threshold, towards 1 for images of no class."""

    centre: Tensor
    """(d,) mean of the unit features of all images, every class counting the same"""
    prototypes: Tensor
    """(K, d) unit; zero for a class without labels"""
    threshold: Tensor
    """() likeness below which an image is novel"""
    scale: Tensor
    """() half the interquartile range of the likeness of labeled images"""
    quartile: Tensor
    """() a quarter of the labeled images are less like their classes than this"""

    def __init__(
        self, centre: Tensor, prototypes: Tensor, threshold: Tensor, scale: Tensor, quartile: Tensor | None = None
    ) -> None:
        super().__init__()
        quartile = threshold + scale if quartile is None else quartile
        values = {"centre": centre, "prototypes": prototypes, "threshold": threshold, "scale": scale}
        for name, value in {**values, "quartile": quartile}.items():
            self.register_buffer(name, value.detach().to(torch.float32).clone().contiguous())

    def prepare(self, x: Tensor) -> Tensor:
        """Return features of unit length, centred, and of unit length again; neighbours are searched among these."""
        return unit_centred(x, self.centre)

    def likeness(self, x: Tensor) -> Tensor:
        """Return s (n,): the highest cosine of each image with a prototype."""
        with torch.autocast(x.device.type, enabled=False):
            chunks = torch.split(x, CHUNK) if x.shape[0] > CHUNK else (x,)  # len() would fix the batch of an export
            parts = [_cosines(self.prepare(part), self.prototypes).amax(dim=1) for part in chunks]
        return torch.cat(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the novelty (n,) of images, from 0 to 1."""
        return torch.sigmoid((self.threshold - self.likeness(x)) / self.scale)

    def is_novel(self, x: Tensor) -> Tensor:
        """Return whether each image is less like all classes than the threshold."""
        return self.likeness(x) < self.threshold


@dataclass(frozen=True)
class Screening:
    """What is known of each image of a pool, in its order."""

    likeness: Array
    """(n,) half the image's own likeness, half the mean likeness of its nearest neighbours"""
    weight: Array
    """(n,) from 0 (junk) to 1 (a member of a class)"""
    share: float
    """estimated share of junk; 0 if there is too little to be sure, and then all weights are 1"""


@torch.no_grad()
def fit_novelty(x_labeled: Tensor, y: Tensor, x_pool: Tensor | Iterable[Tensor], classes: int, q: float = Q) -> Novelty:
    """Return the novelty whose threshold a share q of the labeled images miss, each left out of its own prototype.

    ``x_pool`` may come in parts, so that a large pool need not fit memory.
    """
    x_labeled = x_labeled.float()
    centre = balanced_centre(x_labeled, y, x_pool, classes)
    x = unit_centred(x_labeled, centre)
    sums = torch.zeros(classes, x.shape[1], device=x.device).index_add_(0, y, x)
    s = _left_out_likeness(x, y, sums)
    threshold, lower, upper = torch.quantile(s, torch.tensor([q, 0.25, 0.75], device=s.device))
    scale = ((upper - lower) / 2).clamp(min=LEAST_SCALE)
    return Novelty(centre, F.normalize(sums, dim=1), threshold, scale, lower)


def threshold_of_unknown(novelty: Novelty, members: Tensor) -> Tensor:
    """Return the likeness below which a new image is unknown: that of the labels, or lower.

    The quantile of a few labels is uncertain. ``members`` has the likeness of the unlabeled images that seem to belong
    to a class; no more than a small share of them may be below.
    """
    if not len(members):
        return novelty.threshold
    place = max(1, math.ceil(UNKNOWN_MEMBERS * len(members)))
    return torch.minimum(novelty.threshold, members.kthvalue(place).values.to(novelty.threshold))


@torch.no_grad()
def screen(novelty: Novelty, own: Tensor, labels: int, near: Tensor | None = None, q: float = Q) -> Screening:
    """Weigh the images of a pool of likeness ``own`` by how likely each belongs to a class.

    ``labels`` images have set the threshold.
    ``near`` (n, 10) holds the rows of the nearest images of each image, found among prepared features.
    Without it, each image is judged by itself.
    """
    smooth = own if near is None or not near.shape[1] else 0.5 * own + 0.5 * own[near.to(own.device)].mean(dim=1)
    s, likeness = own.double().cpu().numpy(), smooth.double().cpu().numpy()
    below = s < float(novelty.threshold)
    r = float(below.mean()) if len(s) else 0.0
    if r <= max(2 * q, missing_members(labels, q)):
        return Screening(likeness, np.ones(len(s)), 0.0)
    share = max(0.0, (r - q) / (1 - q))
    weight = _membership(likeness, below, s >= float(novelty.quartile), novelty)
    most = np.quantile(likeness, min(1.0, MOST_DOUBTED * share))  # two groups may also be two kinds of members
    return Screening(likeness, np.where(likeness > most, 1.0, weight), share)


def missing_members(labels: int, q: float) -> float:
    """Return the upper 99% limit of the share of members below a threshold that a share q of the labeled images miss.

    The threshold is a quantile of few images, so more of the pool's members than q may lie below it.
    """
    from scipy.special import betaincinv  # importing scipy.stats takes a second

    k = math.floor(q * max(labels - 1, 0)) + 1
    return float(betaincinv(k, max(labels - k + 1, 1), 0.99))


def auroc(score: Array, is_junk: Array) -> float | None:
    """Return the share of pairs (junk, member) in which junk has the higher score; ties count half.

    None if there are not both kinds.
    """
    is_junk = np.asarray(is_junk, bool)
    junk, members = int(is_junk.sum()), int((~is_junk).sum())
    if not junk or not members:
        return None
    from scipy.stats import rankdata

    ranks = rankdata(np.asarray(score, np.float64))
    return float((ranks[is_junk].sum() - junk * (junk + 1) / 2) / (junk * members))


def balanced_centre(x: Tensor, y: Tensor, pool: Tensor | Iterable[Tensor], classes: int) -> Tensor:
    """Return the mean over classes of the mean unit features of their images; pool images count for the nearest class.

    The plain mean of an uneven pool lies near its largest class, whose images then resemble nothing.
    """
    x = F.normalize(x, dim=1)
    count = torch.bincount(y, minlength=classes)
    known = count > 0
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
    means = sums / count.clamp(min=1)[:, None]
    start = means[known].mean(dim=0)
    directions = F.normalize(means - start, dim=1) * known[:, None]
    for parts in (pool,) if isinstance(pool, Tensor) else pool:
        for part in torch.split(parts, CHUNK):
            unit = F.normalize(part.float(), dim=1)
            nearest = _cosines(unit - start, directions).argmax(dim=1)
            sums.index_add_(0, nearest, unit)
            count += torch.bincount(nearest, minlength=classes)
    return (sums / count.clamp(min=1)[:, None])[known].mean(dim=0)


def _cosines(x: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosines (n, K) of prepared features with prototypes; -1 for a class without one."""
    return (x @ prototypes.T).masked_fill((prototypes == 0).all(dim=1), -1.0)


def _left_out_likeness(x: Tensor, y: Tensor, sums: Tensor) -> Tensor:
    """Return the likeness (n,) of labeled images, where each class's own prototype is the mean of its other images.

    The only image of a class is compared with the other classes.
    """
    own = y[:, None]
    others = _cosines(x, F.normalize(sums, dim=1)).scatter(1, own, -1.0).amax(dim=1)
    rest = F.normalize(sums[y] - x, dim=1)
    alone = torch.bincount(y, minlength=len(sums))[y] == 1
    return torch.maximum(others, (rest * x).sum(dim=1).masked_fill(alone, -1.0))


def _membership(likeness: Array, low: Array, high: Array, novelty: Novelty) -> Array:
    """Return the probability of the upper of two Gaussians, fitted to the likeness from a start at low and high.

    It is 1 above the upper mean and 0 below the lower one, and rises in between. If the values do not form two groups,
    or the upper mean is below the threshold, it is a sigmoid around the threshold instead.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    threshold, scale = float(novelty.threshold), float(novelty.scale)
    weight = 1 / (1 + np.exp(-np.clip((likeness - threshold) / scale, -500, 500)))
    if np.ptp(likeness) ** 2 < LEAST_VARIANCE or not high.any():
        return weight
    means = [likeness[low].mean(), likeness[high].mean()]
    variances = [max(likeness[low].var(), LEAST_VARIANCE), max(likeness[high].var(), LEAST_VARIANCE)]
    share = np.clip(low.mean(), 0.01, 0.99)
    mixture = GaussianMixture(
        2,
        weights_init=[share, 1 - share],
        means_init=np.array(means)[:, None],
        precisions_init=1 / np.array(variances)[:, None, None],
        random_state=0,
    )
    values = np.sort(likeness)  # in increasing order, the order of the pool does not change the rounding
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(values[:: max(1, len(values) // MOST_FITTED), None])
    lower, upper = mixture.means_[:, 0]
    if not lower < upper or upper <= threshold:
        return weight
    p: Array = mixture.predict_proba(likeness[:, None])[:, 1]
    return np.where(likeness >= upper, 1.0, np.where(likeness <= lower, 0.0, p))
