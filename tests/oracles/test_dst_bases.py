"""DST over each of its bases: who makes the labels, which head uses them, and what the worst case departs from."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import (
    DST,
    UDA,
    Dash,
    DebiasMatch,
    DivideMix,
    FlexMatch,
    Losses,
    MeanTeacher,
    Method,
    NoisyStudent,
    PseudoLabel,
    SelfTraining,
)
from selftrain.methods.dash import LabeledLoss
from selftrain.methods.debiasmatch import MeanPrediction
from selftrain.methods.dividemix import Division
from selftrain.methods.flexmatch import LearningStatus
from selftrain.methods.noisy_student import TeacherLogits
from selftrain.nn.average import Average
from selftrain.nn.layers import Classifier
from selftrain.nn.network import Network
from tests.oracles.references import (
    L_L,
    assert_same_gradient,
    cross,
    inputs_of,
    kl,
    never_mix,
    one_hot,
    own_shares,
    p_of,
    randomise,
    sharp,
    through,
    turn_partners,
)
from tests.tiny import K, digits_loop, go_on, gradients, tiny_batch, tiny_net

BASES: dict[str, SelfTraining] = {
    "mean_teacher": MeanTeacher(lam=5.0, ramp=0.0),
    "noisy_student": NoisyStudent(T=0.5, tau=0.4, lam=0.7),
    "uda": UDA(T=0.5, tau=0.36, lam=0.7),
    "dash": Dash(lam=0.7, rho_min=0.9, T=0.5),
    "dash, hard": Dash(lam=0.7, rho_min=1.02, hard=True),
    "debiasmatch": DebiasMatch(tau=0.36, lam=0.7, kappa=0.4, m=0.9),
    "flexmatch": FlexMatch(tau=0.38, lam=0.7, warmup=False),
    "pseudo_label": PseudoLabel(tau=0.36, lam=0.7, ramp=0.8),
}
every_base = pytest.mark.parametrize("name", [*BASES, "dividemix"])
one_network = pytest.mark.parametrize("name", list(BASES))
STEP = 50
DIVIDEMIX = DivideMix(lam_u=5.0, lam=0.7)


def base_named(name: str) -> SelfTraining:
    return DIVIDEMIX if name == "dividemix" else BASES[name]


def in_training(method: Method, name: str) -> Network:
    """A network in evaluation mode whose state is that of a run half way through."""
    net = tiny_net(method, steps=100).eval()
    g = torch.Generator().manual_seed(2)
    for k, one in enumerate(net.members):
        one.step.fill_(STEP)
        if name == "dividemix":
            division = one.part("division", Division)
            division.y.copy_(torch.randint(K, (50,), generator=g))
            division.w.copy_(torch.rand(50, generator=g))
            randomise(one.classifier, 20 + k, 0.3)
    if name == "mean_teacher":
        randomise(net.parts["teacher"], 7)
    elif name == "noisy_student":
        net.part("teacher_logits", TeacherLogits).logits.copy_(torch.randn(50, K, generator=g))
        net.part("teacher_logits", TeacherLogits).round.fill_(1)
    elif name.startswith("dash"):  # after 48 updates of 1 step
        net.part("dash", LabeledLoss).rho_hat.fill_(1.05 * 1.27**48 if name == "dash" else 0.0)
    elif name == "debiasmatch":
        net.part("debiasmatch", MeanPrediction).q.copy_(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    elif name == "flexmatch":
        y = torch.tensor([0] * 10 + [1] * 20 + [2] * 5 + [3] * 5)
        net.part("flexmatch", LearningStatus).update(torch.arange(40), y, torch.ones(40, dtype=torch.bool))
    return net


def dst(name: str, **options: object) -> DST:
    return DST(base_named(name), **{"dropout": 0.0, "width": 7, **options})  # type: ignore[arg-type]


@dataclass
class Reference:
    """What a base's labels and its loss on the pseudo head should be."""

    y: Tensor
    keep: Tensor
    loss: Tensor


