"""Label spreading: labels spread along a graph of neighbours, and labeled images may change theirs.

Knows nothing of the features: it sees the graph.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from selftrain.config.options import Above, Below
from selftrain.methods.base import Grid
from selftrain.methods.graph import GraphMethod, adjacency, shares
from selftrain.neighbours import Nearest


@dataclass(frozen=True, kw_only=True)
class LabelSpreading(GraphMethod):
    """F <- alpha S F + (1 - alpha) Y until it no longer changes; S is the normalised graph, without edge weights."""

    name: ClassVar[str] = "label_spreading"
    title: ClassVar[str] = "Label spreading"
    reference: ClassVar[str] = "Zhou et al., NIPS 2003"
    grid: ClassVar[Grid] = {"alpha": (0.2, 0.5, 0.8, 0.99), "k": (5, 10, 20)}

    alpha: Annotated[float, Above(0), Below(1)] = 0.8
    """share of an image's answer that comes from its neighbours (0.2 in scikit-learn, which reaches fewer images)"""

    def spread(self, near: Nearest, y: NDArray[Any], classes: int) -> NDArray[Any]:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.semi_supervised import LabelSpreading as Spreading

        graph = adjacency(near, power=0)
        graph.data[:] = 1.0
        n = graph.shape[0]
        labels = np.full(n, -1)
        labels[: len(y)] = y
        # scikit-learn's own kNN kernel compares all pairs of a large pool; its default is a dense n x n matrix
        model = Spreading(kernel=lambda a, b=None: graph, alpha=self.alpha, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(np.zeros((n, 1)), labels)
        F = np.zeros((n, classes))
        F[:, model.classes_] = model.label_distributions_
        return shares(F)
