"""One suite for every method and every DST combination: what a method must do, whatever its equations."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from selftrain.batch import Unlabeled
from selftrain.engine.optim import make_optimizer
from selftrain.methods import METHODS, Method, make_method, spell_method
from selftrain.network import Network
from selftrain.options import field_help, field_types
from selftrain.settings import REGIMES, make_settings
from tests.tiny import gradients, tiny_batch, tiny_net

SPELLINGS = [
    "supervised",
    "supervised(w_strong=0.1)",
    "pseudo_label(tau=0.3)",
    "fixmatch(tau=0.3)",
    "dst(fixmatch(tau=0.3))",
    "dst(fixmatch(tau=0.3), preset=paper)",
    "dst(fixmatch(tau=0.3), preset=paper, optimiser=grl, ce_cap=5)",
    "dst(fixmatch(tau=0.3), worst=false)",
    "dst(fixmatch(tau=0.3), pseudo_head=linear, worst_view=strong)",
    "dst(fixmatch(tau=0.3), worst_layers=3, worst_labels=true)",
    "dst(pseudo_label(tau=0.3))",
]


@pytest.fixture(params=SPELLINGS)
def method(request: pytest.FixtureRequest) -> Method:
    return make_method(request.param, "scratch")


def take_step(method: Method, net: Network, optimizer: torch.optim.Optimizer, t: int, **sizes: int) -> float:
    torch.manual_seed(t)
    labeled, unlabeled = tiny_batch(**sizes, seed=t % 3)
    total = 0.0
    for turn in method.turns:
        losses = method.objective(net, labeled, unlabeled, turn)
        losses.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += losses.total.item()
    net.step += 1
    method.after_step(net, t)
    return total


def optimizer_of(net: Network) -> torch.optim.Optimizer:
    return make_optimizer(net, make_settings("scratch", {}).optim)


def test_every_method_is_in_the_suite() -> None:
    spelled = " ".join(SPELLINGS)
    assert all(name in spelled for name in METHODS)


def test_the_labeled_loss_falls(method: Method) -> None:
    net = tiny_net(method)
    optimizer = optimizer_of(net)
    labeled, unlabeled = tiny_batch(seed=0)

    def labeled_loss() -> float:
        return method.objective(net, labeled, unlabeled, method.turns[-1]).terms["labeled"].item()

    before = labeled_loss()
    for t in range(60):
        take_step(method, net, optimizer, t)
    assert labeled_loss() < 0.7 * before


def test_resuming_changes_nothing(method: Method) -> None:
    net = tiny_net(method)
    optimizer = optimizer_of(net)
    for t in range(4):
        take_step(method, net, optimizer, t)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    for t in range(4, 8):
        take_step(method, net, optimizer, t)

    other = tiny_net(method, seed=99)
    other_optimizer = optimizer_of(other)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other.load_state_dict(state["net"])
    other_optimizer.load_state_dict(state["optimizer"])
    for t in range(4, 8):
        take_step(method, other, other_optimizer, t)
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("sizes", [{"classes": 2}, {"labeled": 3}, {"labeled": 2, "unlabeled": 2}])
def test_small_problems(method: Method, sizes: dict[str, int]) -> None:
    net = tiny_net(method, classes=sizes.get("classes", 4))
    optimizer = optimizer_of(net)
    for t in range(3):
        assert take_step(method, net, optimizer, t, **sizes) == pytest.approx(0, abs=1e3)


def test_bfloat16(method: Method) -> None:
    net = tiny_net(method)
    labeled, unlabeled = tiny_batch()
    with torch.autocast("cpu", torch.bfloat16):
        losses = method.objective(net, labeled, unlabeled, method.turns[-1])
    assert losses.total.dtype == torch.float32
    assert losses.total.isfinite()
    losses.backward()


def test_it_reads_only_the_views_it_asks_for(method: Method) -> None:
    net = tiny_net(method)
    labeled, unlabeled = tiny_batch()
    views = method.views
    labeled = labeled.with_views({name: labeled[name] for name in views.labeled})
    unlabeled = unlabeled.with_views({name: unlabeled[name] for name in views.unlabeled})
    for turn in method.turns:
        method.objective(net, labeled, unlabeled, turn)


def test_still_views_carry_no_gradient(method: Method) -> None:
    net = tiny_net(method)
    net.step.fill_(60)
    labeled, unlabeled = tiny_batch()
    leaves = {name: unlabeled[name].clone().requires_grad_() for name in method.views.unlabeled}
    losses = method.objective(net, labeled, Unlabeled(unlabeled.index, **leaves), method.turns[-1])
    losses.backward()
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name in method.views.gradient), name


def test_every_part_learns(method: Method) -> None:
    net = tiny_net(method)
    net.step.fill_(60)
    labeled, unlabeled = tiny_batch()
    reached: dict[str, float] = {}
    for turn in method.turns:
        for part, size in gradients(net, method.objective(net, labeled, unlabeled, turn).total).items():
            reached[part] = reached.get(part, 0.0) + size
    assert all(size > 0 for size in reached.values()), reached


def test_an_empty_mask_is_harmless(method: Method) -> None:
    if "tau" not in spell_method(method):
        pytest.skip("has no threshold")
    strict = make_method(spell_method(method).replace("tau=0.3", "tau=1.1"))
    net = tiny_net(strict)
    losses = strict.objective(net, *tiny_batch(), strict.turns[-1])
    assert losses.terms["unlabeled"].item() == 0
    assert losses.total.isfinite()


def test_an_objective_changes_neither_batch_nor_method(method: Method) -> None:
    net = tiny_net(method)
    labeled, unlabeled = tiny_batch()
    before = copy.deepcopy((labeled.views, unlabeled.views, labeled.y, spell_method(method)))
    for turn in method.turns:
        method.objective(net, labeled, unlabeled, turn)
    for views, saved in zip((labeled.views, unlabeled.views), before[:2], strict=True):
        assert all(torch.equal(views[name], saved[name]) for name in saved)
    assert torch.equal(labeled.y, before[2])
    assert spell_method(method) == before[3]


def test_its_string_gives_it_back(method: Method) -> None:
    for regime in REGIMES:
        assert make_method(spell_method(method), regime) == method
    assert make_method(spell_method(method, "scratch"), "scratch") == method


def test_every_field_has_a_help_text(method: Method) -> None:
    texts = field_help(type(method))
    assert set(texts) == set(field_types(type(method)))
    assert all(texts.values()), texts
    assert method.reference