def reference(name: str, net: Network, u: Unlabeled, h_pseudo: nn.Module) -> Reference:
    """Retyped from the bases' equations: labels from h (or the teacher), the loss on ``h_pseudo``."""
    p_w = p_of(net.classifier, u.weak).detach()
    p_s = p_of(through(net.psi, h_pseudo), u.strong)
    everything, n = torch.ones(len(u), dtype=torch.bool), len(u)
    if name == "mean_teacher":
        teacher = net.part("teacher", Average).module
        assert isinstance(teacher, Classifier)
        target = p_of(through(teacher.psi, teacher.h), u["weak_2"]).detach()
        own = p_of(through(net.psi, h_pseudo), u.weak)
        return Reference(target.argmax(1), everything, 5.0 * ((own - target) ** 2).sum() / n / K)
    if name == "noisy_student":
        z = net.part("teacher_logits", TeacherLogits).logits[u.index]
        keep = torch.softmax(z, 1).amax(1) >= 0.4
        return Reference(z.argmax(1), keep, 0.7 * (cross(torch.softmax(z / 0.5, 1), p_s) * keep).sum() / n)
    if name == "uda":
        keep = p_w.amax(1) >= 0.36
        return Reference(p_w.argmax(1), keep, 0.7 * (kl(sharp(p_w, 0.5), p_s) * keep).sum() / n)
    if name == "dash":
        keep = -p_w.amax(1).log() <= 1.0001 * 1.05
        return Reference(p_w.argmax(1), keep, 0.7 * (cross(sharp(p_w, 0.5), p_s) * keep).sum() / n)
    if name == "dash, hard":
        keep = -p_w.amax(1).log() <= 1.02
        return Reference(p_w.argmax(1), keep, 0.7 * (cross(one_hot(p_w.argmax(1), K), p_s) * keep).sum() / n)
    if name == "debiasmatch":
        q = 0.9 * torch.tensor([0.4, 0.3, 0.2, 0.1]) + 0.1 * p_w.mean(0)
        debiased = torch.softmax(p_w.log() - 0.4 * q.log(), 1)
        keep, y = debiased.amax(1) >= 0.36, debiased.argmax(1)
        margin = torch.softmax(p_s.log() + 0.4 * q.log(), 1)
        return Reference(y, keep, 0.7 * (cross(one_hot(y, K), margin) * keep).sum() / n)
    if name == "pseudo_label":  # both on the weak view; 50 of the 80 steps of its ramp are done
        keep, own = p_w.amax(1) >= 0.36, p_of(through(net.psi, h_pseudo), u.weak)
        return Reference(p_w.argmax(1), keep, 0.7 * 50 / 80 * (cross(one_hot(p_w.argmax(1), K), own) * keep).sum() / n)
    assert name == "flexmatch"
    y = p_w.argmax(1)
    beta = torch.tensor([10, 20, 5, 5])[y] / 20
    keep = p_w.amax(1) >= 0.38 * beta / (2 - beta)
    return Reference(y, keep, 0.7 * (cross(one_hot(y, K), p_s) * keep).sum() / n)


def worst_case(net: Network, labeled: Labeled, unlabeled: Unlabeled, f: Reference, preset: str) -> Tensor:
    """E of either preset, for labels y and the mask keep."""
    h_worst = through(net.psi, net.parts["h_worst"])
    B_l, B_u = len(labeled), len(unlabeled)
    p_l = p_of(h_worst, labeled.weak)
    if preset == "paper":
        y_l, p_u = labeled.y, p_of(h_worst, unlabeled.strong)
        departs = [-p_u[j, f.y[j]].log() / B_u for j in range(B_u) if f.keep[j]]
        eta_prime = 1.0
    else:
        y_l, p_u = p_of(net.classifier, labeled.weak).argmax(1), p_of(h_worst, unlabeled.weak)
        departs = [(1 - p_u[j, f.y[j]] + 1e-6).clamp(max=1).log() / B_u for j in range(B_u) if f.y[j] >= 0]
        eta_prime = 2.0
    L_l = torch.stack([-p_l[i, y_l[i]].log() / B_l for i in range(B_l)]).sum()
    return eta_prime * L_l - torch.stack(departs).sum()


