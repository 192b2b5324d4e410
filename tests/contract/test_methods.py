"""One suite for every method and every DST combination: the requirements that do not depend on the equations.

Every method runs in the library's own loop, with its streams and views, on handwritten digits.
"""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import selftrain
from selftrain.batch import Unlabeled
from selftrain.config.options import field_help, field_types
from selftrain.config.regimes import REGIMES
from selftrain.data.views.stream import Stream
from selftrain.engine.loop import Loop
from selftrain.engine.observers import LossMeter
from selftrain.errors import UserError
from selftrain.methods import METHODS, Method, Wrapper, make_method, spell_method
from selftrain.nn.contexts import evaluating
from selftrain.runs.model import load_model
from tests.contract.spellings import FITTED, FLOWS, IN_TURNS, SPELLINGS
from tests.tiny import digits_loop, go_on, gradients


@pytest.fixture(params=SPELLINGS)
def method(request: pytest.FixtureRequest) -> Method:
    return make_method(request.param, "scratch")


in_turns_too = pytest.mark.parametrize("method", [*SPELLINGS, *IN_TURNS], indirect=True)


def test_every_method_is_in_the_suite() -> None:
    methods = [make_method(text) for text in SPELLINGS]
    assert {*(method.name for method in methods), *FITTED} == set(METHODS)
    wrapped = {method.base.name for method in methods if isinstance(method, Wrapper)}
    assert wrapped == {name for name, cls in METHODS.items() if cls.can_be_base()}


def labeled_loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad(), evaluating(model):
        return torch.nn.functional.cross_entropy(model(x), y).item()


# Methods that would learn too little from pixels in 40 steps.
FASTER: dict[str, dict[str, Any]] = {
    "ali": {"batch": 8, "optim.lr": 0.1},
    "mean_teacher": {"optim.lr": 0.06},
    "mean_teacher(teacher_mode=eval)": {"optim.lr": 0.06},
    "remixmatch": {"steps": 80},
    "crest(fixmatch(tau=0.2), generations=2)": {"steps": 40},
}


