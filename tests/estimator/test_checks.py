"""scikit-learn's own checks of estimators."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from selftrain import DSTClassifier, FrozenFeatures
from tests.estimator.small import quick

FAILS = {
    "check_classifiers_classes": "uses -1 as a label, which means unlabeled; SelfTrainingClassifier is exempt by name",
}


@parametrize_with_checks([quick()], expected_failed_checks=lambda _: FAILS)  # type: ignore[untyped-decorator]
def test_classifier(estimator: DSTClassifier, check: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some checks pass data that scikit-learn itself warns of
        check(estimator)


# The other checks pass tables of numbers, and the images of a transformer of images are none.
@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
        "check_no_attributes_set_in_init", "check_do_not_raise_errors_in_init_or_set_params", "check_mixin_order",
        "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params",
    ],
)  # fmt: skip
def test_features(check: str) -> None:
    getattr(estimator_checks, check)("FrozenFeatures", FrozenFeatures())
