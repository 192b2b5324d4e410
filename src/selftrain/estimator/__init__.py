"""scikit-learn estimators: a classifier that learns from labeled and unlabeled rows, features of images, folds,
and which rows to label next.

Knows nothing of equations or files. torch is imported when something is fitted, not before.
"""

from selftrain.estimator.classifier import DSTClassifier
from selftrain.estimator.folds import LabeledStratifiedKFold
from selftrain.estimator.frozen import FrozenFeatures
from selftrain.estimator.query import LabelQuery

__all__ = ["DSTClassifier", "FrozenFeatures", "LabelQuery", "LabeledStratifiedKFold"]