@pytest.mark.long
@pytest.mark.parametrize("regime", ["scratch", "frozen"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_it_trains(spelling: str, regime: str) -> None:
    """With the defaults of the regime for every option that is not spelled."""
    method = make_method(spelling)
    if regime not in method.regimes:
        pytest.skip("not in this regime")
    method = make_method(spelling, regime)
    options = {"steps": 40 // method.rounds, **(FASTER.get(spelling, {}) if regime == "scratch" else {})}
    loop, stream, x, y = digits_loop(method, regime=regime, **options)
    before = labeled_loss(loop.predictor, x, y)
    go_on(loop, stream, loop.steps)
    assert labeled_loss(loop.predictor, x, y) < 0.75 * before


@pytest.mark.long
@in_turns_too
def test_resuming_changes_nothing(method: Method) -> None:
    """Stopped in the middle (of the second round, where there are several), saved, loaded into a fresh run."""
    loop, stream, *_ = digits_loop(method, steps=6)
    go_on(loop, stream, 4 if method.rounds == 1 else 7)
    file = io.BytesIO()
    torch.save(loop.state_dict(), file)
    go_on(loop, stream, 2)

    other, stream, *_ = digits_loop(method, steps=6, seed=0)
    for p in other.net.parameters():
        p.data.add_(1.0)  # so that nothing can come from the initial weights
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    go_on(other, stream, 2)
    assert other.step == loop.step
    state = other.net.state_dict()
    for name, value in loop.net.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize(
    "problem",
    [
        {"labels": (4, 4)},
        {"labels": (4, 1, 4)},
        {"labels": (1, 1, 1), "batch": 16},
        {"labels": (4, 4, 4), "batch": 2},
        {"labels": (4, 4, 4), "unlabeled": 5},
    ],
    ids=["two classes", "one label in a class", "fewer labels than a batch", "smallest batch", "few unlabeled"],
)
def test_small_problems(method: Method, problem: dict[str, Any]) -> None:
    loop, stream, x, y = digits_loop(method, steps=4, **problem)
    go_on(loop, stream, loop.steps)
    assert np.isfinite(labeled_loss(loop.predictor, x, y))


BFLOAT16: dict[str, Any] = {"train.precision": "bf16-mixed"}


@pytest.mark.long
@in_turns_too
def test_bfloat16(method: Method) -> None:
    loop, stream, x, y = digits_loop(method, steps=3, **BFLOAT16)
    go_on(loop, stream, loop.steps)
    assert np.isfinite(labeled_loss(loop.predictor, x, y))
    assert all(value.dtype != torch.bfloat16 for value in loop.net.state_dict().values())
    with loop.fabric.autocast():
        losses = method.objective(loop.net, *stream[0], method.turns[-1])
    assert losses.total.dtype == torch.float32


@cache
def _under_way(text: str) -> tuple[Loop, Stream, dict[str, Any]]:
    method = make_method(text)
    loop, stream, *_ = digits_loop(method, steps=10)
    go_on(loop, stream, 9 if method.rounds == 1 else 13)
    return loop, stream, copy.deepcopy(loop.state_dict())


def well_under_way(method: Method) -> tuple[Loop, Stream]:
    """A run in which ramps have risen, thresholds are settled, divisions made and teachers have labeled."""
    loop, stream, state = _under_way(spell_method(method))
    loop.load_state_dict(copy.deepcopy(state))  # whatever an earlier test has changed
    loop.objective.train()
    loop.net.zero_grad(set_to_none=True)
    return loop, stream


@in_turns_too
def test_each_term_reaches_what_it_should_and_nothing_else(request: pytest.FixtureRequest, method: Method) -> None:
    loop, stream = well_under_way(method)
    batches = stream[loop.step]
    expected = (FLOWS | IN_TURNS).get(request.node.callspec.params["method"])
    seen: dict[str, set[str]] = {}
    for turn in method.turns:
        torch.manual_seed(0)
        losses = method.objective(loop.net, *batches, turn)
        for name, term in losses.terms.items():
            label = f"{name} ({turn})" if turn != "all" else name
            seen[label] = {part for part, size in gradients(loop.net, term).items() if size > 0}
    if expected is None:
        trained = set(gradients(loop.net, torch.zeros(())))
        assert set().union(*seen.values()) == trained, "every part that is trained is reached by a term"
    else:
        assert seen == expected


def test_it_reads_only_the_views_it_asks_for(method: Method) -> None:
    loop, stream, *_ = digits_loop(method)
    labeled, unlabeled = stream[0]
    assert set(labeled.views) == set(method.views.labeled)
    assert set(unlabeled.views) == set(method.views.unlabeled)
    for turn in method.turns:
        method.objective(loop.net, labeled, unlabeled, turn)


def with_w_strong(method: Method, weight: float) -> Method:
    base = getattr(method, "base", None)
    return replace(method, **({"w_strong": weight} if base is None else {"base": with_w_strong(base, weight)}))


def innermost(method: Method) -> Method:
    base = getattr(method, "base", None)
    return method if base is None else innermost(base)


def test_strong_views_of_labeled_samples_have_their_weight(method: Method) -> None:
    if not hasattr(innermost(method), "w_strong"):
        assert method.name in ("remixmatch", "self_tuning")  # they always learn from such views
        return
    loop, stream = well_under_way(with_w_strong(method, 1.0))
    batches = stream[loop.step]
    loop.net.eval()  # so that views do not affect each other

    def labeled_term(weight: float) -> torch.Tensor:
        torch.manual_seed(0)
        one = with_w_strong(method, weight)
        assert ("strong" in one.views.labeled) == (weight > 0 or "strong" in with_w_strong(method, 0.0).views.labeled)
        turns = [one.objective(loop.net, *batches, turn).terms for turn in one.turns]
        return next(terms["labeled"] for terms in turns if "labeled" in terms)

    none, half, whole = map(labeled_term, (0.0, 0.5, 1.0))
    assert whole > half > none
    torch.testing.assert_close(whole - half, half - none, rtol=1e-3, atol=1e-5)


def test_a_step_counts_once(method: Method) -> None:
    loop, stream, *_ = digits_loop(method)
    go_on(loop, stream, 2)
    assert [int(one.step) for one in loop.net.members] == [2] * len(loop.net.members)


def test_every_term_of_every_turn_is_seen(method: Method) -> None:
    loop, stream, *_ = digits_loop(method)
    meter = LossMeter(loop.fabric.device)
    loop.observers = [meter]
    go_on(loop, stream, 1)
    terms = {name for turn in method.turns for name in method.objective(loop.net, *stream[0], turn).terms}
    assert {f"loss_{name}" for name in terms} == set(meter.read()) - {"loss"}


def test_views_without_gradient_get_none(method: Method) -> None:
    loop, stream = well_under_way(method)
    labeled, unlabeled = stream[loop.step]
    leaves = {name: unlabeled[name].float().div(127.5).sub(1).requires_grad_() for name in method.views.unlabeled}
    if not leaves or not (method.can_be_base() or isinstance(method, Wrapper)):
        pytest.skip("mixes or perturbs its inputs itself")
    losses = method.objective(loop.net, labeled, Unlabeled(unlabeled.index, **leaves), method.turns[-1])
    losses.backward()
    mixed = "dividemix" in spell_method(method)
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name in method.views.gradient or mixed), name


def test_an_empty_mask_is_harmless(method: Method) -> None:
    text = spell_method(method)
    if (
        "tau=0.2" not in text
        or "soft=true" in text
        or any(name in text for name in ("flexmatch", "comatch", "daso", "openmatch"))
    ):
        pytest.skip("has no threshold, one that starts at 0, or a loss on all samples")
    strict = make_method(text.replace("tau=0.2", "tau=1.0"))
    loop, stream, *_ = digits_loop(strict)
    losses = strict.objective(loop.net, *stream[0], strict.turns[-1])
    assert all(term.item() == 0 for name, term in losses.terms.items() if name.startswith("unlabeled"))
    assert losses.total.isfinite()


def test_an_objective_changes_neither_batch_nor_method(method: Method) -> None:
    loop, stream, *_ = digits_loop(method)
    labeled, unlabeled = stream[0]
    before = copy.deepcopy((labeled.views, unlabeled.views, labeled.y, spell_method(method)))
    for turn in method.turns:
        method.objective(loop.net, labeled, unlabeled, turn)
    for views, saved in zip((labeled.views, unlabeled.views), before[:2], strict=True):
        assert all(torch.equal(views[name], saved[name]) for name in saved)
    assert torch.equal(labeled.y, before[2])
    assert spell_method(method) == before[3]


@pytest.mark.long
def test_a_run_folder_predicts_what_was_trained(method: Method, tmp_path: Path) -> None:
    digits = load_digits(n_class=3)
    x, y = digits.images[:60].astype(np.uint8) * 15, digits.target[:60].copy()
    test = (x[40:], y[40:])
    hidden = np.where(np.arange(60) < 12, y, -1)
    run = selftrain.train(
        (x, hidden), test=test, method=method, out=tmp_path / "run", quiet=True, regime="scratch",
        settings={"train.steps": 3, "train.batch": 8, "train.unlabeled_batch": 8, "optim.ema": 0.9,
                  "train.accelerator": "cpu"},
    )  # fmt: skip
    assert run.results["steps"] == 3 * method.rounds
    p = run.predict(x[40:]).probabilities
    assert p.shape == (20, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    assert run.results["accuracy"] == pytest.approx((p.argmax(axis=1) == test[1]).mean())
    model, card = load_model(run.folder / "model")
    assert card.classes == ("0", "1", "2")
    assert not any("pseudo" in name or "worst" in name for name in model.state_dict())


def test_its_string_gives_it_back(method: Method) -> None:
    for regime in method.regimes:
        assert make_method(spell_method(method), regime) == method
    assert make_method(spell_method(method, "scratch"), "scratch") == method


def test_every_field_has_a_help_text(method: Method) -> None:
    texts = field_help(type(method))
    assert set(texts) == set(field_types(type(method)))
    assert all(texts.values()), texts
    assert method.reference


def test_every_method_knows_its_regimes() -> None:
    for name, cls in METHODS.items():
        assert set(cls.regimes) <= set(REGIMES)
        for regime in set(REGIMES) - set(cls.regimes):
            other = f"It runs with `regime=.{cls.regimes[0]}.`"
            why = f"{name} does not run in the {regime} regime: {cls.remarks[regime]}. {other}"
            with pytest.raises(UserError, match=why):
                make_method(name, regime)
            with pytest.raises(UserError, match=why):
                selftrain.train((np.zeros((8, 4)), np.arange(8) % 2), method=cls(), regime=regime)


@pytest.mark.parametrize(
    "name", [name for name, cls in METHODS.items() if not cls.can_be_base() and not issubclass(cls, Wrapper)]
)
def test_a_method_that_dst_cannot_wrap_says_why(name: str) -> None:
    for regime in REGIMES:
        with pytest.raises(UserError, match=f"dst cannot wrap '{name}': {METHODS[name].why_no_base}"):
            make_method(f"dst({name})", regime)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dst(crest(fixmatch))", "dst cannot wrap 'crest': the labels of earlier rounds become labeled images"),
        ("abc(dst(fixmatch))", "abc cannot wrap 'dst': it has a pseudo head already"),
        ("abc(supervised)", "abc cannot wrap 'supervised': it makes no pseudo labels"),
        ("abc(mean_teacher)", "abc cannot wrap 'mean_teacher': it predicts with a network of its own"),
        ("daso(dividemix)", "daso cannot wrap 'dividemix': it predicts with a network of its own"),
        ("crest(noisy_student)", "crest cannot wrap 'noisy_student': it trains in rounds of its own"),
        ("abc(daso(abc(fixmatch)))", "abc is given twice"),
    ],
)
def test_a_combination_that_makes_no_sense_says_why(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make_method(text)


@pytest.mark.parametrize(
    "text",
    ["dst(abc(daso(fixmatch(tau=0.2), warmup=0)))", "daso(abc(softmatch), warmup=0)", "crest(openmatch(flexmatch))"],
)
def test_add_ons_compose(text: str) -> None:
    method = make_method(text)
    loop, stream, x, y = digits_loop(method, steps=4)
    go_on(loop, stream, 4)
    assert np.isfinite(labeled_loss(loop.predictor, x, y))
    assert make_method(spell_method(method)) == method


def test_dst_cannot_wrap_itself() -> None:
    with pytest.raises(UserError, match="dst cannot wrap 'dst': it has a pseudo head already"):
        make_method("dst(dst(fixmatch))")
