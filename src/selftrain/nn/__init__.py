"""Networks: backbones, psi and heads, weight averages, normalisation.

Knows nothing of data or of any method's equations. The names listed here are public, for training loops of your own.
"""

from selftrain.nn.average import Average
from selftrain.nn.backbones import build_backbone
from selftrain.nn.layers import Classifier, Encoder
from selftrain.nn.network import Network, Task

__all__ = ["Average", "Classifier", "Encoder", "Network", "Task", "build_backbone"]
