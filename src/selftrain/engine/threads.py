"""The number of CPU threads of a training step.

Knows nothing of methods or of other processes. The number follows from sizes and settings alone, never from a
measurement: it changes the last digits of sums, and a seed must give the same result every time.
"""

from __future__ import annotations

from selftrain.config.settings import Settings
from selftrain.methods.base import Method
from selftrain.nn.network import Network

SMALL = 10**8
"""multiplications of a step's largest matrix product below which one thread is at least as fast as two"""


def step_threads(settings: Settings, net: Network, method: Method) -> int:
    """Return how many threads a step uses; 0: as many as now.

    A step on stored features consists of hundreds of small operations. Shared by several threads, they mostly wait for
    each other.
    """
    train = settings.train
    if train.threads or settings.regime != "frozen" or method.fitted:
        return 0
    views = method.views
    samples = train.batch * len(views.labeled) + train.unlabeled_batch * len(views.unlabeled)
    largest = max((p.numel() for p in net.parameters() if p.requires_grad), default=0)
    return 1 if samples * largest < SMALL else 0
