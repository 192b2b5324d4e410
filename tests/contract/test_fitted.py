"""One suite for the methods that are fitted at once: the requirements that do not depend on their equations.

They are fitted to handwritten digits as features, through the library's own loop and run folders.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import selftrain
from selftrain.batch import Labeled, Unlabeled
from selftrain.config.options import field_help, field_types
from selftrain.engine.loop import Loop
from selftrain.errors import UserError
from selftrain.methods import FittedMethod, Logistic, Method, make_method, spell_method
from selftrain.methods.functional import PseudoLabels
from selftrain.nn.layers import Classifier, Encoder, UnitFeatures
from selftrain.nn.network import Network, Task
from selftrain.runs.model import load_model
from selftrain.runs.resolve import resolve
from tests.contract.spellings import FITTED
from tests.tiny import digits_of

DIM = 64


@pytest.fixture(params=FITTED)
def method(request: pytest.FixtureRequest) -> FittedMethod:
    made = make_method(request.param, "frozen")
    assert isinstance(made, FittedMethod)
    return made


def digits(
    labels: Sequence[int] = (4,) * 10, unlabeled: int = 300, without: Sequence[int] = ()
) -> tuple[Labeled, Unlabeled, Tensor, Tensor]:
    """Return digits with ``labels[k]`` labels of class k, a pool without some classes, and other digits to test on."""
    pixels, target = digits_of(len(labels))
    x, y = torch.from_numpy(pixels.reshape(len(pixels), DIM)).float(), torch.from_numpy(target)
    known = torch.cat([torch.nonzero(y == k)[:n, 0] for k, n in enumerate(labels)])
    left = torch.ones(len(y), dtype=torch.bool)
    left[known] = False
    test = torch.nonzero(left)[-200:, 0]
    left[test] = False
    pool = torch.nonzero(left & ~torch.isin(y, torch.tensor(without, dtype=torch.int64)))[:unlabeled, 0]
    return Labeled(y[known], clean=x[known]), Unlabeled(torch.arange(len(pool)), clean=x[pool]), x[test], y[test]


def empty_net(method: Method, classes: int, unlabeled: int = 0) -> Network:
    psi = Encoder(UnitFeatures(DIM), mean=(0.0,), std=(1.0,), bottleneck=8)
    net = Network(Classifier(psi, nn.Linear(psi.dim, classes)), Task(classes, unlabeled, 1, (DIM,)))
    method.setup(net)
    return net


def fitted(method: Method, labeled: Labeled, unlabeled: Unlabeled, classes: int = 10) -> tuple[Network, nn.Module]:
    net = empty_net(method, classes, len(unlabeled))
    pseudo = method.fit(net, labeled, unlabeled)
    assert isinstance(pseudo, PseudoLabels if method.views.unlabeled else type(None))
    return net, method.predictor(net)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(dim=1) == y).float().mean())


def test_it_learns(method: FittedMethod) -> None:
    labeled, unlabeled, x, y = digits()
    _, model = fitted(method, labeled, unlabeled)
    assert accuracy(model, x, y) > 0.75
    assert accuracy(model, labeled["clean"], labeled.y) > 0.9


@pytest.mark.parametrize(
    "problem",
    [
        {"labels": (4, 4)},
        {"labels": (4, 1, 4)},
        {"labels": (1, 1, 1)},
        {"labels": (1, 1)},
        {"labels": (4, 4, 4), "without": (1,)},
        {"labels": (4, 4, 0), "without": (2,)},
        {"labels": (3, 0), "without": (1,)},
        {"labels": (4, 4, 4), "unlabeled": 5},
        {"labels": (4, 4, 4), "unlabeled": 0},
        {"labels": (1, 1), "unlabeled": 0},
        {"labels": (1, 0), "unlabeled": 0},
    ],
    ids=[
        "two classes", "one label in a class", "one label per class", "two labels", "a class without pool images",
        "a class without images", "one class with labels", "few unlabeled", "no unlabeled", "two images", "one image",
    ],
)  # fmt: skip
def test_small_problems(method: FittedMethod, problem: dict[str, Any]) -> None:
    labeled, unlabeled, x, _ = digits(**problem)
    K = len(problem["labels"])
    _, model = fitted(method, labeled, unlabeled, K)
    p = torch.softmax(model(x), dim=1)
    assert p.shape == (len(x), K)
    assert p.isfinite().all()
    absent = [k for k, n in enumerate(problem["labels"]) if n == 0]
    if len(labeled) > 1:
        assert not torch.isin(p.argmax(dim=1), torch.tensor(absent)).any()


def test_equal_features_are_no_obstacle(method: FittedMethod) -> None:
    same = torch.ones(8, DIM)
    _, model = fitted(
        method, Labeled(torch.arange(8) % 2, clean=same), Unlabeled(torch.arange(8), clean=same), classes=2
    )
    assert model(same).isfinite().all()


def test_the_order_of_the_pool_does_not_matter(method: FittedMethod) -> None:
    labeled, unlabeled, x, _ = digits()
    order = torch.randperm(len(unlabeled))
    net, model = fitted(method, labeled, unlabeled)
    other_net, other = fitted(method, labeled, Unlabeled(order, clean=unlabeled["clean"][order]))
    torch.testing.assert_close(model(x).softmax(dim=1), other(x).softmax(dim=1), rtol=1e-3, atol=1e-4)
    one = method.fit(net, labeled, unlabeled)
    two = method.fit(other_net, labeled, Unlabeled(order, clean=unlabeled["clean"][order]))
    if one is not None and two is not None:
        assert torch.equal(one.y[order], two.y)
        assert torch.equal(one.keep[order], two.keep)


def test_new_images_are_answered_one_by_one(method: FittedMethod) -> None:
    labeled, unlabeled, x, _ = digits()
    _, model = fitted(method, labeled, unlabeled)
    order = torch.randperm(len(x))
    torch.testing.assert_close(model(x)[order], model(x[order]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(x)[:3], model(x[:3]), rtol=1e-4, atol=1e-4)


def test_bfloat16_changes_nothing(method: FittedMethod) -> None:
    labeled, unlabeled, x, _ = digits(unlabeled=50)
    _, model = fitted(method, labeled, unlabeled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = model(x)
    assert torch.equal(z, model(x))


def test_the_whole_result_is_in_the_state(method: FittedMethod) -> None:
    labeled, unlabeled, x, _ = digits()
    net, model = fitted(method, labeled, unlabeled)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = empty_net(method, 10)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(method.predictor(other)(x), model(x))


def test_fitting_changes_neither_batch_nor_random_state(method: FittedMethod) -> None:
    labeled, unlabeled, *_ = digits(unlabeled=50)
    before = labeled["clean"].clone(), unlabeled["clean"].clone()
    net = empty_net(method, 10)
    state = torch.get_rng_state()
    method.fit(net, labeled, unlabeled)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(labeled["clean"], before[0])
    assert torch.equal(unlabeled["clean"], before[1])


def test_its_string_gives_it_back(method: FittedMethod) -> None:
    assert make_method(spell_method(method), "frozen") == method
    assert spell_method(method, "frozen") == method.name


def test_every_field_has_a_help_text(method: FittedMethod) -> None:
    texts = field_help(type(method))
    assert set(texts) == set(field_types(type(method))) == {field.name for field in fields(method)}
    assert all(texts.values()), texts


def arrays() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Features of digits with 4 labels per class, the others hidden, and a test set."""
    labeled, unlabeled, x, y = digits()
    hidden = np.full(len(unlabeled), -1)
    train = np.concatenate([labeled["clean"].numpy(), unlabeled["clean"].numpy()])
    return (train, np.concatenate([labeled.y.numpy(), hidden])), (x.numpy(), y.numpy())