@every_base
def test_with_neither_head_it_is_the_base_exactly(name: str) -> None:
    base = base_named(name)
    plain = DST(base, pseudo_head="none", worst=False)
    batch = tiny_batch()
    totals, grads, states = [], [], []
    for method in (base, plain):
        net = in_training(method, name).train()
        torch.manual_seed(3)
        loss = method.objective(net, *batch).total
        trained = [p for p in net.parameters() if p.requires_grad]
        totals.append(loss)
        grads.append(torch.autograd.grad(loss, trained, allow_unused=True))
        states.append(net.state_dict())
    assert plain.views == base.views
    assert plain.turns == base.turns
    assert plain.rounds == base.rounds
    assert torch.equal(*totals)
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))
    for g, h in zip(*grads, strict=True):
        assert (g is None and h is None) or torch.equal(g, h)


@one_network
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_h_labels_the_pseudo_head_imitates_and_the_worst_head_departs(name: str, preset: str) -> None:
    method = dst(name, preset=preset, optimiser="grl", eta=0.4)
    net = in_training(method, name)
    labeled, unlabeled = tiny_batch()
    f = reference(name, net, unlabeled, net.parts["h_pseudo"])
    if name != "mean_teacher":  # which keeps everything
        assert 0 < int(f.keep.sum()) < 12
    E = worst_case(net, labeled, unlabeled, f, preset)
    losses = method.objective(net, labeled, unlabeled)
    assert losses.pseudo is not None
    assert torch.equal(losses.pseudo.y, f.y)
    assert torch.equal(losses.pseudo.keep, f.keep)
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(losses.terms["unlabeled"], f.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses.terms["worst"], 0.4 * E, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], f.loss)
    assert_same_gradient(net.parts["h_worst"].parameters(), losses.terms["worst"], 0.4 * E)
    c = 1.0 if preset == "paper" else 0.1 * (2 / (1 + math.exp(-STEP / 1000)) - 1)
    assert_same_gradient(net.psi.parameters(), losses.terms["worst"], -c * 0.4 * E)


@every_base
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_who_learns_from_what(name: str, preset: str) -> None:
    method = dst(name, preset=preset, optimiser="grl")
    net = in_training(method, name)
    terms = method.losses(net, *tiny_batch(), "all").terms
    parts = {"labeled": {"psi", "h"}, "unlabeled": {"psi", "h_pseudo"}, "worst": {"psi", "h_worst"}}
    assert set(terms) == set(parts)
    for term, learners in parts.items():
        assert {part for part, size in gradients(net, terms[term]).items() if size > 0} == learners
        if term != "labeled":
            assert all(p.grad is None for p in net.h.parameters())


@every_base
def test_alternating_gives_psi_the_gradient_of_reversal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_partners(monkeypatch)
    never_mix(monkeypatch)
    grl = dst(name, preset="paper", optimiser="grl")
    alternating = replace(grl, optimiser="alternating")
    assert alternating.turns == ("worst", "others")
    batch = tiny_batch()
    # each in a network of its own: a step changes what a base remembers
    nets = [in_training(method, name) for method in (grl, alternating)]
    grads = []
    for method, net, turn in zip((grl, alternating), nets, ("all", "others"), strict=True):
        loss = method.objective(net, *batch, turn).total
        grads.append(torch.autograd.grad(loss, [p for one in net.members for p in one.psi.parameters()]))
    for g, h in zip(*grads, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-4, atol=1e-6)


@every_base
def test_the_worst_heads_turn_changes_no_state_and_teaches_that_head_alone(name: str) -> None:
    method = dst(name, preset="paper")
    net = in_training(method, name).train()
    before = copy.deepcopy(net.state_dict())
    losses = method.objective(net, *tiny_batch(), "worst")
    assert set(losses.terms) == {"worst"}
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    learners = {part for part, size in gradients(net, losses.total).items() if size > 0}
    assert learners == ({"h_worst", "twin.h_worst"} if name == "dividemix" else {"h_worst"})


