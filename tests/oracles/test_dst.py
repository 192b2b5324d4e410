"""DST against a reference retyped from the paper's equations, and the facts about who learns from what."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from selftrain.batch import Labeled, Unlabeled
from selftrain.errors import UserError
from selftrain.methods import DST, FixMatch, PseudoLabel, Supervised, make_method
from selftrain.methods.functional import PseudoLabels, mistake_loss, reversal_coefficient, reverse_gradient
from selftrain.methods.spelling import write
from selftrain.nn.network import Network
from tests.tiny import gradients, tiny_batch, tiny_net

PRESETS = ("paper", "released")


TAU = 0.36  # some of the tiny batch's samples reach it, some do not


def dst(**options: object) -> DST:
    return DST(FixMatch(tau=TAU, lam=0.7), **{"dropout": 0.0, "width": 7, **options})  # type: ignore[arg-type]


def warm(net: Network, step: int = 50) -> Network:
    net.step.fill_(step)  # the released schedule's coefficient is 0 at step 0
    return net


def p_of(net: Network, head: torch.nn.Module, x: Tensor) -> Tensor:
    """Class probabilities of one sample under one head, in double precision."""
    with torch.no_grad():
        return torch.softmax(head(net.psi(x[None])).double()[0], 0)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("view", ["weak", "strong"])
@pytest.mark.parametrize("thresholded", [True, False])
def test_losses_equal_the_retyped_reference(preset: str, view: str, thresholded: bool) -> None:
    method = dst(preset=preset, worst_view=view, worst_threshold=thresholded, optimiser="grl", eta=0.4)
    net = warm(tiny_net(method)).eval()
    labeled, unlabeled = tiny_batch()
    terms = method.objective(net, labeled, unlabeled).terms
    B_l, B_u = len(labeled), len(unlabeled)

    L_L = L_L_worst = 0.0
    for x, y in zip(labeled.weak, labeled.y, strict=True):
        L_L += -math.log(p_of(net, net.h, x)[y]) / B_l
        target = y if preset == "paper" else p_of(net, net.h, x).argmax()
        L_L_worst += -math.log(p_of(net, net.parts["h_worst"], x)[target]) / B_l
    L_U = error = 0.0
    count = 0
    for j in range(B_u):
        p_w = p_of(net, net.h, unlabeled.weak[j])
        f_hat, kept = p_w.argmax(), p_w.max() >= TAU
        count += int(kept)
        if kept:
            L_U += -math.log(p_of(net, net.parts["h_pseudo"], unlabeled.strong[j])[f_hat]) / B_u
        if kept or not thresholded:
            p_worst = p_of(net, net.parts["h_worst"], unlabeled[view][j])[f_hat]
            error += (-math.log(p_worst) if preset == "paper" else math.log(min(1.0, float(1 - p_worst + 1e-6)))) / B_u
    assert 0 < count < B_u
    eta_prime = 1 if preset == "paper" else 2
    assert terms["labeled"].item() == pytest.approx(L_L, abs=1e-6)
    assert terms["unlabeled"].item() == pytest.approx(0.7 * L_U, abs=1e-6)
    assert terms["worst"].item() == pytest.approx(0.4 * (eta_prime * L_L_worst - error), abs=2e-6)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("optimiser", ["grl", "alternating"])
def test_who_learns_from_what(preset: str, optimiser: str) -> None:
    method = dst(preset=preset, optimiser=optimiser)
    net = warm(tiny_net(method)).eval()
    labeled, unlabeled = tiny_batch()

    def flow(term: str, turn: str) -> dict[str, bool]:
        loss = method.objective(net, labeled, unlabeled, turn).terms[term]
        return {part: size > 0 for part, size in gradients(net, loss).items()}

    turn = "all" if optimiser == "grl" else "others"
    assert flow("labeled", turn) == {"psi": True, "h": True, "h_pseudo": False, "h_worst": False}
    assert flow("unlabeled", turn) == {"psi": True, "h": False, "h_pseudo": True, "h_worst": False}
    if optimiser == "grl":
        assert flow("worst", "all") == {"psi": True, "h": False, "h_pseudo": False, "h_worst": True}
    else:
        assert flow("worst", "worst") == {"psi": False, "h": False, "h_pseudo": False, "h_worst": True}
        assert flow("worst", "others") == {"psi": True, "h": False, "h_pseudo": False, "h_worst": False}
        assert set(method.objective(net, labeled, unlabeled, "worst").terms) == {"worst"}


@pytest.mark.parametrize("preset", PRESETS)
def test_psi_receives_the_reversed_and_scaled_gradient_of_the_worst_case(preset: str) -> None:
    method = dst(preset=preset, optimiser="grl", reversal=0.5, warmup=300.0, eta=0.4)
    net = warm(tiny_net(method), 300).eval()
    c = 0.5 * (2 / (1 + math.exp(-1)) - 1)
    labeled, unlabeled = tiny_batch()
    psi = list(net.psi.parameters())
    reversed_ = torch.autograd.grad(method.objective(net, labeled, unlabeled).terms["worst"], psi)
    l, u = net.encode(method.views, labeled, unlabeled)
    plain = torch.autograd.grad(0.4 * method.E(net, l, u, method.base.label(net, net.h, u), {}), psi)
    for g, h in zip(reversed_, plain, strict=True):
        torch.testing.assert_close(g, -c * h)


@pytest.mark.parametrize("preset", PRESETS)
def test_alternating_and_reversal_agree_on_psi(preset: str) -> None:
    grl = dst(preset=preset, optimiser="grl", reversal=0.7, warmup=0.0)
    net = tiny_net(grl).eval()
    labeled, unlabeled = tiny_batch()
    psi = list(net.psi.parameters())
    one = torch.autograd.grad(grl.objective(net, labeled, unlabeled).total, psi)
    alternating = replace(grl, optimiser="alternating")
    two = torch.autograd.grad(alternating.objective(net, labeled, unlabeled, "others").total, psi)
    for g, h in zip(one, two, strict=True):
        torch.testing.assert_close(g, h)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_worst_heads_turn_is_the_same_loss_with_its_weight(preset: str) -> None:
    method = dst(preset=preset, optimiser="alternating", eta=0.4)
    net = warm(tiny_net(method)).eval()
    labeled, unlabeled = tiny_batch()
    alone = method.objective(net, labeled, unlabeled, "worst").terms["worst"]
    together = replace(method, optimiser="grl").objective(net, labeled, unlabeled).terms["worst"]
    torch.testing.assert_close(alone, together)


def test_the_worst_heads_turn_leaves_running_statistics_alone() -> None:
    method = dst(preset="paper")
    net = tiny_net(method).train()
    labeled, unlabeled = tiny_batch()
    before = copy.deepcopy(dict(net.psi.named_buffers()))
    method.objective(net, labeled, unlabeled, "worst")
    for name, buffer in net.psi.named_buffers():
        torch.testing.assert_close(buffer, before[name])
    method.objective(net, labeled, unlabeled, "others")
    assert any(not torch.equal(buffer, before[name]) for name, buffer in net.psi.named_buffers())


def test_with_neither_head_it_is_the_base_method_exactly() -> None:
    base = FixMatch(tau=0.3, lam=0.7)
    labeled, unlabeled = tiny_batch()
    net = tiny_net(base)
    plain = DST(base, pseudo_head="none", worst=False)
    ours = tiny_net(plain)
    assert not ours.parts
    assert plain.views == base.views
    a, b = base.objective(net, labeled, unlabeled).total, plain.objective(ours, labeled, unlabeled).total
    assert torch.equal(a, b)
    for g, h in zip(
        torch.autograd.grad(a, list(net.parameters())), torch.autograd.grad(b, list(ours.parameters())), strict=True
    ):
        assert torch.equal(g, h)


def test_gradient_reversal_is_the_identity_going_forward() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    y = reverse_gradient(x, torch.tensor(0.25))
    assert torch.equal(x, y)
    torch.autograd.backward(y.sum())
    torch.testing.assert_close(x.grad, torch.full_like(x, -0.25))


@pytest.mark.parametrize(
    ("step", "hi", "N", "expected"),
    [(1000, 0.1, 1000, 0.046212), (300, 0.5, 300, 0.231059), (0, 0.5, 300, 0.0), (7, 1.0, 0, 1.0)],
)
def test_reversal_coefficient(step: int, hi: float, N: float, expected: float) -> None:
    assert float(reversal_coefficient(torch.tensor(step), hi, N)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("logit", "expected"), [(0.0, 0.693145), (60.0, 13.8155), (-60.0, 0.0)])
def test_mistake_loss(logit: float, expected: float) -> None:
    f_hat = PseudoLabels(torch.tensor([0]), torch.tensor([True]))
    loss = mistake_loss(torch.tensor([[logit, 0.0]]), f_hat)
    assert loss.item() == pytest.approx(expected, abs=1e-4 if logit > 0 else 1e-6)
    two = PseudoLabels(torch.tensor([0, 0]), torch.tensor([True, False]))  # one of two is kept
    half = mistake_loss(torch.tensor([[logit, 0.0], [3.0, 0.0]]), two)
    assert half.item() == pytest.approx(expected / 2, abs=1e-4 if logit > 0 else 1e-6)


def test_a_warm_up_below_one_is_a_share_of_training() -> None:
    method = dst(warmup=0.1)
    net = warm(tiny_net(method, steps=1000), 100)
    assert float(method.coefficient(net)) == pytest.approx(0.046212, abs=1e-6)


def test_the_cap_bounds_what_a_sample_can_give_the_worst_head() -> None:
    net = tiny_net(dst(preset="paper")).eval()
    with torch.no_grad():
        list(net.parts["h_worst"].parameters())[-1].copy_(torch.tensor([99.0, 0.0, 0.0, 0.0]))
    labeled, unlabeled = tiny_batch()
    values = []
    for cap in (None, 5.0):
        method = dst(preset="paper", ce_cap=cap, worst_threshold=False, eta_prime=0.0)
        l, u = net.encode(method.views, labeled, unlabeled)
        f_hat = PseudoLabels(
            torch.ones(len(unlabeled), dtype=torch.int64), torch.ones(len(unlabeled), dtype=torch.bool)
        )
        values.append(method.E(net, l, u, f_hat, {}).item())
    assert values[0] < -50
    assert values[1] == pytest.approx(-5.0)


def test_a_base_with_state_is_told_once_a_step() -> None:
    told: list[str] = []

    class Watched(FixMatch):
        def setup(self, net: Network) -> None:
            told.append("setup")

        def record(self, net: Network, l: Labeled, u: Unlabeled, f_hat: PseudoLabels) -> None:
            told.append("record")

        def after_step(self, net: Network, t: int) -> None:
            told.append(f"after step {t}")

    for optimiser in ("grl", "alternating"):
        told.clear()
        method = DST(Watched(tau=TAU), optimiser=optimiser)
        net = tiny_net(method)
        for turn in method.turns:
            method.objective(net, *tiny_batch(), turn)
        method.after_step(net, 7)
        assert told == ["setup", "record", "after step 7"]


def test_regimes_have_their_values() -> None:
    scratch, finetune, frozen = (make_method("dst(fixmatch)", regime) for regime in ("scratch", "finetune", "frozen"))
    assert isinstance(scratch, DST)
    assert isinstance(finetune, DST)
    assert isinstance(frozen, DST)
    assert (scratch.eta, scratch.reversal, scratch.warmup, scratch.width) == (0.3, 0.1, 0.1, None)
    assert (finetune.eta, finetune.reversal, finetune.warmup, finetune.width) == (1.0, 0.1, 1000.0, 2048)
    assert (frozen.reversal, frozen.warmup, frozen.width, frozen.worst_layers) == (0.5, 0.3, 256, 3)
    assert (scratch.base.tau, finetune.base.tau) == (0.95, 0.7)  # type: ignore[union-attr]
    for regime in ("scratch", "finetune", "frozen"):  # the paper's equations are the same everywhere
        paper = make_method("dst(fixmatch, preset=paper)", regime)
        assert isinstance(paper, DST)
        assert (paper.eta, paper.eta_prime, paper.reversal, paper.warmup) == (1.0, 1.0, 1.0, 0.0)
        assert (paper.optimiser, paper.worst_layers, paper.worst_view) == ("alternating", 2, "strong")


def test_only_psi_and_h_predict() -> None:
    method = dst()
    net = tiny_net(method).eval()
    x = tiny_batch()[1].weak
    before = method.predictor(net)(x)
    del net.parts["h_pseudo"], net.parts["h_worst"]
    assert torch.equal(method.predictor(net)(x), before)


def test_each_choice_has_its_module() -> None:
    assert isinstance(tiny_net(dst(pseudo_head="linear")).parts["h_pseudo"], torch.nn.Linear)
    assert next(len(p) for p in tiny_net(dst()).parts["h_pseudo"].parameters()) == 7
    assert next(len(p) for p in tiny_net(DST(FixMatch(), width=None)).parts["h_worst"].parameters()) == 12
    three = tiny_net(dst(worst_layers=3)).parts["h_worst"]
    assert sum(isinstance(module, torch.nn.Linear) for module in three.children()) == 3
    assert "h_worst" not in tiny_net(dst(worst=False)).parts


def test_views_decide_the_cost() -> None:
    assert dst(worst_view="strong").views.gradient == ("strong",)
    assert dst(worst_view="weak").views.gradient == ("strong", "weak")
    assert dst(worst=False).views == FixMatch().views
    assert DST(PseudoLabel()).views.unlabeled == ("weak",)


def test_a_base_must_label_and_imitate() -> None:
    with pytest.raises(UserError, match="cannot wrap 'supervised'"):
        DST(Supervised())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spelling", "regime", "view"),
    [
        ("dst(fixmatch, worst_view=base)", "scratch", "strong"),
        ("dst(noisy_student, worst_view=base)", "frozen", "strong"),
        ("dst(mean_teacher, worst_view=base)", "scratch", "weak"),
        ("dst(dividemix, worst_view=base)", "scratch", "weak"),
        ("dst(fixmatch)", "scratch", "weak"),
        ("dst(fixmatch)", "frozen", "weak"),
        ("dst(fixmatch)", "finetune", "weak"),
        ("dst(fixmatch, preset=paper)", "scratch", "strong"),
        ("dst(fixmatch, worst_view=weak)", "scratch", "weak"),
        ("dst(mean_teacher, worst_view=base)", "frozen", "weak"),
    ],
)
def test_the_view_the_worst_case_sees(spelling: str, regime: str, view: str) -> None:
    method = make_method(spelling, regime)
    assert isinstance(method, DST)
    assert method.sees == view
    assert view in method.views.gradient
    assert make_method(write(method, regime), regime) == method
