"""Problems of a dataset that can be seen before training: duplicates, leaks, wrong labels, odd images.

Knows nothing of training.
"""

from selftrain.check.check import Checked, check
from selftrain.check.findings import Finding

__all__ = ["Checked", "Finding", "check"]