@every_base
def test_a_weight_of_zero_leaves_h_to_the_labels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never_mix(monkeypatch)
    method = DST(replace(base_named(name), lam=0.0), eta=0.0, dropout=0.0)
    net = in_training(method, name)
    labeled, unlabeled = tiny_batch()
    loss = method.objective(net, labeled, unlabeled).total
    expected = torch.stack([L_L(one, labeled) for one in net.members]).sum()
    torch.testing.assert_close(loss, expected)
    assert_same_gradient(net.parameters(), loss, expected)


@pytest.mark.parametrize("name", ["uda", "dash", "debiasmatch", "flexmatch"])
def test_labels_and_statistics_are_those_of_h_whatever_the_other_heads_say(name: str) -> None:
    method = dst(name)
    plain = base_named(name)
    batch = tiny_batch()
    nets = [in_training(method, name), in_training(method, name), in_training(plain, name)]
    randomise(nets[1].parts["h_pseudo"], 31, 2.0)
    randomise(nets[1].parts["h_worst"], 32, 2.0)
    labels = [m.objective(net, *batch).pseudo for m, net in zip((method, method, plain), nets, strict=True)]
    for other, net in zip(labels[1:], nets[1:], strict=True):
        assert labels[0] is not None
        assert other is not None
        assert torch.equal(labels[0].y, other.y)
        assert torch.equal(labels[0].keep, other.keep)
        if name in net.parts:
            for a, b in zip(nets[0].parts[name].buffers(), net.parts[name].buffers(), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["debiasmatch", "flexmatch"])
def test_alternating_turns_count_a_batch_once(name: str) -> None:
    once, twice = dst(name, preset="paper", optimiser="grl"), dst(name, preset="paper")
    nets = [in_training(once, name), in_training(twice, name)]
    for method, net in zip((once, twice), nets, strict=True):
        for turn in method.turns:
            method.objective(net, *tiny_batch(), turn)
    for a, b in zip(nets[0].parts[name].buffers(), nets[1].parts[name].buffers(), strict=True):
        assert torch.equal(a, b)


def test_rho_hat_of_dash_is_the_labeled_loss_of_h() -> None:
    method = dst("dash")
    net = tiny_net(method, steps=100).eval()  # the first of two steps of warm-up
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    assert net.part("dash", LabeledLoss).rho_hat.item() == pytest.approx(L_L(net, labeled).item(), abs=1e-6)
    assert losses.terms["unlabeled"].item() == 0.0


# Mean Teacher


def test_over_mean_teacher_the_teachers_h_is_evaluated_and_it_follows_psi_and_h() -> None:
    method = dst("mean_teacher")
    net = in_training(method, "mean_teacher")
    teacher = net.part("teacher", Average).module
    assert method.predictor(net) is teacher
    assert method.averaged
    before = [p.clone() for p in teacher.parameters()]
    method.after_step(net, 1)  # m = 1/2
    for p, old, new in zip(teacher.parameters(), before, net.classifier.parameters(), strict=True):
        torch.testing.assert_close(p, (old + new.detach()) / 2)


def test_over_mean_teacher_the_teacher_gets_no_gradient() -> None:
    method = dst("mean_teacher")
    net = in_training(method, "mean_teacher")
    losses = method.objective(net, *tiny_batch())
    losses.backward()
    assert all(p.grad is None for p in net.parts["teacher"].parameters())


# Noisy Student


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_without_any_label_there_is_no_worst_case(preset: str) -> None:
    labeled, unlabeled = tiny_batch()
    method = dst("noisy_student", preset=preset, optimiser="grl")
    net = tiny_net(method).eval()
    net.step.fill_(STEP)
    losses = method.objective(net, labeled, unlabeled)
    assert losses.terms["worst"].item() == losses.terms["unlabeled"].item() == 0.0
    assert_same_gradient(net.parameters(), losses.total, L_L(net, labeled))


