"""DSTClassifier: what it learns, keeps and leaves alone."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils import estimator_html_repr

import selftrain
from selftrain import DSTClassifier
from selftrain.estimator.training_rows import TrainingRows
from selftrain.methods import DST, FixMatch, make_method
from selftrain.runs import image_outputs
from tests.estimator.small import METHOD, QUICK, pile, quick
from tests.runs.feature_piles import features


def files_below(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*")}


def test_attributes_describe_the_training_rows() -> None:
    x, y, truth = pile()
    clf = quick(steps=60).fit(x, y)
    assert clf.classes_.tolist() == [0, 1, 2]
    assert (clf.n_features_in_, clf.n_iter_) == (x.shape[1], 60)
    assert clf.label_distributions_.shape == (len(x), 3)
    assert np.allclose(clf.label_distributions_.sum(axis=1), 1, atol=1e-5)
    assert (clf.label_distributions_[y >= 0] == np.eye(3)[y[y >= 0]]).all()
    assert (clf.transduction_[y >= 0] == y[y >= 0]).all()
    assert (clf.transduction_ == truth).mean() > 0.9
    others = np.flatnonzero(y < 0)
    assert np.allclose(clf.label_distributions_[others], clf.predict_proba(x[others]), atol=1e-5)
    assert clf.prior_ is not None
    assert np.allclose(clf.prior_.sum(), 1, atol=1e-5)
    assert clf.guard_ is not None
    assert clf.novelty_ is not None
    assert clf.guard_["choice"] in ("blend", "labels_only")
    assert clf.novelty_.shape == (len(x),)
    assert (clf.novelty_[y >= 0] == 0).all()


def test_rows_that_look_like_no_class_are_novel() -> None:
    x, y, _ = pile(labels=12)
    junk = features(60, seed=5, first=8)[0]
    clf = quick().fit(np.concatenate([x, junk]), np.concatenate([y, np.full(len(junk), -1)]))
    assert clf.novelty_ is not None
    assert clf.novelty_[len(x) :].mean() > clf.novelty_[: len(x)].mean() + 0.5


def test_without_guard_and_screening_there_is_nothing_to_report() -> None:
    x, y, truth = pile()
    clf = quick(settings={"train.guard": "none", "data.screen": False}, steps=60).fit(x, y)
    assert clf.guard_ is None
    assert clf.novelty_ is None
    assert (clf.transduction_ == truth).mean() > 0.9


def test_the_same_seed_gives_the_same_answer_and_random_states_are_left_alone() -> None:
    x, y, _ = pile()
    np.random.seed(3)  # noqa: NPY002 -- the global state is what is looked at
    torch.manual_seed(3)
    before, threads = (np.random.get_state()[1].copy(), torch.get_rng_state().clone()), torch.get_num_threads()  # type: ignore[index]  # noqa: NPY002
    p = quick(random_state=7).fit(x, y).predict_proba(x)
    quick(random_state=None).fit(x, y)
    assert (np.random.get_state()[1] == before[0]).all()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_num_threads() == threads
    assert (quick(random_state=7).fit(x, y).predict_proba(x) == p).all()
    assert (quick(random_state=8).fit(x, y).predict_proba(x) != p).any()
    for make in (np.random.RandomState, np.random.default_rng):
        one, two = (quick(random_state=make(5)).fit(x, y).predict_proba(x) for _ in range(2))
        assert (one == two).all()


def test_the_estimator_learns_what_train_learns(tmp_path: Path) -> None:
    x, y, _ = pile()
    run = selftrain.train((x, y), method=METHOD, steps=20, seed=0, settings=QUICK, out=tmp_path / "run", quiet=True)
    assert np.allclose(quick().fit(x, y).predict_proba(x), run.predict(x).probabilities, atol=1e-5)


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    x, y, _ = pile()
    here, home, cache, temporary = (tmp_path / name for name in ("here", "home", "cache", "tmp"))
    for folder in (here, home, cache, temporary):
        folder.mkdir()
    monkeypatch.chdir(here)
    for name, folder in {"HOME": home, "SELFTRAIN_CACHE": cache, "XDG_CACHE_HOME": cache, "TMPDIR": temporary}.items():
        monkeypatch.setenv(name, str(folder))
    clf = quick().fit(x, y)
    clf.predict(x)
    assert not files_below(tmp_path) - {here, home, cache, temporary}
    assert capfd.readouterr() == ("", "")


def test_verbose_prints_what_train_prints(capfd: Any) -> None:
    x, y, _ = pile()
    quick(verbose=1).fit(x, y)
    said = capfd.readouterr().err
    assert "step 20/20" in said
    assert "guard: " in said


def test_a_run_folder_on_request(tmp_path: Path) -> None:
    x, y, _ = pile()
    clf = quick(run_folder=tmp_path / "run").fit(x, y)
    run = selftrain.Run(tmp_path / "run")
    assert run.results["method"] == METHOD
    assert np.allclose(run.predict(x).probabilities, clf.predict_proba(x), atol=1e-5)
    assert run.report().exists()
    assert (clf.predict_proba(x) == quick().fit(x, y).predict_proba(x)).all()
    with pytest.raises(ValueError, match="exists already"):
        clf.fit(x, y)


@pytest.mark.parametrize("fitted", [False, True])
def test_pickles(fitted: bool, tmp_path: Path) -> None:
    x, y, _ = pile()
    clf = quick()
    if fitted:
        clf.fit(x, y)
    joblib.dump(clf, tmp_path / "clf.joblib")
    for again in (pickle.loads(pickle.dumps(clf)), joblib.load(tmp_path / "clf.joblib")):
        assert again.get_params() == clf.get_params()
        if fitted:
            assert (again.predict_proba(x) == clf.predict_proba(x)).all()
            assert (again.transduction_ == clf.transduction_).all()
            assert again.guard_ == clf.guard_


def test_a_pickle_holds_no_training_data() -> None:
    x, y, _ = pile()
    x = np.tile(x, (1, 50))
    clf = quick("supervised").fit(x, y)
    assert len(pickle.dumps(clf)) < x.nbytes / 3
    assert clf._rows.known is None  # not computed yet
    lost = pickle.loads(pickle.dumps(clf))
    with pytest.raises(AttributeError, match="were not used before"):
        _ = lost.transduction_
    assert (lost.predict(x) == clf.predict(x)).all()
    assert clf.transduction_.shape == y.shape
    assert clf._rows.X is None


def test_labels_of_large_pools_are_computed_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = pile()
    expected = quick().fit(x, y).label_distributions_
    monkeypatch.setattr(image_outputs, "CAP", 50)
    clf = quick().fit(x, y)
    assert isinstance(clf._rows, TrainingRows)
    assert clf._rows.known is None
    assert clf.label_distributions_.shape == expected.shape
    assert (clf.label_distributions_[y >= 0] == expected[y >= 0]).all()


def test_clones_and_parameters() -> None:
    clf = quick(method=DST(FixMatch(tau=0.8)), settings={"optim.lr": 0.02})
    again = clone(clf)
    assert again.get_params() == clf.get_params()
    assert again.method == clf.method
    assert clf.get_params()["method__base__tau"] == 0.8
    assert "method__base__tau" not in clf.get_params(deep=False)
    again.set_params(method__base__tau=0.9, method__eta=0.5, steps=3)
    assert again.method == DST(FixMatch(tau=0.9), eta=0.5)
    assert clf.method == DST(FixMatch(tau=0.8))
    assert again.set_params(**clf.get_params()).get_params() == clf.get_params()


def test_options_of_a_method_string() -> None:
    clf = DSTClassifier()
    assert clf.get_params()["method__base__tau"] == 0.7  # of the frozen regime
    assert clf.get_params()["method__warmup"] == 0.3
    assert clf.set_params(**clf.get_params()).method == "dst(fixmatch)"
    clf.set_params(method__base__tau=0.9)
    assert clf.method == "dst(fixmatch(tau=0.9))"
    clf.set_params(method__base="flexmatch(tau=0.6)", method__worst=False)
    assert make_method(clf.method, "frozen") == make_method("dst(flexmatch(tau=0.6), worst=false)", "frozen")
    clf.set_params(method="fixmatch", method__tau=np.float64(0.5))
    assert clf.method == "fixmatch(tau=0.5)"
    clf.set_params(method="dst(fixmatch)", method__preset="paper")
    assert clf.get_params()["method__warmup"] == 0  # as the preset says, which options that were set would not follow


@pytest.mark.parametrize("method", ["dst(fixmatch)", DST(FixMatch())])
def test_options_that_do_not_exist(method: Any) -> None:
    with pytest.raises(ValueError, match=r"has no option 'taau'\. Did you mean 'tau'"):
        DSTClassifier(method).set_params(method__base__taau=1)
    with pytest.raises(ValueError, match="Invalid parameter"):
        DSTClassifier(method).set_params(step=1)


def test_arguments_are_not_modified() -> None:
    x, y, _ = pile()
    settings = {**QUICK, "optim.lr": 0.02}
    kept, x_before, y_before = dict(settings), x.copy(), y.copy()
    clf = DSTClassifier(METHOD, steps=5, settings=settings)
    clf.fit(x, y)
    assert settings == kept
    assert clf.settings is settings
    assert (x == x_before).all()
    assert (y == y_before).all()


def test_errors_are_value_errors() -> None:
    x, y, _ = pile()
    cases: list[tuple[DSTClassifier, str]] = [
        (quick("dst(fixmtch)"), "there is no method 'fixmtch'. Did you mean 'fixmatch'"),
        (quick(3), "`method`: expected a string"),
        (quick(settings={"optim.lrr": 1}), "there is no setting 'optim.lrr'"),
        (quick(settings={"train.steps": 3}), "conflicts with"),
        (quick(settings={"regime": "scratch"}), "conflicts with"),
        (quick(steps=0), "train.steps=0"),
        (quick(random_state=-1), "seed=-1"),
        (quick(random_state="x"), "cannot be used to seed"),
    ]
    for clf, words in cases:
        with pytest.raises(ValueError, match=words):
            clf.fit(x, y)


def test_a_warm_start_continues_from_the_fitted_network() -> None:
    x, y, _ = pile()
    frozen = {"optim.lr": 0.0}  # what is not trained stays as it is
    clf = quick(steps=80).fit(x, y)
    before = {name: value.clone() for name, value in clf._weights.items()}
    clf.set_params(warm_start=True, steps=1, settings={**QUICK, **frozen}).fit(x, y)
    moved = {name for name, value in clf._weights.items() if not torch.equal(value, before[name])}
    assert all("running" in name or "num_batches" in name for name in moved)
    cold = quick(steps=1, settings=frozen).fit(x, y)
    assert not torch.equal(cold._weights["classifier.h.weight"], before["classifier.h.weight"])


def test_a_warm_start_learns_new_labels() -> None:
    x, y, truth = pile(labels=1)
    clf = quick(steps=60, warm_start=True).fit(x, y)
    more = y.copy()
    wrong = np.flatnonzero(clf.predict(x) != truth)
    more[wrong] = truth[wrong]
    clf.set_params(steps=30).fit(x, more)
    assert clf.n_iter_ == 30
    assert (clf.transduction_[wrong] == truth[wrong]).all()
    assert (clf.predict(x) == truth).mean() > 0.95


def test_a_warm_start_needs_the_same_problem() -> None:
    x, y, _ = pile()
    clf = quick(warm_start=True).fit(x, y)
    with pytest.raises(ValueError, match=r"`warm_start=True`: y has the classes \[0, 1, 2, 3\]"):
        clf.fit(x, np.where(np.arange(len(y)) == len(y) - 1, 3, y))
    with pytest.raises(ValueError, match="X has 11 features, but DSTClassifier is expecting 12"):
        clf.fit(x[:, 1:], y)
    with pytest.raises(ValueError, match="the fitted network does not fit"):
        clf.set_params(settings={**QUICK, "network.bottleneck": 8}).fit(x, y)
    clf.set_params(warm_start=False).fit(x[:, 1:], y)
    assert clf.n_features_in_ == 11
    for other in ("fixmatch", "dst(flexmatch, width=8)"):  # other heads start from random weights
        quick(warm_start=True).fit(x, y).set_params(method=other).fit(x, y)


@pytest.mark.parametrize(
    "method", ["supervised", "fixmatch", "logistic", "label_spreading", "mean_teacher", "mixmatch"]
)
def test_other_methods(method: str) -> None:
    x, y, truth = pile()
    clf = quick(method, steps=60).fit(x, y)
    assert (clf.predict(x) == truth).mean() > 0.9
    assert (clf.transduction_[y < 0] == clf.predict(x)[y < 0]).all()


def test_a_method_object_is_taken_as_it_is() -> None:
    x, y, truth = pile()
    assert quick(DST(FixMatch(tau=0.7), width=16, warmup=0.1), steps=60).fit(x, y).score(x, truth) > 0.9


def test_one_label_per_class_all_labels_and_few_rows() -> None:
    x, y, truth = pile(labels=1)
    assert quick(steps=60).fit(x, y).score(x, truth) > 0.7
    clf = quick(steps=60).fit(x, truth)
    assert clf.score(x, truth) > 0.9
    assert (clf.transduction_ == truth).all()
    few = np.arange(10)
    assert quick().fit(x[few], np.where(few < 6, truth[few], -1)).predict(x).shape == truth.shape
    with pytest.raises(ValueError, match=r"y: only one class \(1\)"):
        quick().fit(x, np.where(y == 1, 1, -1))
    with pytest.raises(ValueError, match="y: no labeled row"):
        quick().fit(x, np.full(len(x), -1))


def test_two_classes_have_one_score() -> None:
    x, y, truth = pile()
    two = truth < 2
    clf = quick(steps=60).fit(x[two], y[two])
    scores, p = clf.decision_function(x), clf.predict_proba(x)
    assert scores.shape == (len(x),)
    assert np.allclose(1 / (1 + np.exp(-scores)), p[:, 1])
    assert (clf.predict(x) == (scores > 0)).all()


def test_a_page_can_show_it() -> None:
    x, y, _ = pile()
    assert "DSTClassifier" in estimator_html_repr(quick().fit(x, y))
    assert repr(DSTClassifier(steps=3)) == "DSTClassifier(steps=3)"


def test_importing_it_does_not_import_torch() -> None:
    code = (
        "import sys, selftrain.estimator; from selftrain import DSTClassifier, FrozenFeatures; DSTClassifier(); "
        "sys.exit('torch' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0


def test_a_method_in_a_file_that_the_user_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from selftrain.methods import FixMatch\n\nclass Mine(FixMatch):\n    name = 'mine'\n")
    X, y, _ = pile()
    clf = quick(method=f"dst({file}:Mine)").fit(X, y)
    assert set(clf.predict(X)) <= set(y[y >= 0])
