"""Options in which implementations differ, against references retyped from the equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from selftrain.errors import UserError
from selftrain.methods import VAT, Method, MixMatch, NoisyStudent, ReMixMatch, SelfTuning, make_method
from selftrain.methods.functional import mixup
from selftrain.methods.noisy_student import TeacherLogits
from selftrain.methods.remixmatch import Alignment
from selftrain.methods.self_tuning import Queues, group_contrast
from tests.oracles.references import assert_same_gradient, cross
from tests.tiny import K, tiny_batch, tiny_net


def test_a_temperature_for_teacher_and_student() -> None:
    method = NoisyStudent(T=0.5, t_both=True, lam=0.7)
    net = tiny_net(method).eval()
    teacher = net.part("teacher_logits", TeacherLogits)
    teacher.logits.copy_(torch.randn(50, K, generator=torch.Generator().manual_seed(2)))
    teacher.round.fill_(1)
    labeled, unlabeled = tiny_batch()
    loss = method.objective(net, labeled, unlabeled).terms["unlabeled"]
    p = torch.softmax(net.classifier(unlabeled.strong) / 0.5, 1)
    expected = 0.7 * cross(torch.softmax(teacher.logits[unlabeled.index] / 0.5, 1), p).mean()
    torch.testing.assert_close(loss, expected)
    assert_same_gradient(net.parameters(), loss, expected)


def test_one_share_for_a_batch_or_one_for_every_sample() -> None:
    x, partner = torch.cat([torch.ones(40, 1), torch.zeros(40, 1)]), torch.arange(40, 80)
    torch.manual_seed(0)
    each, _ = mixup(x, x, partner, 0.75)
    once, target = mixup(x, x, partner, 0.75, "batch")
    assert len(torch.unique(each)) > 30
    assert len(torch.unique(once)) == 1
    assert once.min() >= 0.5
    assert torch.equal(once, target)


def test_mixmatch_says_whether_the_share_is_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def recorded(x: Tensor, y: Tensor, partner: Tensor, a: float, per: str) -> tuple[Tensor, Tensor]:
        asked.append(per)
        return mixup(x, y, partner, a)

    monkeypatch.setattr("selftrain.methods.mixmatch.mixup", recorded)
    for method in (MixMatch(), MixMatch(mix="batch")):
        method.objective(tiny_net(method), *tiny_batch())
    assert asked == ["sample", "batch"]


def test_remixmatch_aligns_with_equal_classes() -> None:
    labeled, unlabeled = tiny_batch()
    for method, moves in (
        (ReMixMatch(p_data="labels", lam_rotation=0.0), True),
        (ReMixMatch(p_data="uniform", lam_rotation=0.0), False),
    ):
        net = tiny_net(method)
        labeled.y.fill_(1)
        method.objective(net, labeled, unlabeled)
        p_data = net.part("alignment", Alignment).p_data
        assert bool((p_data != 1 / K).any()) == moves


def test_keys_that_nobody_put_there_are_left_out() -> None:
    g = torch.Generator().manual_seed(0)
    q, own, queue = torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g), torch.randn(2, 3, 3, generator=g)
    there = torch.tensor([[True, True, False], [False, False, False]])
    y = torch.tensor([0, 1, 0, 1])
    q.requires_grad_()
    expected = []
    for i in range(4):
        keys = [own[i], queue[0, 0], queue[0, 1]]
        positives = keys if y[i] == 0 else keys[:1]
        total = torch.stack([torch.exp(q[i] @ k / 0.5) for k in keys]).sum()
        expected.append(-torch.stack([torch.log(torch.exp(q[i] @ k / 0.5) / total) for k in positives]).mean())
    loss, reference = group_contrast(q, own, queue, y, 0.5, there), torch.stack(expected).mean()
    torch.testing.assert_close(loss, reference)
    assert_same_gradient([q], loss, reference)
    alone = group_contrast(q, own, queue, y, 0.5, torch.zeros(2, 3, dtype=torch.bool))
    torch.testing.assert_close(alone, torch.zeros(()))  # one's own key has the whole share


def test_self_tuning_fills_its_queues_and_then_contrasts_with_all() -> None:
    method = SelfTuning(D=2, dim=5, mask_empty=True)
    net = tiny_net(method)
    queues = net.part("queues", Queues)
    assert not queues.filled.any()
    first = method.objective(net, *tiny_batch()).terms
    torch.testing.assert_close(first["contrast_labeled"], torch.zeros(()))
    assert queues.filled.any(dim=1).sum() >= len(torch.unique(tiny_batch()[0].y))
    for c in range(K):
        queues.enqueue(torch.randn(2, 5), torch.tensor([c, c]))
    assert queues.filled.all()


@pytest.mark.parametrize(
    ("method", "passes"),
    [(MixMatch(), 1), (MixMatch(w_strong=1.0), 1), (ReMixMatch(lam_rotation=0.0), 1), (VAT(), 1)],
    ids=["mixmatch", "mixmatch with strong views", "remixmatch", "vat"],
)
def test_passes_that_only_look_leave_running_statistics_alone(method: Method, passes: int) -> None:
    net = tiny_net(method)
    (seen,) = (b for name, b in net.psi.named_buffers() if name.endswith("num_batches_tracked"))
    method.objective(net, *tiny_batch())
    assert seen == passes


@pytest.mark.parametrize("name", ["mean_teacher", "debiasmatch", "self_tuning"])
def test_an_average_does_not_look_ahead(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}\(m=1.5\): expected a number from 0 to 1"):
        make_method(f"{name}(m=1.5)")


@pytest.mark.parametrize("text", ["fixmatch(tau=95)", "dst(flexmatch(tau=90))", "pseudo_label(tau=1.01)"])
def test_a_threshold_is_no_percentage(text: str) -> None:
    with pytest.raises(UserError, match=r"\(tau=[\d.]+\): expected a number from 0 to 1"):
        make_method(text)


def test_mixmatch_with_strong_views_of_labeled_samples() -> None:
    labeled, unlabeled = tiny_batch()
    net = tiny_net(MixMatch()).eval()
    terms = []
    for weight in (0.0, 0.3):
        torch.manual_seed(0)
        terms.append(MixMatch(w_strong=weight).objective(net, labeled, unlabeled).terms)
    extra = cross(torch.eye(K)[labeled.y], torch.softmax(net.classifier(labeled.strong), 1)).mean()
    torch.testing.assert_close(terms[1]["labeled"], terms[0]["labeled"] + 0.3 * extra)
    torch.testing.assert_close(terms[1]["unlabeled"], terms[0]["unlabeled"])


@pytest.mark.parametrize("text", ["dst(fixmatch, tau=0.9)", "dst(fixmatch(lam=1), tau=0.9)"])
def test_an_option_of_the_method_inside(text: str) -> None:
    with pytest.raises(UserError, match=r"dst has no option 'tau', but fixmatch has: write dst\(fixmatch\(tau=0.9\)\)"):
        make_method(text)