def test_over_noisy_student_every_head_and_the_schedule_restart_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    method = DST(NoisyStudent(students=2), width=8)
    loop, stream, *_ = digits_loop(method, steps=3, batch=8, unlabeled=40)
    starts: list[dict[str, Tensor]] = []
    coefficients: list[float] = []

    def watched(self: DST, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        if loop.step % 3 == 0:
            state = copy.deepcopy(net.state_dict())
            starts.append({key: value for key, value in state.items() if "teacher" not in key})
            coefficients.append(float(self.coefficient(net)))
        return original(self, net, labeled, unlabeled, turn)

    original = DST.objective
    monkeypatch.setattr(DST, "objective", watched)
    go_on(loop, stream, 9)
    assert coefficients == [0.0, 0.0, 0.0]
    assert any("h_pseudo" in key for key in starts[0])
    assert any("h_worst" in key for key in starts[0])
    for key, value in starts[0].items():
        assert torch.equal(value, starts[1][key])
        assert torch.equal(value, starts[2][key])


def test_over_noisy_student_labels_are_those_of_h_of_the_round_before() -> None:
    method = DST(NoisyStudent(students=1), width=8)
    loop, stream, *_ = digits_loop(method, steps=3, batch=8, unlabeled=40)
    go_on(loop, stream, 3)
    teacher = copy.deepcopy(loop.net.classifier).eval()
    go_on(loop, stream, 1)
    (pool,) = stream.pool(3)
    answers = loop.net.part("teacher_logits", TeacherLogits).logits
    torch.testing.assert_close(answers[pool.index], teacher(pool.weak).detach(), rtol=1e-4, atol=1e-4)


# DivideMix


@pytest.mark.parametrize("mix_labeled", [True, False])
@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_over_dividemix_true_labels_teach_h_and_mixes_with_pseudo_labels_its_pseudo_head(
    k: int, preset: str, mix_labeled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = dst("dividemix", preset=preset, optimiser="grl", eta=0.4)
    method = replace(method, base=replace(DIVIDEMIX, mix_labeled=mix_labeled))
    net = in_training(method, "dividemix")
    one, other = net.members[k], net.members[1 - k]
    labeled, unlabeled = tiny_batch()
    turn_partners(monkeypatch)
    seen = inputs_of(one.psi)
    losses = method.losses(one, labeled, unlabeled, "all")
    fed, n_l, n_u = seen[-1], 8, 12

    division = one.part("division", Division)
    y, w = division.y[unlabeled.index], division.w[unlabeled.index]
    views = (unlabeled.weak, unlabeled["weak_2"])
    own, both = torch.zeros(n_u, K), torch.zeros(n_u, K)
    for x in views:
        own = own + p_of(one.classifier, x).detach() / 2
        both = both + (p_of(one.classifier, x) + p_of(other.classifier, x)).detach() / 4
    refined = torch.stack([w[j] * torch.eye(K)[y[j]] + (1 - w[j]) * own[j] for j in range(n_u)])
    clean = w > 0.5
    assert 0 < int(clean.sum()) < n_u
    q = sharp(torch.where(clean[:, None], refined, both), 0.5)

    y_l, partner = one_hot(labeled.y, K), torch.arange(n_l).roll(3)
    lam = own_shares(fed[:n_l], labeled.weak, partner) if mix_labeled else torch.ones(n_l, 1)
    p = p_of(one.classifier, lam * labeled.weak + (1 - lam) * labeled.weak[partner])
    expected_l = cross(lam * y_l + (1 - lam) * y_l[partner], p).mean()

    x, target = torch.cat([*views, labeled.weak]), torch.cat([q, q, y_l])
    partner = torch.arange(len(x)).roll(3)[: 2 * n_u]
    lam = own_shares(fed[n_l : n_l + 2 * n_u], x, partner)
    target = lam * target[: 2 * n_u] + (1 - lam) * target[partner]
    p = p_of(through(one.psi, one.parts["h_pseudo"]), lam * x[: 2 * n_u] + (1 - lam) * x[partner])
    squares = ((p - target) ** 2).mean(1)
    rows = torch.where(clean.repeat(2), cross(target, p), 5.0 * squares)  # the ramp is over
    uniform = -(K * p.mean(0)).log().mean()
    expected_u = 0.7 * (rows.mean() + uniform)

    torch.testing.assert_close(losses.terms["labeled"], expected_l, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses.terms["unlabeled"], expected_u, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), losses.terms["labeled"], expected_l, 1e-4)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], expected_u, 1e-4)
    f = Reference(q.argmax(1), torch.ones(n_u, dtype=torch.bool), expected_u)  # what is imitated, as it is now
    E = worst_case(one, labeled, unlabeled, f, preset)  # on samples as they are, with this network's own h'
    torch.testing.assert_close(losses.terms["worst"], 0.4 * E, rtol=1e-4, atol=1e-5)
    assert_same_gradient(one.parts["h_worst"].parameters(), losses.terms["worst"], 0.4 * E)


