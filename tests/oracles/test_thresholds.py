"""Dash, FlexMatch and DebiasMatch against references retyped from the equations, and their known traps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import Dash, DebiasMatch, FixMatch, FlexMatch, Method
from selftrain.methods.dash import LabeledLoss
from selftrain.methods.debiasmatch import MeanPrediction
from selftrain.methods.flexmatch import LearningStatus
from selftrain.nn.network import Network
from tests.oracles.references import L_L, assert_same_gradient, cross, logit_net, one_hot, p_of, sharp
from tests.tiny import K, tiny_batch, tiny_net


def predictions(p: list[list[float]], strong: Tensor | None = None) -> Unlabeled:
    """Weak views on which ``logit_net`` predicts p."""
    weak = torch.tensor(p).log()
    return Unlabeled(torch.arange(len(p)), weak=weak, strong=torch.zeros_like(weak) if strong is None else strong)


NO_LABELS = Labeled(torch.tensor([0]), weak=torch.zeros(1, 3))


@pytest.mark.parametrize(
    "method",
    [
        Dash(lam=0.0, warmup=0.0),
        Dash(warmup=1.0),
        FlexMatch(lam=0.0),
        FlexMatch(tau=1.0, warmup=False),
        DebiasMatch(lam=0.0, tau=0.0),
        DebiasMatch(tau=1.0),
    ],
    ids=["dash", "dash warming up", "flexmatch", "flexmatch keeps none", "debiasmatch", "debiasmatch keeps none"],
)
def test_without_unlabeled_weight_the_labeled_gradient_is_left_alone(method: Method) -> None:
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    torch.testing.assert_close(losses.total, L_L(net, labeled))
    assert_same_gradient(net.parameters(), losses.total, L_L(net, labeled))


@pytest.mark.parametrize(
    "method", [Dash(warmup=0.0, rho_min=9.0), FlexMatch(tau=0.0), DebiasMatch(tau=0.0)], ids=lambda m: str(m.name)
)
def test_no_gradient_flows_through_the_weak_view(method: Method) -> None:
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    weak, strong = unlabeled.weak.clone().requires_grad_(), unlabeled.strong.clone().requires_grad_()
    torch.autograd.backward(
        method.objective(net, labeled, unlabeled.with_views({"weak": weak, "strong": strong})).total
    )
    assert weak.grad is None
    assert strong.grad is not None
    assert strong.grad.abs().sum() > 0


# Dash


def rho_hat(net: Network) -> Tensor:
    return net.part("dash", LabeledLoss).rho_hat


@pytest.mark.parametrize("step", [2, 3, 5, 30])
@pytest.mark.parametrize("hard", [False, True])
def test_dash_is_its_equation(step: int, hard: bool) -> None:
    method = Dash(gamma=1.02, C=1.05, rho_min=0.95, warmup=0.02, every=0.01, T=0.5, lam=0.7, hard=hard)
    net = tiny_net(method, steps=100).eval()
    rho_hat(net).fill_(1.09)
    net.step.fill_(step)
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)

    rho = max(1.05 * 1.02 ** -(step - 2) * 1.09, 0.95)
    p_w = p_of(net.classifier, unlabeled.weak).detach()
    keep = torch.tensor([-math.log(row.max()) <= rho for row in p_w])
    assert 0 < int(keep.sum()) < 12
    target = one_hot(p_w.argmax(dim=1), K) if hard or step == 30 else sharp(p_w, 0.5)
    expected = 0.7 * (cross(target, p_of(net.classifier, unlabeled.strong)) * keep).sum() / 12
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(losses.terms["unlabeled"], expected)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], expected)
    assert losses.pseudo is not None
    assert torch.equal(losses.pseudo.keep, keep)


def test_rho_hat_is_the_labeled_loss_at_the_end_of_the_warm_up() -> None:
    method = Dash(warmup=0.03)
    net = tiny_net(method, steps=100).eval()
    values = []
    for step in range(5):
        labeled, unlabeled = tiny_batch(seed=step)
        net.step.fill_(step)
        losses = method.objective(net, labeled, unlabeled)
        values.append(L_L(net, labeled).item())
        assert losses.pseudo is not None
        if step < 3:
            assert not losses.pseudo.keep.any()
            assert losses.terms["unlabeled"].item() == 0.0
        assert rho_hat(net).item() == pytest.approx(values[min(step, 2)], abs=1e-6)
    assert len({round(value, 4) for value in values}) == 5


def test_rho_hat_does_not_depend_on_unlabeled_data() -> None:
    method = Dash(warmup=0.02)
    labeled, unlabeled = tiny_batch()
    values = []
    for u in (unlabeled, unlabeled.map(lambda x: 3 * x)):
        net = tiny_net(method).eval()
        method.objective(net, labeled, u)
        values.append(rho_hat(net).item())
    assert values[0] == values[1] > 0


def test_without_a_warm_up_rho_hat_is_the_first_labeled_loss() -> None:
    method = Dash(warmup=0.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    method.objective(net, labeled, unlabeled)
    assert rho_hat(net).item() == pytest.approx(L_L(net, labeled).item(), abs=1e-6)


def test_the_threshold_falls_step_by_step_to_its_floor_and_no_further() -> None:
    method = Dash(warmup=0.02, every=0.05, rho_min=0.05)
    net = tiny_net(method, steps=200)
    rho_hat(net).fill_(2.0)
    values = []
    for step in range(4, 200):
        net.step.fill_(step)
        values.append(float(method.rho(net)))
        updates = (step - 4) // 10
        assert values[-1] == pytest.approx(max(1.0001 * 1.27**-updates * 2.0, 0.05), rel=1e-5)
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0.05)
    assert values[0] == pytest.approx(2.0002)


def test_soft_targets_give_way_to_hard_ones_when_the_threshold_has_come_down() -> None:
    method = Dash(warmup=0.01, every=0.01, rho_min=1.0)
    net = logit_net(method)
    u = predictions([[0.7, 0.2, 0.1]])
    rho_hat(net).fill_(1.1)
    for step, expected in ((1, [0.49 / 0.54, 0.04 / 0.54, 0.01 / 0.54]), (50, [1.0, 0.0, 0.0])):
        net.step.fill_(step)
        losses = method.objective(net, NO_LABELS, u)
        assert losses.pseudo is not None
        assert losses.pseudo.target is not None
        torch.testing.assert_close(losses.pseudo.target, torch.tensor([expected]))


@pytest.mark.parametrize("tau", [0.3, 0.36, 0.45])
def test_a_threshold_of_minus_log_tau_with_hard_targets_is_fixmatch(tau: float) -> None:
    dash, fixmatch = Dash(hard=True, rho_min=-math.log(tau), warmup=0.0), FixMatch(tau=tau)
    net = tiny_net(dash).eval()  # rho_hat is 0: the threshold is at its floor
    batch = tiny_batch()
    net.step.fill_(5)
    ours, theirs = dash.objective(net, *batch).total, fixmatch.objective(net, *batch).total
    torch.testing.assert_close(ours, theirs)
    assert_same_gradient(net.parameters(), ours, theirs)


def test_rho_hat_is_saved() -> None:
    method = Dash()
    net, again = tiny_net(method), tiny_net(method)
    method.objective(net, *tiny_batch())
    again.load_state_dict(net.state_dict())
    assert rho_hat(again).item() == rho_hat(net).item() > 0


# FlexMatch


def status(net: Network) -> LearningStatus:
    return net.part("flexmatch", LearningStatus)


def carry(net: Network, *counts: int) -> None:
    """Let counts[c] samples carry the label c."""
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    status(net).update(torch.arange(len(y)), y, torch.ones(len(y), dtype=torch.bool))


@pytest.mark.parametrize(
    ("warmup", "unused", "expected"),
    [
        (False, 20, [0.95, 0.95 * 0.5 / 1.5, 0.0]),
        (True, 20, [0.95 * 0.5 / 1.5, 0.95 * 0.25 / 1.75, 0.0]),
        (True, 0, [0.95, 0.95 * 0.5 / 1.5, 0.0]),
    ],
)
def test_thresholds_of_ten_five_and_no_samples(warmup: bool, unused: int, expected: list[float]) -> None:
    method = FlexMatch(tau=0.95, warmup=warmup)
    net = logit_net(method, unlabeled=15 + unused)
    carry(net, 10, 5, 0)
    torch.testing.assert_close(method.thresholds(net), torch.tensor(expected))
    numbers = [0.3167, 0.1357, 0.0] if warmup and unused else [0.95, 0.3167, 0.0]
    assert method.thresholds(net).tolist() == pytest.approx(numbers, abs=5e-5)


def test_a_class_that_all_samples_carry_keeps_its_full_threshold() -> None:
    for warmup in (False, True):
        method = FlexMatch(tau=0.95, warmup=warmup)
        net = logit_net(method, unlabeled=10)
        carry(net, 0, 10)
        torch.testing.assert_close(method.thresholds(net), torch.tensor([0.0, 0.95, 0.0]))


def test_without_warm_up_nothing_to_count_leaves_the_full_threshold() -> None:
    net = logit_net(FlexMatch())
    torch.testing.assert_close(FlexMatch(tau=0.9, warmup=False).thresholds(net), torch.full((3,), 0.9))
    torch.testing.assert_close(FlexMatch(tau=0.9, warmup=True).thresholds(net), torch.zeros(3))  # by the formula


@pytest.mark.parametrize("warmup", [False, True])
def test_flexmatch_is_its_equation(warmup: bool) -> None:
    method = FlexMatch(tau=0.36, lam=0.7, warmup=warmup)
    net = tiny_net(method).eval()
    carry(net, 4, 11, 9, 6)  # 20 of 50 are unused
    before = status(net).selected.clone()
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)

    p_w, p_s = (p_of(net.classifier, x) for x in (unlabeled.weak, unlabeled.strong))
    most = max([4, 11, 9, 6, *([20] if warmup else [])])
    expected, keep, after = torch.zeros(()), [], before.clone()
    for j, row in enumerate(unlabeled.index.tolist()):
        y = int(p_w[j].argmax())
        beta = [4, 11, 9, 6][y] / most
        keep.append(bool(p_w[j].max() >= 0.36 * beta / (2 - beta)))
        if keep[-1]:
            expected = expected - 0.7 * p_s[j, y].log() / 12
        if p_w[j].max() >= 0.36:
            after[row] = y
    assert losses.pseudo is not None
    assert losses.pseudo.keep.tolist() == keep
    assert all(keep) == warmup  # with most samples unused every threshold is low
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(losses.terms["unlabeled"], expected)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], expected)
    assert torch.equal(status(net).selected, after)
    assert not torch.equal(after, before)


def test_a_label_below_tau_trains_but_is_not_remembered() -> None:
    method = FlexMatch(tau=0.9, warmup=False)
    net = logit_net(method)
    carry(net, 8, 4, 0)
    u = predictions([[0.1, 0.6, 0.3], [0.02, 0.95, 0.03]])
    losses = method.objective(net, NO_LABELS, Unlabeled(torch.tensor([18, 19]), **u.views))
    assert losses.pseudo is not None
    assert losses.pseudo.keep.tolist() == [True, True]  # the class's threshold is 0.3
    assert status(net).selected[18:].tolist() == [-1, 1]


def test_thresholds_use_the_counts_from_before_the_batch() -> None:
    method = FlexMatch(tau=0.9, warmup=False)
    net = logit_net(method)
    u = predictions([[0.95, 0.03, 0.02], [0.8, 0.1, 0.1], [0.1, 0.6, 0.3]])
    first, second = (method.objective(net, NO_LABELS, u).pseudo for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.keep.tolist() == [True, False, False]
    assert second.keep.tolist() == [True, False, True]  # now class 1 is behind class 0


def test_equal_counts_make_flexmatch_fixmatch() -> None:
    flexmatch, fixmatch = FlexMatch(tau=0.36, warmup=False), FixMatch(tau=0.36)
    net = tiny_net(flexmatch).eval()
    carry(net, 7, 7, 7, 7)
    batch = tiny_batch()
    ours, theirs = flexmatch.objective(net, *batch).total, fixmatch.objective(net, *batch).total
    torch.testing.assert_close(ours, theirs)
    assert_same_gradient(net.parameters(), ours, theirs)


def test_counts_equal_a_recount_after_a_thousand_steps_with_repeated_samples() -> None:
    learning = LearningStatus(30, 3)
    selected = [-1] * 30
    g = torch.Generator().manual_seed(0)
    for step in range(1000):
        index = torch.randint(30, (8,), generator=g)
        y = torch.randint(3, (8,), generator=g)
        sure = torch.rand(8, generator=g) < (0.02 if step < 100 else 0.5)
        learning.update(index, y, sure)
        for i, label, certain in zip(index.tolist(), y.tolist(), sure.tolist(), strict=True):
            if certain:
                selected[i] = label
        if step % 50 == 0 or step == 999:
            assert learning.selected.tolist() == selected
            assert learning.counts.tolist() == [selected.count(c) for c in (-1, 0, 1, 2)]
    assert len(set(selected)) == 3


def test_the_learning_status_is_saved() -> None:
    method = FlexMatch()
    net, again = logit_net(method), logit_net(method)
    carry(net, 5, 3, 1)
    again.load_state_dict(net.state_dict())
    assert torch.equal(status(again).selected, status(net).selected)
    assert torch.equal(method.thresholds(again), method.thresholds(net))


# DebiasMatch


def q_hat(net: Network) -> Tensor:
    return net.part("debiasmatch", MeanPrediction).q


@pytest.mark.parametrize("update_first", [True, False])
@pytest.mark.parametrize("step", [0, 500])
def test_debiasmatch_is_its_equation(update_first: bool, step: int) -> None:
    method = DebiasMatch(tau=0.36, lam=0.7, kappa=0.4, m=0.9, update_first=update_first)
    net = tiny_net(method).eval()
    net.step.fill_(step)
    before = torch.tensor([0.4, 0.3, 0.2, 0.1])
    q_hat(net).copy_(before)
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)

    z_w, z_s = net.classifier(unlabeled.weak).detach(), net.classifier(unlabeled.strong)
    mean = torch.zeros(K)
    for row in z_w:
        mean = mean + torch.softmax(row, 0) / 12
    after = 0.9 * before + 0.1 * mean
    q = after if update_first else before
    expected, keep = torch.zeros(()), []
    for j in range(12):
        p = torch.softmax(z_w[j] - 0.4 * q.log(), 0)
        keep.append(bool(p.max() >= 0.36))
        if keep[-1]:
            expected = expected - 0.7 * torch.log_softmax(z_s[j] + 0.4 * q.log(), 0)[p.argmax()] / 12
    assert 0 < sum(keep) < 12
    assert losses.pseudo is not None
    assert losses.pseudo.keep.tolist() == keep
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(losses.terms["unlabeled"], expected)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], expected)
    torch.testing.assert_close(q_hat(net), after)


def test_the_mean_prediction_by_hand() -> None:
    method = DebiasMatch(m=0.9)
    net = logit_net(method, classes=2)
    u = predictions([[0.9, 0.1], [0.7, 0.3]])
    labeled = Labeled(torch.tensor([0]), weak=torch.zeros(1, 2))
    method.objective(net, labeled, u)
    torch.testing.assert_close(q_hat(net), torch.tensor([0.53, 0.47]))
    method.objective(net, labeled, u)
    torch.testing.assert_close(q_hat(net), torch.tensor([0.557, 0.443]))


def test_skewed_predictions_skew_a_mean_that_sums_to_one() -> None:
    method = DebiasMatch(m=0.9)
    net = logit_net(method)
    u = predictions([[0.9, 0.05, 0.05], [0.8, 0.15, 0.05]])
    for _ in range(200):
        method.objective(net, NO_LABELS, u)
    torch.testing.assert_close(q_hat(net), torch.tensor([0.85, 0.1, 0.05]))
    assert q_hat(net).sum().item() == pytest.approx(1.0, abs=1e-5)


def test_debiasing_changes_labels_on_a_skewed_batch() -> None:
    biased, debiased = DebiasMatch(kappa=0.0, tau=0.0, m=0.0), DebiasMatch(kappa=1.0, tau=0.0, m=0.0)
    p = [[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.7, 0.1, 0.2], [0.5, 0.4, 0.1]]
    labels = []
    for method in (biased, debiased):
        pseudo = method.objective(logit_net(method), NO_LABELS, predictions(p)).pseudo
        assert pseudo is not None
        labels.append(pseudo.y.tolist())
    # the mean is (.675, .2, .125): divided by it, and up to a factor, (1.19 .5 .8), (1.04 1 .8), (1.04 .5 1.6), ...
    assert labels == [[0, 0, 0, 0], [0, 0, 2, 1]]


@pytest.mark.parametrize("case", ["no debiasing", "uniform mean"])
def test_without_a_bias_to_remove_it_is_fixmatch(case: str) -> None:
    debias = DebiasMatch(tau=0.36, kappa=0.0 if case == "no debiasing" else 0.4, update_first=case == "no debiasing")
    net = tiny_net(debias).eval()
    if case == "no debiasing":
        q_hat(net).copy_(torch.tensor([0.7, 0.1, 0.1, 0.1]))
    batch = tiny_batch()
    ours, theirs = debias.objective(net, *batch).total, FixMatch(tau=0.36).objective(net, *batch).total
    torch.testing.assert_close(ours, theirs)
    assert_same_gradient(net.parameters(), ours, theirs)


def test_the_mean_prediction_is_saved() -> None:
    method = DebiasMatch(m=0.5)
    net, again = tiny_net(method), tiny_net(method)
    method.objective(net, *tiny_batch())
    again.load_state_dict(net.state_dict())
    assert torch.equal(q_hat(again), q_hat(net))
    assert not torch.equal(q_hat(net), torch.full((K,), 1 / K))
