"""The estimators inside scikit-learn's searches, folds, pipelines and calibration."""

from __future__ import annotations

import warnings

import joblib
import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from selftrain import LabeledStratifiedKFold
from tests.estimator.small import Array, pile, quick


def words(y: Array) -> Array:
    """Return integer labels as strings, with None for unlabeled."""
    return np.array([None if k < 0 else "abc"[k] for k in y], object)


def test_folds_test_on_labels_and_train_on_the_whole_pool() -> None:
    _, y, _ = pile()
    folds = list(LabeledStratifiedKFold(n_splits=3).split(y, y))
    assert len(folds) == LabeledStratifiedKFold(n_splits=3).get_n_splits() == 3
    unlabeled = np.flatnonzero(y < 0)
    for train, test in folds:
        assert np.isin(unlabeled, train).all()
        assert not np.intersect1d(train, test).size
        assert (np.bincount(y[test]) == 2).all()
        assert len(train) + len(test) == len(y)
    assert (np.sort(np.concatenate([test for _, test in folds])) == np.flatnonzero(y >= 0)).all()


def test_folds_of_labels_of_any_kind() -> None:
    _, y, _ = pile()
    expected = [test.tolist() for _, test in LabeledStratifiedKFold(2, shuffle=True, random_state=3).split(y, y)]
    for labels in (words(y), np.where(y < 0, np.nan, y)):
        found = LabeledStratifiedKFold(2, shuffle=True, random_state=3).split(labels, labels)
        assert [test.tolist() for _, test in found] == expected
    with pytest.raises(ValueError, match="cannot be greater than the number of members in each class"):
        list(LabeledStratifiedKFold(7).split(y, y))
    with pytest.raises(ValueError, match="-2 is not a label"):
        list(LabeledStratifiedKFold(2).split(y, y - 1))


def test_cross_val_score() -> None:
    x, y, _ = pile()
    scores = cross_val_score(quick(steps=60), x, y, cv=LabeledStratifiedKFold(3))
    assert scores.shape == (3,)
    assert scores.mean() > 0.7
    assert (cross_val_score(quick(steps=60), x, words(y), cv=LabeledStratifiedKFold(3)) == scores).all()


def test_grid_search_over_an_option_of_the_base() -> None:
    x, y, truth = pile()
    grid = {"method__base__tau": [0.6, 0.95], "method__worst": [True, False]}
    search = GridSearchCV(quick(), grid, cv=LabeledStratifiedKFold(2)).fit(x, y)
    assert len(search.cv_results_["params"]) == 4
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_
    assert best.get_params()["method__base__tau"] == search.best_params_["method__base__tau"]
    assert (search.predict(x) == truth).mean() > 0.7
    assert search.estimator.method == quick().method


def test_an_option_of_the_base_changes_the_fit() -> None:
    x, y, _ = pile()
    low, high = (quick(steps=40).set_params(method__base__tau=tau).fit(x, y).predict_proba(x) for tau in (0.0, 1.0))
    assert (low != high).any()


def test_pipeline() -> None:
    x, y, truth = pile()
    pipe = make_pipeline(StandardScaler(), quick(steps=60)).fit(x, y)
    assert pipe.score(x, truth) > 0.9
    assert (pipe.classes_ == [0, 1, 2]).all()
    pipe.set_params(dstclassifier__method__base__tau=0.9)
    assert pipe[-1].method == "dst(fixmatch(tau=0.9), width=16)"
    assert pipe.get_params()["dstclassifier__method__base__tau"] == 0.9


def test_calibration_with_unlabeled_rows_in_the_folds() -> None:
    x, y, truth = pile(labels=10)
    calibrated = CalibratedClassifierCV(quick(steps=60), cv=LabeledStratifiedKFold(2)).fit(x, y)
    assert calibrated.classes_.tolist() == [-1, 0, 1, 2]  # for scikit-learn, -1 is a class like any other ...
    p = calibrated.predict_proba(x)
    assert (p[:, 0] == 0).all()  # ... which has no probability
    assert np.allclose(p.sum(axis=1), 1)
    assert (calibrated.predict(x) == truth).mean() > 0.9


def test_calibration_of_a_fitted_classifier_on_labels_of_its_own() -> None:
    x, y, truth = pile()
    held_out = np.flatnonzero(y < 0)[:40]
    rest = np.setdiff1d(np.arange(len(x)), held_out)
    clf = quick(steps=60).fit(x[rest], y[rest])
    calibrated = CalibratedClassifierCV(FrozenEstimator(clf), cv=2).fit(x[held_out], truth[held_out])
    assert calibrated.classes_.tolist() == [0, 1, 2]
    assert (calibrated.predict(x) == truth).mean() > 0.9


def test_cross_val_predict_with_every_label_known() -> None:
    x, _, truth = pile()
    p = cross_val_predict(quick(steps=40), x, truth, cv=2, method="predict_proba")
    assert p.shape == (len(x), 3)


def fitted_probabilities(seed: int) -> Array:
    x, y, _ = pile()
    return np.asarray(quick(random_state=seed).fit(x, y).predict_proba(x))


@pytest.mark.long
def test_two_workers() -> None:
    x, y, _ = pile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joblib's own, about workers that took long to start
        here = [fitted_probabilities(seed) for seed in (0, 1)]
        there = joblib.Parallel(n_jobs=2)(joblib.delayed(fitted_probabilities)(seed) for seed in (0, 1))
        fitted = joblib.Parallel(n_jobs=2)(joblib.delayed(quick(random_state=seed).fit)(x, y) for seed in (0, 1))
    for a, b, clf in zip(here, there, fitted, strict=True):
        assert np.allclose(a, b, atol=1e-5)
        assert np.allclose(a, clf.predict_proba(x), atol=1e-5)