def test_over_dividemix_each_network_has_heads_of_its_own_and_learns_from_its_own_losses() -> None:
    method = dst("dividemix")
    net = in_training(method, "dividemix")
    batch = tiny_batch()
    for one, prefix in zip(net.members, ("", "twin."), strict=True):
        sizes = gradients(net, method.losses(one, *batch, "all").total)
        learners = {part for part, size in sizes.items() if size > 0}
        assert learners == {prefix + part for part in ("psi", "h", "h_pseudo", "h_worst")}


def test_over_dividemix_the_main_heads_label_divide_and_predict() -> None:
    method = dst("dividemix")
    net = in_training(method, "dividemix")
    x = 2 * torch.randn(50, 5)
    states = []
    for seed in (None, 40):
        if seed is not None:
            for one in net.members:
                randomise(one.parts["h_pseudo"], seed)
                randomise(one.parts["h_worst"], seed + 1)
        for _ in range(2):
            method.survey(net, net.classifier, [Unlabeled(torch.arange(50), weak=x)])
        states.append([copy.deepcopy(one.part("division", Division).state_dict()) for one in net.members])
    for a, b in zip(*states, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    p = (p_of(net.classifier, x) + p_of(net.peer.classifier, x)) / 2
    assert torch.equal(net.part("division", Division).y, p.argmax(1))
    torch.testing.assert_close(p_of(method.predictor(net), x), p)


def test_over_dividemix_there_is_no_worst_case_before_the_first_division(monkeypatch: pytest.MonkeyPatch) -> None:
    method = dst("dividemix")
    net = tiny_net(method).eval()
    never_mix(monkeypatch)
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    assert losses.terms["worst"].item() == losses.terms["unlabeled"].item() == 0.0
    expected = L_L(net, labeled) + L_L(net.peer, labeled)
    assert_same_gradient(net.parameters(), losses.total, expected)


# The frame


@every_base
def test_an_ablation_without_one_of_the_heads_keeps_the_others_terms(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_partners(monkeypatch)
    never_mix(monkeypatch)
    batch = tiny_batch()

    def terms(**options: object) -> dict[str, Tensor]:
        method = dst(name, **options)
        net = in_training(method, name)
        for one in net.members:
            for part, seed in (("h_pseudo", 50), ("h_worst", 51)):
                if part in one.parts:
                    with torch.no_grad():
                        for p in one.parts[part].parameters():
                            p.zero_()
                    randomise(one.parts[part], seed)
        return method.objective(net, *batch).terms

    full, no_worst, no_pseudo = terms(), terms(worst=False), terms(pseudo_head="none")
    assert set(no_worst) == {"labeled", "unlabeled"}
    torch.testing.assert_close(no_worst["unlabeled"], full["unlabeled"])
    torch.testing.assert_close(no_pseudo["worst"], full["worst"])
    base = base_named(name)
    torch.testing.assert_close(
        no_pseudo["unlabeled"], base.objective(in_training(base, name), *batch).terms["unlabeled"]
    )
