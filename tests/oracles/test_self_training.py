"""Supervised, Pseudo Label and FixMatch against references retyped from the equations, one sample at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Unlabeled
from selftrain.methods import FixMatch, PseudoLabel, Supervised
from selftrain.methods.functional import PseudoLabels, pseudo_cross_entropy, threshold
from tests.tiny import gradients, tiny_batch, tiny_net


def test_uniform_logits_cost_log_k() -> None:
    method = Supervised()
    net = tiny_net(method)
    for parameter in net.h.parameters():
        torch.nn.init.zeros_(parameter)
    labeled, _ = tiny_batch()
    assert method.objective(net, labeled).total.item() == pytest.approx(math.log(4), abs=1e-6)


def test_the_weight_of_strong_labeled_views() -> None:
    labeled, _ = tiny_batch()
    net = tiny_net(Supervised()).eval()
    weak = Supervised().objective(net, labeled).total
    strong = Supervised().objective(net, labeled.with_views({"weak": labeled.strong})).total
    both = Supervised(w_strong=0.1).objective(net, labeled).total
    torch.testing.assert_close(both, weak + 0.1 * strong)


def test_the_threshold_keeps_what_reaches_it() -> None:
    f_hat = threshold(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), 0.8)
    assert f_hat.y.tolist() == [0, 0, 1]
    assert f_hat.keep.tolist() == [True, True, False]  # >= tau, as in the paper


def test_the_unlabeled_loss_divides_by_the_batch_not_by_the_number_kept() -> None:
    # p_w = (.9,.1), (.6,.4), tau 0.8, uniform p_s: ln2/2
    f_hat = threshold(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), 0.8)
    assert pseudo_cross_entropy(torch.zeros(2, 2), f_hat).item() == pytest.approx(0.346574, abs=1e-6)


def test_nothing_kept_costs_nothing() -> None:
    none = PseudoLabels(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.bool))
    loss = pseudo_cross_entropy(torch.randn(3, 2, requires_grad=True), none)
    assert loss.item() == 0.0
    torch.autograd.backward(loss)


class Noise(nn.Module):
    """A head with much dropout: another answer at every call."""

    def forward(self, z: Tensor) -> Tensor:
        return 5 * torch.randn(len(z), 4) + z.sum() * 0


def test_pseudo_label_learns_the_label_it_gave() -> None:
    """Label and loss come from one pass, dropout included: the label is the likeliest class of the very same logits."""
    method = PseudoLabel(tau=0.0, ramp=0.0)
    net = tiny_net(method)
    net.classifier.h = Noise()
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    assert losses.terms["unlabeled"] < math.log(2)  # -log max p; that of another draw would be about 5


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.35, 0.6])
def test_fixmatch_is_its_equation(tau: float) -> None:
    method = FixMatch(tau=tau, lam=0.7)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)

    expected_l = 0.0
    for x, y in zip(labeled.weak, labeled.y, strict=True):
        p = torch.softmax(net.classifier(x[None])[0], 0).detach()
        expected_l -= math.log(p[y]) / len(labeled)
    expected_u, kept = 0.0, 0
    for weak, strong in zip(unlabeled.weak, unlabeled.strong, strict=True):
        p_w = torch.softmax(net.classifier(weak[None])[0], 0).detach()
        p_s = torch.softmax(net.classifier(strong[None])[0], 0).detach()
        if p_w.max() >= tau:
            expected_u -= math.log(p_s[p_w.argmax()]) / len(unlabeled)
            kept += 1
    assert losses.terms["labeled"].item() == pytest.approx(expected_l, abs=1e-6)
    assert losses.terms["unlabeled"].item() == pytest.approx(0.7 * expected_u, abs=1e-6)
    assert losses.pseudo is not None
    assert int(losses.pseudo.keep.sum()) == kept


def test_fixmatch_sends_no_gradient_through_the_weak_view() -> None:
    method = FixMatch(tau=0.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    weak = unlabeled.weak.clone().requires_grad_()
    strong = unlabeled.strong.clone().requires_grad_()
    method.objective(net, labeled, Unlabeled(unlabeled.index, weak=weak, strong=strong)).backward()
    assert weak.grad is None
    assert strong.grad is not None
    assert strong.grad.abs().sum() > 0


def test_fixmatch_with_equal_views_is_pseudo_label() -> None:
    labeled, unlabeled = tiny_batch()
    same = Unlabeled(unlabeled.index, weak=unlabeled.weak, strong=unlabeled.weak)
    fix, pseudo = FixMatch(tau=0.3), PseudoLabel(tau=0.3, ramp=0.0)
    net = tiny_net(fix).eval()
    a, b = fix.objective(net, labeled, same).total, pseudo.objective(net, labeled, same).total
    torch.testing.assert_close(a, b)
    grads = [torch.autograd.grad(loss, list(net.classifier.parameters())) for loss in (a, b)]
    for g, h in zip(*grads, strict=True):
        torch.testing.assert_close(g, h)


def test_pseudo_label_gradient_on_the_logits() -> None:
    logits = torch.randn(6, 3, requires_grad=True)
    f_hat = threshold(torch.softmax(logits, 1), 0.5)
    torch.autograd.backward(pseudo_cross_entropy(logits, f_hat))
    expected = (torch.softmax(logits, 1) - torch.nn.functional.one_hot(f_hat.y, 3)) / 6
    torch.testing.assert_close(logits.grad, (expected * f_hat.keep[:, None]).detach())
    assert 0 < int(f_hat.keep.sum()) < 6


@pytest.mark.parametrize(
    "method", [FixMatch(tau=1.0), PseudoLabel(tau=1.0), FixMatch(lam=0.0, tau=0.0), PseudoLabel(lam=0.0, tau=0.0)]
)
def test_without_pseudo_labels_it_is_supervised(method: FixMatch | PseudoLabel) -> None:
    labeled, unlabeled = tiny_batch()
    net = tiny_net(method).eval()
    loss = method.objective(net, labeled, unlabeled).total
    reference = Supervised().objective(net, labeled).total
    torch.testing.assert_close(loss, reference)
    assert gradients(net, loss) == pytest.approx(gradients(net, Supervised().objective(net, labeled).total))


def test_pseudo_labels_weight_rises_linearly() -> None:
    method = PseudoLabel(lam=2.0, ramp=0.4)
    net = tiny_net(method, steps=100)
    weights = []
    for step in (0, 10, 20, 40, 90):
        net.step.fill_(step)
        weights.append(float(method.weight(net)))
    assert weights == pytest.approx([0.0, 0.5, 1.0, 2.0, 2.0])
