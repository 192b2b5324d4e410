"""MixMatch, ReMixMatch and DivideMix against references retyped from the equations, and their known traps."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import DivideMix, MixMatch, ReMixMatch
from selftrain.methods.dividemix import Division
from selftrain.methods.functional import clean_probability, mixup, sharpen
from selftrain.methods.remixmatch import Alignment
from selftrain.nn.network import Network
from tests.oracles.references import (
    L_L,
    assert_same_gradient,
    cross,
    inputs_of,
    logit_net,
    never_mix,
    one_hot,
    own_shares,
    p_of,
    picture_net,
    randomise,
    sharp,
    turn_partners,
)
from tests.tiny import K, gradients, tiny_batch, tiny_net

# Mixing


def test_sharpening_by_hand() -> None:
    torch.testing.assert_close(
        sharpen(torch.tensor([[0.6, 0.4]]), 0.5), torch.tensor([[0.6923, 0.3077]]), rtol=0, atol=5e-5
    )
    torch.testing.assert_close(sharpen(torch.tensor([[0.6, 0.4]]), 1.0), torch.tensor([[0.6, 0.4]]))
    torch.testing.assert_close(sharpen(torch.tensor([[0.6, 0.4, 0.0]]), 0.01), torch.tensor([[1.0, 0.0, 0.0]]))


def test_every_sample_is_mixed_by_a_share_of_its_own_and_remains_the_larger_part() -> None:
    x, y = torch.randn(40, 3), torch.softmax(torch.randn(40, 4), 1)
    partner = torch.arange(40).roll(1)
    mixed, target = mixup(x, y, partner, 0.75)
    lam = own_shares(mixed, x, partner)
    assert (lam >= 0.5 - 1e-5).all()
    assert (lam <= 1 + 1e-5).all()
    assert lam.std() > 0.05
    torch.testing.assert_close(target, lam * y + (1 - lam) * y[partner], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(target.sum(dim=1), torch.ones(40))


@pytest.mark.parametrize("a", [0.5, 0.75, 4.0])
def test_shares_follow_the_beta_distribution(a: float) -> None:
    torch.manual_seed(0)
    n = 20000
    x = torch.cat([torch.ones(n, 1), torch.zeros(n, 1)])
    lam, _ = mixup(x, x, torch.arange(n, 2 * n), a)
    drawn = np.random.default_rng(0).beta(a, a, n)
    assert lam.mean().item() == pytest.approx(np.maximum(drawn, 1 - drawn).mean(), abs=0.005)
    assert lam.std().item() == pytest.approx(np.maximum(drawn, 1 - drawn).std(), abs=0.005)


# MixMatch


def test_mixmatch_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    method = MixMatch(lam=7.0, T=0.5, a=0.75, ramp=0.4)
    net = tiny_net(method, steps=100).eval()
    net.step.fill_(10)  # a quarter of the way up, linearly
    labeled, unlabeled = tiny_batch()
    turn_partners(monkeypatch)
    seen = inputs_of(net.psi)
    terms = method.objective(net, labeled, unlabeled).terms

    x = torch.cat([labeled.weak, unlabeled.weak, unlabeled["weak_2"]])
    partner = torch.arange(len(x)).roll(3)
    lam = own_shares(seen[-1], x, partner)
    guess = (p_of(net.classifier, unlabeled.weak) + p_of(net.classifier, unlabeled["weak_2"])) / 2
    q = sharp(guess.detach(), 0.5)
    y = torch.cat([one_hot(labeled.y, K), q, q])
    target = lam * y + (1 - lam) * y[partner]
    p, n = p_of(net.classifier, lam * x + (1 - lam) * x[partner]), len(labeled)
    expected_l = cross(target[:n], p[:n]).mean()
    expected_u = 7.0 * 0.25 * ((p[n:] - target[n:]) ** 2).sum(dim=1).mean() / K
    assert (lam >= 0.5 - 1e-5).all()
    assert lam.std() > 0.05  # one for each sample
    torch.testing.assert_close(terms["labeled"], expected_l, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["unlabeled"], expected_u, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), terms["labeled"], expected_l, 1e-4)
    assert_same_gradient(net.parameters(), terms["unlabeled"], expected_u, 1e-4)


def test_mixmatch_without_mixing_or_unlabeled_weight_is_supervised(monkeypatch: pytest.MonkeyPatch) -> None:
    method = MixMatch(lam=0.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    never_mix(monkeypatch)
    seen = inputs_of(net.psi)
    loss = method.objective(net, labeled, unlabeled).total
    assert torch.equal(seen[-1], torch.cat([labeled.weak, unlabeled.weak, unlabeled["weak_2"]]))
    torch.testing.assert_close(loss, L_L(net, labeled))
    assert_same_gradient(net.parameters(), loss, L_L(net, labeled))


def test_guessing_leaves_running_statistics_alone_and_all_samples_go_through_one_pass() -> None:
    method = MixMatch()
    net = tiny_net(method).train()
    once = copy.deepcopy(net.psi)
    seen = inputs_of(net.psi)
    method.objective(net, *tiny_batch())
    assert [len(x) for x in seen] == [24, 32]
    once(seen[-1])
    for a, b in zip(net.psi.buffers(), once.buffers(), strict=True):
        torch.testing.assert_close(a, b)


# ReMixMatch


def picture_batch(n_l: int = 6, n_u: int = 8, seed: int = 3) -> tuple[Labeled, Unlabeled]:
    g = torch.Generator().manual_seed(seed)

    def views(n: int) -> dict[str, Tensor]:
        return {name: torch.randn(n, 1, 4, 4, generator=g) for name in ("weak", "strong", "strong_2")}

    return Labeled(torch.arange(n_l) % 3, **views(n_l)), Unlabeled(torch.arange(n_u), **views(n_u))


def aligned(net: Network) -> Alignment:
    return net.part("alignment", Alignment)


def test_remixmatch_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    method = ReMixMatch(lam=1.3, lam_first=0.6, lam_rotation=0.9, T=0.5, M=2, ramp=0.4)
    net = picture_net(method, steps=100).eval()
    net.step.fill_(20)  # half way up
    p_tilde, p_data = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    aligned(net).window.copy_(p_tilde.expand(128, 3))
    aligned(net).p_data.copy_(p_data)
    labeled, unlabeled = picture_batch()
    turn_partners(monkeypatch)
    seen = inputs_of(net.psi)
    terms = method.objective(net, labeled, unlabeled).terms

    first = unlabeled.strong
    x = torch.cat([labeled.strong, unlabeled.weak, first, unlabeled["strong_2"]])
    partner = torch.arange(len(x)).roll(3)
    lam = own_shares(seen[-1][: len(x)], x, partner)
    q = p_of(net.classifier, unlabeled.weak).detach() * p_data / p_tilde
    q = sharp(q / q.sum(dim=1, keepdim=True), 0.5)
    y = torch.cat([one_hot(labeled.y, 3), q, q, q])
    target = lam * y + (1 - lam) * y[partner]
    share = lam[..., None, None]
    p, n = p_of(net.classifier, share * x + (1 - share) * x[partner]), len(labeled)
    rotation = []
    for turns in range(4):
        for picture in first[turns::4]:
            turned = torch.from_numpy(np.rot90(picture[0].numpy(), turns).copy())[None, None]
            rotation.append(-p_of(nn.Sequential(net.psi, net.parts["rotation"]), turned)[0, turns].log())
    expected = {
        "labeled": cross(target[:n], p[:n]).mean(),
        "unlabeled": 0.5 * 1.3 * cross(target[n:], p[n:]).mean(),
        "first": 0.5 * 0.6 * cross(q, p_of(net.classifier, first)).mean(),
        "rotation": 0.9 * torch.stack(rotation).mean(),
    }
    assert lam.std() > 0.05
    assert set(terms) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, rtol=1e-4, atol=1e-5)
        assert_same_gradient(net.parameters(), terms[name], value, 1e-4)


def test_aligned_distributions_leave_predictions_unchanged() -> None:
    alignment = Alignment(3, 128)
    p, q = torch.softmax(torch.randn(5, 3), 1), torch.tensor([0.5, 0.3, 0.2])
    torch.testing.assert_close(alignment.align(p), p)  # both start uniform: nothing is divided by 0
    alignment.window.copy_(q.expand(128, 3))
    alignment.p_data.copy_(q)
    torch.testing.assert_close(alignment.align(p), p)


def test_alignment_by_hand() -> None:
    alignment = Alignment(2, 128)
    alignment.window.copy_(torch.tensor([0.8, 0.2]).expand(128, 2))
    ours = alignment.align(torch.tensor([[0.8, 0.2], [0.5, 0.5]]))
    torch.testing.assert_close(ours, torch.tensor([[0.5, 0.5], [0.2, 0.8]]))


def test_the_window_holds_the_last_128_batch_means_and_survives_saving() -> None:
    alignment, again = Alignment(3, 128), Alignment(3, 128)
    rows = [torch.full((3,), 1 / 3)] * 128
    y, labels = torch.tensor([0, 0, 1, 2]), torch.full((3,), 1 / 3)
    g = torch.Generator().manual_seed(0)
    for step in range(131):
        p = torch.softmax(3 * torch.randn(6, 3, generator=g), 1)
        alignment.record(p, y, torch.tensor(step), "window")
        rows = [*rows[1:], p.mean(dim=0)]
        labels = 0.999 * labels + 0.001 * torch.tensor([0.5, 0.25, 0.25])
        if step in (0, 5, 127, 130):
            torch.testing.assert_close(alignment.window.mean(dim=0), torch.stack(rows).mean(dim=0))
    torch.testing.assert_close(alignment.p_data, labels)
    again.load_state_dict(alignment.state_dict())
    assert torch.equal(again.window, alignment.window)


def test_the_moving_average_in_place_of_the_window_by_hand() -> None:
    alignment = Alignment(2, 128)
    alignment.record(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0]), torch.tensor(0), "ema")
    torch.testing.assert_close(alignment.window.mean(dim=0), torch.tensor([0.5003, 0.4997]))


def test_a_batch_is_aligned_to_the_batches_before_it() -> None:
    method = ReMixMatch(lam_rotation=0.0)
    net = tiny_net(method).eval()
    net.step.fill_(3)
    labeled, unlabeled = tiny_batch()
    p = p_of(net.classifier, unlabeled.weak).detach()
    losses = method.objective(net, labeled, unlabeled)
    assert losses.pseudo is not None
    assert torch.equal(losses.pseudo.y, p.argmax(dim=1))  # the window was uniform
    torch.testing.assert_close(aligned(net).window[3], p.mean(dim=0))
    assert torch.equal(aligned(net).window[4], torch.full((K,), 1 / K))


def test_rotations_teach_psi_and_their_own_head_only() -> None:
    method = ReMixMatch()
    net = picture_net(method)
    net.step.fill_(100)
    terms = method.objective(net, *picture_batch()).terms
    assert {part: size > 0 for part, size in gradients(net, terms["rotation"]).items()} == {
        "psi": True, "h": False, "rotation": True,
    }  # fmt: skip
    assert all(p.grad is None for p in net.h.parameters())
    for name in ("labeled", "unlabeled", "first"):
        assert gradients(net, terms[name])["rotation"] == 0


def test_rotated_pictures_by_hand() -> None:
    picture = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    turned, r = ReMixMatch().rotated(torch.stack([picture + 10 * i for i in range(6)]))
    by_turns = [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]  # anticlockwise
    assert r.tolist() == [0, 0, 1, 1, 2, 3]
    for x, k, i in zip(turned, r.tolist(), (0, 4, 1, 5, 2, 3), strict=True):
        assert x.flatten().tolist() == [v + 10 * i for v in by_turns[k]]


def test_remixmatch_without_mixing_or_unlabeled_weights_is_supervised(monkeypatch: pytest.MonkeyPatch) -> None:
    method = ReMixMatch(lam=0.0, lam_first=0.0, lam_rotation=0.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    never_mix(monkeypatch)
    loss = method.objective(net, labeled, unlabeled).total
    assert_same_gradient(net.parameters(), loss, L_L(net, labeled, "strong"))


# DivideMix


def division(net: Network) -> Division:
    return net.part("division", Division)


def divided(method: DivideMix, step: int = 60) -> Network:
    """Two different networks with labels for all samples; about half are clean in each."""
    net = tiny_net(method).eval()
    g = torch.Generator().manual_seed(4)
    for k, one in enumerate(net.members):
        randomise(one.classifier, 11 + k)
        one.step.fill_(step)
        division(one).y.copy_(torch.randint(K, (50,), generator=g))
        division(one).w.copy_(torch.rand(50, generator=g))
    return net


def test_the_mixture_splits_two_clusters() -> None:
    g = torch.Generator().manual_seed(0)
    low, high = (centre + 0.02 * torch.randn(30, generator=g) for centre in (0.1, 0.9))
    w = clean_probability(torch.cat([low, high]))
    assert (w[:30] > 0.99).all()
    assert (w[30:] < 0.01).all()
    w = clean_probability(torch.cat([high, low]))
    assert (w[:30] < 0.01).all()
    scaled = clean_probability(100 * torch.cat([low, high]) + 7)  # losses are scaled to [0, 1]
    torch.testing.assert_close(scaled, clean_probability(torch.cat([low, high])), rtol=0, atol=1e-4)


@pytest.mark.parametrize("losses", [torch.full((9,), 0.3), torch.zeros(9), torch.tensor([0.4])])
def test_equal_losses_make_nothing_clean(losses: Tensor) -> None:
    assert torch.equal(clean_probability(losses), torch.zeros_like(losses))


@pytest.mark.parametrize("mix_labeled", [True, False])
@pytest.mark.parametrize("k", [0, 1])
def test_dividemix_is_its_equation(k: int, mix_labeled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method = DivideMix(lam_u=5.0, T=0.5, a=4.0, ramp=0.4, warmup=0.5, lam=0.7, w_uniform=0.8, mix_labeled=mix_labeled)
    net = divided(method, step=60)  # 10 of 40 steps after the first division
    one, other = net.members[k], net.members[1 - k]
    labeled, unlabeled = tiny_batch()
    turn_partners(monkeypatch)
    seen = inputs_of(one.psi)
    terms = method.losses(one, labeled, unlabeled).terms
    fed = seen[-1]

    n_l, n_u = len(labeled), len(unlabeled)
    views = (unlabeled.weak, unlabeled["weak_2"])
    own, theirs = ([p_of(one_.classifier, x).detach() for x in views] for one_ in (one, other))
    q = torch.empty(n_u, K)
    clean = []
    for j, row in enumerate(unlabeled.index.tolist()):
        w, y = division(one).w[row].item(), division(one).y[row].item()
        clean.append(w > 0.5)
        if w > 0.5:
            refined = (1 - w) * (own[0][j] + own[1][j]) / 2
            refined[int(y)] += w
        else:
            refined = (own[0][j] + own[1][j] + theirs[0][j] + theirs[1][j]) / 4
        q[j] = sharp(refined[None], 0.5)[0]
    assert 0 < sum(clean) < n_u
    # true labels are mixed among themselves, or stay as they are
    partner = torch.arange(n_l).roll(3)
    lam = own_shares(fed[:n_l], labeled.weak, partner) if mix_labeled else torch.ones(n_l, 1)
    y_l = one_hot(labeled.y, K)
    p = p_of(one.classifier, lam * labeled.weak + (1 - lam) * labeled.weak[partner])
    expected_l = cross(lam * y_l + (1 - lam) * y_l[partner], p).mean()
    # pseudo labels with everything
    x, y_all = torch.cat([*views, labeled.weak]), torch.cat([q, q, y_l])
    partner = torch.arange(len(x)).roll(3)[: 2 * n_u]
    lam = own_shares(fed[n_l:], x, partner)
    target = lam * y_all[: 2 * n_u] + (1 - lam) * y_all[partner]
    p = p_of(one.classifier, lam * x[: 2 * n_u] + (1 - lam) * x[partner])
    rows = []
    for i in range(2 * n_u):
        squares = ((p[i] - target[i]) ** 2).sum() / K
        rows.append(cross(target[i : i + 1], p[i : i + 1])[0] if clean[i % n_u] else 5.0 * 0.25 * squares)
    mean = p.mean(dim=0)
    uniform = sum((1 / K) * torch.log((1 / K) / mean[c]) for c in range(K))
    expected_u = 0.7 * (torch.stack(rows).sum() / (2 * n_u) + 0.8 * uniform)
    torch.testing.assert_close(terms["labeled"], expected_l, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["unlabeled"], expected_u, rtol=1e-4, atol=1e-5)
    assert_same_gradient(one.classifier.parameters(), terms["labeled"], expected_l, 1e-4)
    assert_same_gradient(one.classifier.parameters(), terms["unlabeled"], expected_u, 1e-4)


def test_the_objective_is_the_sum_over_both_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    method = DivideMix()
    net = divided(method)
    batch = tiny_batch()
    turn_partners(monkeypatch)
    never_mix(monkeypatch)
    total = method.objective(net, *batch).total
    torch.testing.assert_close(total, sum(method.losses(one, *batch).total for one in net.members))


def test_unmixed_true_labels_stay_one_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    method = DivideMix(lam=0.0)
    net = divided(method)
    labeled, unlabeled = tiny_batch()
    never_mix(monkeypatch)
    for one in net.members:
        losses = method.losses(one, labeled, unlabeled)
        torch.testing.assert_close(losses.total, L_L(one, labeled))
        assert_same_gradient(one.classifier.parameters(), losses.total, L_L(one, labeled))


def test_unlabeled_samples_never_reach_the_labeled_term() -> None:
    method = DivideMix()
    net = divided(method)
    labeled, unlabeled = tiny_batch()
    values = []
    for u in (unlabeled, unlabeled.map(lambda x: x + 3)):
        torch.manual_seed(0)
        values.append(method.losses(net, labeled, u).terms["labeled"])
    assert torch.equal(*values)


def test_each_networks_losses_teach_that_network_alone() -> None:
    method = DivideMix()
    net = divided(method)
    batch = tiny_batch()
    for term in ("labeled", "unlabeled"):
        sizes = gradients(net, method.losses(net, *batch).terms[term])
        assert {part: size > 0 for part, size in sizes.items()} == {
            "psi": True, "h": True, "twin.psi": False, "twin.h": False,
        }  # fmt: skip
        sizes = gradients(net, method.losses(net.peer, *batch).terms[term])
        assert {part: size > 0 for part, size in sizes.items()} == {
            "psi": False, "h": False, "twin.psi": True, "twin.h": True,
        }  # fmt: skip


def test_the_two_networks_start_apart() -> None:
    net = tiny_net(DivideMix())
    assert not torch.equal(net.h.weight, net.peer.h.weight)  # type: ignore[arg-type]
    assert net.peer.peer is net


def pool_of(p: Tensor, parts: int = 3) -> Iterator[Unlabeled]:
    """The whole set in batches, out of order: what counts is the index."""
    for rows in torch.arange(len(p)).roll(5).chunk(parts):
        yield Unlabeled(rows, weak=p[rows].log())


def two_logit_nets(method: DivideMix) -> Network:
    net = logit_net(method, classes=2, unlabeled=20)
    with torch.no_grad():
        net.peer.h.weight.copy_(torch.eye(2))  # type: ignore[operator]
    return net


def test_the_label_judged_is_that_of_the_division_before() -> None:
    method = DivideMix()
    net = two_logit_nets(method)
    p = torch.full((20, 2), 0.5) + torch.tensor([0.3, -0.3]) * torch.where(torch.arange(20) % 2 == 0, 1, -1)[:, None]
    first = p.argmax(dim=1)
    method.survey(net, nn.Identity(), pool_of(p))
    for one in net.members:
        assert (division(one).y == -1).all()  # nothing to judge yet
    method.survey(net, nn.Identity(), pool_of(p.flip(1)))  # the networks have changed their minds
    for one in net.members:
        assert torch.equal(division(one).y, first)
    method.survey(net, nn.Identity(), pool_of(p))
    for one in net.members:
        assert torch.equal(division(one).y, 1 - first)


def test_labels_come_from_both_networks_together() -> None:
    method = DivideMix()
    net = two_logit_nets(method)
    with torch.no_grad():
        net.peer.h.weight.mul_(-3)  # type: ignore[operator]
    p = torch.full((20, 2), 0.5) + torch.tensor([0.3, -0.3])
    method.survey(net, nn.Identity(), pool_of(p))
    method.survey(net, nn.Identity(), pool_of(p))
    for one in net.members:
        assert (division(one).y == 1).all()  # (.8, .2) and (.02, .98)


def test_each_network_trains_with_what_the_other_believes_clean() -> None:
    method = DivideMix()
    net = two_logit_nets(method)
    agree = torch.tensor([[0.9, 0.1]]).expand(20, 2).clone()
    method.survey(net, nn.Identity(), pool_of(agree))  # every label is 0
    with torch.no_grad():  # the second network turns every prediction round
        net.peer.h.weight.copy_(torch.eye(2).flip(0))  # type: ignore[operator]
    g = torch.Generator().manual_seed(0)
    confident = 0.9 + 0.01 * torch.randn(10, generator=g)
    p_0 = torch.cat([confident, 1 - confident])  # the first network has a low loss on the first ten
    method.survey(net, nn.Identity(), pool_of(torch.stack([p_0, 1 - p_0], dim=1)))
    assert (division(net.peer).w[:10] > 0.99).all()  # so the second trains with these as clean
    assert (division(net.peer).w[10:] < 0.01).all()
    assert (division(net).w[:10] < 0.01).all()
    assert (division(net).w[10:] > 0.99).all()


def test_clean_probabilities_are_those_of_the_labels_losses() -> None:
    method = DivideMix()
    net = tiny_net(method).train()
    for k, one in enumerate(net.members):
        randomise(one.classifier, 20 + k, spread=1.0)
    x = 2 * torch.randn(50, 5)
    pool = [Unlabeled(torch.arange(50), weak=x)]
    method.survey(net, nn.Identity(), pool)
    method.survey(net, nn.Identity(), pool)
    assert all(module.training for module in net.modules())  # as it was
    p = [p_of(copy.deepcopy(one.classifier).eval(), x).detach() for one in net.members]
    y = (p[0] + p[1]).argmax(dim=1)
    for k, one in enumerate(net.members):
        assert torch.equal(division(one).y, y)
        l = torch.tensor([-math.log(p[1 - k][j, c]) for j, c in enumerate(y.tolist())])
        torch.testing.assert_close(division(one).w, clean_probability(l), rtol=1e-3, atol=1e-3)


def test_before_the_first_division_only_true_labels_count(monkeypatch: pytest.MonkeyPatch) -> None:
    method = DivideMix()
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    never_mix(monkeypatch)
    division(net).w.fill_(1.0)
    losses = method.objective(net, labeled, unlabeled)
    assert losses.terms["unlabeled"].item() == 0.0
    torch.testing.assert_close(losses.total, L_L(net, labeled) + L_L(net.peer, labeled))
    assert losses.pseudo is not None
    assert not losses.pseudo.keep.any()


def test_divisions_begin_half_way_through_the_warm_up() -> None:
    method = DivideMix(warmup=0.2, every=0.25)
    assert [t for t in range(100) if method.survey_due(t, 100)] == [10, 20, 45, 70, 95]
    assert [t for t in range(8) if DivideMix(warmup=0.0).survey_due(t, 8)][:2] == [1, 2]  # never without a label


def test_dividemix_predicts_with_the_mean_softmax() -> None:
    method = DivideMix()
    net = divided(method)
    x = tiny_batch()[1].weak
    expected = (p_of(net.classifier, x) + p_of(net.peer.classifier, x)) / 2
    torch.testing.assert_close(p_of(method.predictor(net), x), expected)
