"""Calibrated probabilities and the accuracy without a test set."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import selftrain
from selftrain.checksums import FIELD
from selftrain.config.schema import check
from selftrain.errors import UserError
from selftrain.files import read_json, write_json
from selftrain.methods import Diffusion
from selftrain.methods.accuracy import class_interval, estimate_accuracy, per_class_accuracy, usual_temperature
from selftrain.methods.confidence import (
    estimate_prior,
    matching_temperature,
    risk_coverage,
    surest,
    tempered,
    with_prior,
)
from selftrain.neighbours import nearest_rows
from selftrain.nn.layers import Tempered
from selftrain.runs import trust
from selftrain.runs.model import load_model
from selftrain.runs.records import Calibrated
from selftrain.runs.trust import OPTIMISM
from tests.cli.test_cli import run as command
from tests.runs.feature_piles import DIM, K, features, train_pile, uneven, unseen

P = np.random.default_rng(0).dirichlet(np.ones(4), 50)


def test_a_temperature_changes_how_sure_and_not_which_class() -> None:
    logits = torch.from_numpy(np.log(P)).float()
    model = Tempered(torch.nn.Identity(), [2.0, 1.0, 0.5, 4.0])
    out = torch.softmax(model(logits), dim=1).numpy()
    assert (out.argmax(axis=1) == P.argmax(axis=1)).all()
    for i, p in enumerate(P):
        T = (2.0, 1.0, 0.5, 4.0)[p.argmax()]
        naive = p ** (1 / T) / (p ** (1 / T)).sum()
        assert out[i] == pytest.approx(naive, abs=1e-5)
    assert tempered(P, np.array([2.0, 1.0, 0.5, 4.0])) == pytest.approx(out, abs=1e-5)


@pytest.mark.parametrize("doubt", [0.0, 1.0])
@pytest.mark.parametrize("accuracy", [0.4, 0.7, 0.9])
def test_the_matching_temperature_gives_the_mean_confidence(accuracy: float, doubt: float) -> None:
    T = matching_temperature(P, accuracy, doubt=doubt)
    assert tempered(P, T, doubt).max(axis=1).mean() == pytest.approx(accuracy, abs=1e-6)


def test_doubt_makes_sure_images_surer_and_unsure_ones_less_sure() -> None:
    p = np.array([[0.9, 0.1], [0.55, 0.45]])
    powers = p ** (1 / np.array([[1.2 * 1.08], [1.2 * 1.36]]))  # 1 + 0.8 (1 - 0.9), 1 + 0.8 (1 - 0.55)
    naive = powers / powers.sum(axis=1, keepdims=True)
    assert tempered(p, 1.2, 0.8) == pytest.approx(naive, abs=1e-9)
    out = Tempered(torch.nn.Identity(), [1.2, 1.2], 0.8)(torch.from_numpy(np.log(p) + 3).float())
    assert torch.softmax(out, dim=1).numpy() == pytest.approx(naive, abs=1e-6)
    flat, steep = (tempered(P, matching_temperature(P, 0.7, doubt=c), c).max(axis=1).std() for c in (0.0, 1.0))
    assert steep > flat


def test_coverage_keeps_the_surest() -> None:
    confidence = np.array([0.5, 0.9, 0.7, 0.7, 0.2])
    assert surest(confidence, 0.4).tolist() == [False, True, True, False, False]
    assert surest(confidence, 1.0).all()
    curve = risk_coverage(confidence, np.array([0, 1, 1, 0, 0]))
    assert curve[0] == [0.2, 1.0, 0.9]
    assert curve[-1] == [1.0, 0.4, 0.2]


def test_the_prior_of_new_images_is_found() -> None:
    rng = np.random.default_rng(0)
    old, new = np.full(3, 1 / 3), np.array([0.8, 0.15, 0.05])
    y = rng.choice(3, 4000, p=new)
    z = 1.5 * np.eye(3)[y] + rng.normal(size=(4000, 3))  # p(y|x) is softmax(1.5 z) under equal frequencies
    p = np.exp(1.5 * z) / np.exp(1.5 * z).sum(axis=1, keepdims=True)
    found = estimate_prior(p, old)
    assert found == pytest.approx(new, abs=0.03)
    better = with_prior(p, old, found)
    assert (better.argmax(axis=1) == y).mean() > (p.argmax(axis=1) == y).mean() + 0.02


def test_leaving_out_a_label_is_fitting_without_it() -> None:
    x, truth = features(20, 15, 10)
    order = np.concatenate([np.flatnonzero(truth == k)[:4] for k in range(K)])
    rest = np.setdiff1d(np.arange(len(x)), order)
    rows = torch.from_numpy(x[np.concatenate([order, rest])])
    y = truth[order]
    near, spread = nearest_rows(rows, 5), Diffusion(k=5)
    found = spread.left_out(near, y, K)
    for i in (0, 5, 11):  # the naive way: a graph in which the image comes first among the unlabeled ones
        new = np.concatenate([np.delete(np.arange(len(y)), i), [i], np.arange(len(y), len(x))])
        moved = nearest_rows(rows[torch.from_numpy(new)], 5)
        naive = spread.spread(moved, np.delete(y, i), K)[len(y) - 1]
        assert found[i] == pytest.approx(naive, abs=2e-3)
    folds = spread._without_folds  # as with many labels per class
    from selftrain.methods.diffusion import normalised
    from selftrain.methods.graph import adjacency

    p = folds(normalised(adjacency(near, spread.gamma)), y, K)
    assert (p.argmax(axis=1) == y).mean() > 0.7


def test_the_estimate_is_near_the_truth_and_its_interval_covers_it() -> None:
    covered, errors = 0, []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        truth = rng.integers(4, size=2000)
        z = 1.2 * np.eye(4)[truth] + rng.normal(size=(2000, 4))
        believable = np.exp(1.2 * z)
        p = (believable / believable.sum(axis=1, keepdims=True)) ** 3  # too sure
        p /= p.sum(axis=1, keepdims=True)
        labels = np.arange(2000) < 40
        found = estimate_accuracy(
            p[labels], truth[labels], p[~labels], p[~labels], weight=np.ones(1960),
            label_weight=np.ones(40), gain=True,
        )  # fmt: skip
        assert found is not None
        assert found.labels == 40
        right = (p[~labels].argmax(axis=1) == truth[~labels]).mean()
        covered += found.low <= right <= found.high
        errors.append(found.accuracy - right)
    assert covered >= 26
    assert abs(np.mean(errors)) < 0.03


def test_a_model_gains_on_its_stand_in_what_it_says() -> None:
    rng = np.random.default_rng(0)
    left_out, stand_in = rng.dirichlet(np.ones(3), 12), rng.dirichlet(np.ones(3), 100)
    own = stand_in.copy()
    own[:20] = [0.7, 0.2, 0.1]
    naive = sum(p.max() - p[q.argmax()] for p, q in zip(own, stand_in, strict=True)) / 100
    assert naive > 0.03
    before, after, without = (
        estimate_accuracy(
            left_out, np.arange(12) % 3, stand_in, p, weight=np.ones(100), label_weight=np.ones(12), gain=gain
        )
        for p, gain in ((stand_in, True), (own, True), (own, False))
    )
    assert before is not None
    assert after is not None
    assert after.accuracy == pytest.approx(before.accuracy + naive, abs=1e-9)
    assert after.high - after.low > before.high - before.low
    assert without is not None
    assert without.accuracy == pytest.approx(before.accuracy, abs=1e-9)


def test_the_temperature_of_a_blend_is_mostly_that_of_others_like_it() -> None:
    naive = math.exp(math.log(0.71) + 0.79 * (1 - 0.8) + 0.4 * math.log(0.6))
    assert usual_temperature(0.8, 0.6) == pytest.approx(naive)
    assert usual_temperature(0.5, 0.6) > usual_temperature(
        0.8, 0.6
    )  # less accurate blends are surer than they should be


def test_an_estimate_that_is_moved_is_as_unsure_as_before() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 100)
    found = estimate_accuracy(p[:12], np.arange(12) % 3, p, p, weight=np.ones(100), label_weight=np.ones(12), gain=True)
    assert found is not None
    again = found.moved(found.accuracy)
    assert (again.low, again.high) == (found.low, found.high)
    higher = found.moved(found.accuracy + 0.1)
    assert higher.accuracy == pytest.approx(found.accuracy + 0.1)
    assert higher.low > found.low
    assert found.moved(1.2).accuracy == 0.99


def test_an_estimate_needs_a_label_to_leave_out() -> None:
    nothing = np.full((3, 3), np.nan)
    p = np.eye(3)
    assert estimate_accuracy(nothing, np.arange(3), p, p, weight=np.ones(3), label_weight=np.ones(3), gain=True) is None


def test_the_accuracy_of_a_class() -> None:
    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    assert per_class_accuracy(p, np.ones(3)) == pytest.approx([1.5 / 1.8, 0.7 / 1.2])
    low, high = class_interval(0.8, 3, 4)
    assert 0.4 < low < 0.7 < high < 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    return train_pile(tmp_path_factory.mktemp("trust") / "run")


def test_a_run_keeps_its_calibration_and_its_estimate(run: selftrain.Run) -> None:
    results, card = run.results, read_json(run.model / "model.json")
    assert card["temperature"] == results["calibrated"]["temperature"]
    assert len(card["temperature"]) == K
    assert sum(card["prior"]) == pytest.approx(1, abs=1e-4)
    assert results["calibrated"]["labels"] == 12
    assert results["calibrated"]["ece_before"] is not None
    assert results["risk_coverage"][-1][1] == pytest.approx(results["accuracy"])
    found = results["estimated"]
    assert 0 < found["low"] < found["accuracy"] < found["high"] < 1
    assert len(found["per_class"]) == K
    assert found["risk_coverage"]
    assert found["risk_coverage"][-1][1] == pytest.approx(found["accuracy"] + OPTIMISM, abs=0.02)  # one story


def test_a_blend_takes_the_usual_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def usual(accuracy: float, matching: float) -> float:
        asked.append((accuracy, matching))
        return 7.0

    monkeypatch.setattr(trust, "usual_temperature", usual)
    run = train_pile(tmp_path / "run")
    assert run.results["guard"]["choice"] == "blend"
    assert read_json(run.model / "model.json")["temperature"] == [7.0] * K
    ((accuracy, matching),) = asked
    assert run.results["estimated"]["accuracy"] < accuracy  # so high a temperature leaves little confidence
    assert 0 < matching < 7


def test_predict_evaluate_and_results_agree(run: selftrain.Run) -> None:
    x, y = unseen()
    p = run.predict(x).probabilities
    confidence = np.minimum(p.max(axis=1), 1 - 1e-9)
    place = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    gaps = [abs((p.argmax(axis=1) == y)[place == b].sum() - confidence[place == b].sum()) for b in range(15)]
    assert sum(gaps) / len(y) == pytest.approx(run.results["ece"], abs=1e-3)
    assert run.evaluate((x, y))["ece"] == pytest.approx(run.results["ece"], abs=1e-3)


def test_a_model_without_a_temperature_is_read_as_before(run: selftrain.Run, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run.model, tmp_path / "old")
    card = read_json(tmp_path / "old" / "model.json")
    temperature, doubt = card.pop("temperature")[0], card.pop("doubt")
    assert doubt > 0  # of a blend
    del card[FIELD]
    del card["prior"]
    write_json(tmp_path / "old" / "model.json", card)
    x, _ = unseen()
    old, new = selftrain.Run(tmp_path / "old").predict(x), run.predict(x)
    assert old.labels == new.labels
    assert tempered(old.probabilities, temperature, doubt) == pytest.approx(new.probabilities, abs=1e-4)
    with pytest.raises(UserError, match="does not know the class frequencies"):
        old.with_prior("estimate")


@pytest.mark.parametrize("value", [[1.0], [1.0, 0.0, 1.0], [1.0, "x", 1.0]])
def test_a_broken_temperature_is_an_error(run: selftrain.Run, tmp_path: Path, value: list[object]) -> None:
    import shutil

    shutil.copytree(run.model, tmp_path / "model")
    card = {**read_json(run.model / "model.json"), "temperature": value}
    del card[FIELD]
    write_json(tmp_path / "model" / "model.json", card)
    with pytest.raises(UserError, match="temperature"):
        load_model(tmp_path / "model")


def test_images_are_left_as_unsure(run: selftrain.Run) -> None:
    found = run.predict(unseen()[0])
    middle = float(np.median(found.confidence))
    strict = found.with_threshold(middle)
    assert strict.unsure is not None
    assert strict.unsure.tolist() == (found.confidence < middle).tolist()
    half = found.with_coverage(0.5)
    assert half.unsure is not None
    assert half.unsure.sum() == 30
    assert [a == "unsure" for a in half.answers] == half.unsure.tolist() or half.unknown is not None
    for bad in (0, 1.5):
        with pytest.raises(UserError, match="coverage"):
            found.with_coverage(bad)
    with pytest.raises(UserError, match="threshold"):
        found.with_threshold(2)


def test_a_prior_changes_probabilities(run: selftrain.Run, tmp_path: Path) -> None:
    found = run.predict(features(40, 1, 1, seed=3)[0])
    file = tmp_path / "shares.csv"
    file.write_text("class,share\n0,98\n1,1\n2,1\n")
    given, estimated = found.with_prior(file), found.with_prior("estimate")
    assert given.prior is not None
    assert given.prior == pytest.approx([0.98, 0.01, 0.01])
    assert estimated.prior is not None
    assert estimated.prior[0] > 0.8
    assert given.probabilities[:, 0].mean() > found.probabilities[:, 0].mean()
    assert found.with_prior([1, 1, 1]).prior == pytest.approx(np.full(3, 1 / 3))
    for bad in ("nowhere.csv", [1, 2]):
        with pytest.raises(UserError, match="prior"):
            found.with_prior(bad)


def test_the_command_leaves_images_unsure(
    run: selftrain.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "new.npy", unseen()[0])
    words = ["predict", str(run.folder), str(tmp_path / "new.npy"), "-o", str(tmp_path / "p.csv")]
    assert command(monkeypatch, *words, "--coverage", "0.5", "--prior", "estimate") == 0
    err = capsys.readouterr().err
    assert "30 of 60 rows are left as unsure" in err
    assert "class frequencies of these rows" in err
    assert "unsure" in (tmp_path / "p.csv").read_text()
    assert command(monkeypatch, *words, "--coverage", "0.5", "--threshold", "0.9") == 2
    assert "--threshold: conflicts with --coverage" in capsys.readouterr().err
    assert command(monkeypatch, *words, "--prior", "elsewhere.csv") == 2
    assert "--prior elsewhere.csv: expected estimate, uniform, or a CSV file" in capsys.readouterr().err


def test_one_label_per_class_gives_no_estimate(tmp_path: Path) -> None:
    x, y = uneven()
    y = np.where(np.isin(np.arange(len(y)), [np.flatnonzero(y == k)[0] for k in range(K)]), y, -1)
    run = train_pile(tmp_path / "run", data=(x, y), test=None)
    assert run.results["estimated"] is None
    assert run.results["calibrated"] is None
    assert load_model(run.model)[1].temperature == ()


def test_few_labels_that_are_all_right_prove_no_certainty(tmp_path: Path) -> None:
    truth = np.arange(120) % 3
    x = np.eye(3, 8)[truth] * 10 + np.random.default_rng(0).normal(size=(120, 8))
    run = train_pile(tmp_path / "run", data=(x.astype(np.float32), np.where(np.arange(120) < 6, truth, -1)), test=None)
    confidence = run.predict(x[6:].astype(np.float32)).confidence
    assert np.mean(confidence) == pytest.approx(1 - 1 / (6 + 2), abs=0.02)


@pytest.mark.parametrize("method", ["supervised", "logistic", "diffusion"])
def test_methods_without_a_guard_are_calibrated(method: str, tmp_path: Path) -> None:
    found = train_pile(tmp_path / "run", method).results
    assert found["calibrated"]["labels"] == 12
    assert found["estimated"]["low"] < found["accuracy"] + 0.1


def test_other_regimes_are_calibrated_on_held_out_labels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    y = np.arange(60) % 3
    known = np.where(np.arange(60) < 30, y, -1)
    run = selftrain.train(
        (x, known), test=(x[30:], y[30:]), regime="scratch", out=tmp_path / "run", quiet=True,
        settings={"train.steps": 2, "train.batch": 4, "train.unlabeled_batch": 4, "data.validation_per_class": 4},
    )  # fmt: skip
    assert run.results["calibrated"]["labels"] == 12
    assert run.results["estimated"] is None


def test_the_classifier_is_calibrated() -> None:
    x, y = uneven()
    settings = {"train.batch": 6, "train.unlabeled_batch": 8, "network.bottleneck": 16}
    clf = selftrain.DSTClassifier(steps=30, settings=settings, random_state=0).fit(x, y)
    assert clf.estimated_accuracy_ is not None
    assert clf.estimated_accuracy_["labels"] == 12
    new = clf.label_distributions_[np.flatnonzero(y < 0)]
    assert clf.predict_proba(x[y < 0]) == pytest.approx(new, abs=1e-3)
    assert x.shape[1] == DIM


def test_results_of_earlier_versions_are_read() -> None:
    earlier = {"temperature": [1.0], "labels": 3, "ece_before": None, "calibration_before": None}
    assert check(earlier, Calibrated, "results.json") is earlier
