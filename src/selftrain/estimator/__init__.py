"""scikit-learn estimators: a classifier that learns from labeled and unlabeled rows, features of images, and folds.

Knows nothing of equations or files. torch is imported when something is fitted, not before.
"""

from selftrain.estimator.classifier import DSTClassifier
from selftrain.estimator.folds import LabeledStratifiedKFold
from selftrain.estimator.frozen import FrozenFeatures

__all__ = ["DSTClassifier", "FrozenFeatures", "LabeledStratifiedKFold"]