def train(method: Any, out: Path, **more: Any) -> selftrain.Run:
    data, test = arrays()
    return selftrain.train(
        data, test=test, method=method, backbone="features", out=out, quiet=True,
        settings={"train.accelerator": "cpu"}, **more,
    )  # fmt: skip


@pytest.mark.long
def test_a_run_folder_predicts_what_was_fitted(method: FittedMethod, tmp_path: Path) -> None:
    run = train(method.name, tmp_path / "run")
    (_, (x, y)) = arrays()
    assert run.results["steps"] == 1
    assert run.results["method"] == method.name
    (row,) = run.metrics
    assert row["step"] == 1
    assert row.get("loss") is None
    assert (row["pseudo_label_quantity"] is not None) == bool(method.views.unlabeled)
    p = run.predict(x).probabilities
    assert run.results["accuracy"] == pytest.approx((p.argmax(axis=1) == y).mean())
    _, card = load_model(run.folder / "model")
    assert card.predictor == spell_method(method)
    assert run.report().stat().st_size > 10_000
    again = selftrain.train(
        arrays()[0], test=(x, y), config=run.folder / "config.yaml", out=tmp_path / "again", quiet=True
    )
    np.testing.assert_array_equal(again.predict(x).probabilities, p)
    assert again.results["settings_hash"] == run.results["settings_hash"]


@pytest.mark.long
def test_a_killed_run_resumes(method: FittedMethod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after its checkpoint it does not fit again; killed before, it does. The results are the same."""
    run = train(method.name, tmp_path / "run")
    (_, (x, _)) = arrays()
    p, rows = run.predict(x).probabilities, run.metrics
    fit, fits = Loop._fit, []

    def counted(loop: Loop, *batch: Any) -> None:
        fits.append(loop.step)
        fit(loop, *batch)

    monkeypatch.setattr(Loop, "_fit", counted)
    for killed in ("after", "before"):
        (run.folder / "results.json").unlink()
        if killed == "before":
            (run.folder / "checkpoints" / "last.json").unlink()
        run = train(None, run.folder, resume=True)
        np.testing.assert_array_equal(run.predict(x).probabilities, p)
        assert [{**row, "seconds": 0} for row in run.metrics] == [{**row, "seconds": 0} for row in rows]
    assert fits == [0]


@pytest.mark.long
def test_without_unlabeled_images(method: FittedMethod, tmp_path: Path) -> None:
    labeled, _, x, y = digits()
    data = labeled["clean"].numpy(), labeled.y.numpy()
    more: dict[str, Any] = {
        "test": (x.numpy(), y.numpy()), "method": method.name, "backbone": "features", "quiet": True,
        "settings": {"data.include_labeled": False},
    }  # fmt: skip
    if method.views.unlabeled:
        with pytest.raises(UserError, match=f"there are no unlabeled images, and {method.name} needs some"):
            selftrain.train(data, out=tmp_path / "run", **more)
    else:
        assert selftrain.train(data, out=tmp_path / "run", **more).results["accuracy"] > 0.7


def test_a_fitted_method_runs_on_features_unless_another_regime_is_asked_for(tmp_path: Path) -> None:
    data, _ = arrays()
    for regime in ("scratch", "finetune"):
        with pytest.raises(UserError, match="logistic does not run in the"):
            selftrain.train(data, method="logistic", regime=regime, backbone="features", out=tmp_path / regime)
    for given in ({"data.path": "digits"}, {"data.path": "arrays", "network.backbone": "features"}):
        settings, _ = resolve({**given, "method": "logistic"})
        assert settings.regime == "frozen"
        assert resolve(given, Logistic())[0].regime == "frozen"
