"""The class frequencies of the pool: how they are estimated, and what they change in the losses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import DST, FixMatch, Method, Supervised
from selftrain.methods.functional import PseudoLabels
from selftrain.methods.prior import PART, Prior, estimate_shares, label_offset
from selftrain.nn.network import Network
from tests.oracles.references import assert_same_gradient, logit_net, p_of, through
from tests.tiny import tiny_batch, tiny_net

COUNTS = (4, 2, 1, 1)


def with_prior(net: Network, counts: tuple[float, ...], pool: tuple[float, ...] | None = None) -> Network:
    prior = Prior(counts)
    if pool is not None:
        prior.pool.copy_(torch.tensor(pool))
    net.parts[PART] = prior
    return net


def dst(**options: Any) -> DST:
    return DST(FixMatch(tau=0.36), **{"dropout": 0.0, "width": 7, "weighted": True, **options})


def warm_net(method: Method, step: int = 50) -> Network:
    net = tiny_net(method).eval()
    net.step.fill_(step)
    return net


# Weights


@pytest.mark.parametrize(
    ("labels", "pool"),
    [
        ((1, 1, 1), (0.6, 0.3, 0.1)),
        ((5, 2, 1), (0.2, 0.2, 0.6)),
        ((49, 1, 50), (0.01, 0.9, 0.09)),
        ((3, 0, 1), (0.2, 0.5, 0.3)),
    ],
)
def test_weights_are_clipped_shares_with_mean_one_over_the_labels(
    labels: tuple[int, ...], pool: tuple[float, ...]
) -> None:
    prior = Prior(labels)
    prior.pool.copy_(torch.tensor(pool))
    total = sum(labels)
    raw = []
    for count, share in zip(labels, pool, strict=True):
        ratio = share / (count / total) if count else math.inf
        raw.append(min(max(ratio, 0.1), 10.0))
    mean = sum(count / total * w for count, w in zip(labels, raw, strict=True))
    weights = prior.weights()
    assert weights.tolist() == pytest.approx([w / mean for w in raw], rel=1e-5)
    assert float((prior.labels * weights).sum()) == pytest.approx(1, abs=1e-6)


def test_no_weight_is_a_hundred_times_another() -> None:
    prior = Prior((1, 999))
    prior.pool.copy_(torch.tensor([0.999, 0.001]))
    high, low = prior.weights().tolist()
    assert high / low == pytest.approx(100, rel=1e-4)  # unclipped, a million


# The worst case


def test_the_weighted_worst_case_is_its_equation() -> None:
    method = dst(eta=0.4)
    net = with_prior(warm_net(method), COUNTS, (0.1, 0.2, 0.3, 0.4))
    labeled, unlabeled = tiny_batch()
    ours = method.objective(net, labeled, unlabeled).terms["worst"]

    raw = [0.1 / 0.5, 0.2 / 0.25, 0.3 / 0.125, 0.4 / 0.125]
    mean = 0.5 * raw[0] + 0.25 * raw[1] + 0.125 * raw[2] + 0.125 * raw[3]
    worst = through(net.psi, net.parts["h_worst"])
    p_l, said = p_of(worst, labeled.weak).detach(), net.classifier(labeled.weak).argmax(dim=1)
    p_u, f_hat = p_of(worst, unlabeled.weak).detach(), net.classifier(unlabeled.weak).argmax(dim=1)
    wrong = agreement = 0.0
    for i, y in enumerate(labeled.y):  # the weight is that of the true class, the label the one that h predicts
        wrong += raw[int(y)] / mean * -math.log(float(p_l[i, said[i]])) / len(labeled)
    for j in range(len(unlabeled)):
        agreement += -math.log(1 - float(p_u[j, f_hat[j]])) / len(unlabeled)
    assert any(said != labeled.y), "the true and the predicted class must differ somewhere"
    assert ours.item() == pytest.approx(0.4 * (2 * wrong + agreement), abs=5e-6)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_pool_like_the_labels_gives_the_unweighted_worst_case(preset: str) -> None:
    method = dst(preset=preset, optimiser="grl")
    net = warm_net(method)
    batch = tiny_batch()
    plain = method.objective(net, *batch).total
    weighted = method.objective(with_prior(net, COUNTS), *batch).total
    torch.testing.assert_close(weighted, plain)
    assert_same_gradient(net.parameters(), weighted, plain)
    unlike = method.objective(with_prior(net, COUNTS, (0.1, 0.2, 0.3, 0.4)), *batch).total
    assert abs(float((unlike - plain).detach())) > 0.01


ETA_PRIME = 2.0
PI_L, PI_U = (0.5, 0.5), (0.9, 0.1)


def optimal_head(weights: tuple[float, float]) -> nn.Module:
    """h' at its best for two classes, each at one point: p'_y = eta' l w / (eta' l w + u)."""
    head = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        for k in (0, 1):
            lw = ETA_PRIME * PI_L[k] * weights[k]
            p = lw / (lw + PI_U[k])
            head.weight[k, k], head.weight[1 - k, k] = math.log(p), math.log(1 - p)
    return head


def two_points(weighted: bool) -> tuple[DST, Network]:
    method = DST(FixMatch(tau=0.0), eta_prime=ETA_PRIME, weighted=weighted)
    net = with_prior(logit_net(method, classes=2), PI_L, PI_U)
    net.parts["h_worst"] = optimal_head((1.8, 0.2) if weighted else (1.0, 1.0))
    return method, net


def worst_case(method: DST, net: Network, pool: list[int], labeled: tuple[int, int] = (0, 1)) -> Tensor:
    """E of images that psi puts at the points of these classes; the labels are one of each class."""
    points = torch.eye(2)
    l = Labeled(torch.tensor([0, 1]), weak=points[list(labeled)])
    y = torch.tensor(pool)
    u = Unlabeled(torch.arange(len(pool)), weak=points[y], strong=points[y])
    return method.E(net, l, u, PseudoLabels(y, torch.ones(len(pool), dtype=torch.bool)), {})


TRUE_POOL = [0] * 18 + [1] * 2


@pytest.mark.parametrize("weighted", [True, False])
def test_only_with_weights_the_worst_case_moves_nothing_between_classes(weighted: bool) -> None:
    method, net = two_points(weighted)
    here = worst_case(method, net, TRUE_POOL)
    for slope in torch.autograd.grad(here, list(net.parts["h_worst"].parameters())):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=2e-6)  # h' is at its optimum
    # psi raises E, which is linear in the images at each point while h' is fixed: a difference is a derivative
    expelled = worst_case(method, net, [0] * 17 + [1] * 3) - here
    taken_in = worst_case(method, net, [0] * 19 + [1]) - here
    moved_label = worst_case(method, net, TRUE_POOL, labeled=(1, 1)) - here
    if weighted:
        for change in (expelled, taken_in, moved_label):
            assert float(change.detach()) == pytest.approx(0, abs=2e-6)
    else:
        assert float(expelled.detach()) > 0.04  # the frequent class loses images, whatever they show
        assert float(taken_in.detach()) < -0.04


def test_the_worst_case_where_labels_and_pool_coincide() -> None:
    method, net = two_points(weighted=True)
    bound = ETA_PRIME * math.log(1 + 1 / ETA_PRIME) + math.log(1 + ETA_PRIME)
    assert bound == pytest.approx(1.9095, abs=5e-5)
    assert float(worst_case(method, net, TRUE_POOL).detach()) == pytest.approx(bound, abs=1e-5)


@pytest.mark.parametrize(("distance", "expected"), [(0, 0.5), (0.1, 0.5), (0.15, 0.3), (0.2, 0.1), (0.5, 0.1)])
def test_the_reversal_falls_with_the_distance_of_the_frequencies(distance: float, expected: float) -> None:
    method = dst(reversal=0.5, uneven_reversal=0.1, warmup=300.0)
    net = with_prior(warm_net(method, 300), (1, 1, 1, 1), (0.25 + distance / 2,) * 2 + (0.25 - distance / 2,) * 2)
    assert float(method.strength(net)) == pytest.approx(expected, abs=1e-6)
    c = expected * (2 / (1 + math.exp(-1)) - 1)
    assert float(method.coefficient(net)) == pytest.approx(c, abs=1e-6)


def test_without_uneven_reversal_or_prior_the_reversal_is_as_given() -> None:
    method = dst(reversal=0.5)
    assert method.strength(with_prior(warm_net(method), COUNTS, (0.1, 0.1, 0.1, 0.7))) == 0.5
    method = dst(reversal=0.5, uneven_reversal=0.1)
    assert method.strength(warm_net(method)) == 0.5


# Logit adjustment


def test_there_is_no_offset_for_even_labels() -> None:
    net = warm_net(Supervised())
    assert label_offset(net, 1.0) is None
    assert label_offset(with_prior(net, (3, 3, 3, 3), (0.7, 0.1, 0.1, 0.1)), 1.0) is None
    assert label_offset(with_prior(net, COUNTS), 0.0) is None
    offset = label_offset(with_prior(net, COUNTS, (0.7, 0.1, 0.1, 0.1)), 0.5)
    assert offset is not None
    assert offset.tolist() == pytest.approx([0.5 * math.log(share) for share in (0.5, 0.25, 0.125, 0.125)])
    absent = label_offset(with_prior(net, (4, 2, 0, 1)), 1.0)
    assert absent is not None
    assert torch.isfinite(absent).all()


@pytest.mark.parametrize(
    "method",
    [
        Supervised(w_strong=0.3, adjust=0.5),
        FixMatch(w_strong=0.3, adjust=0.5),
        DST(FixMatch(w_strong=0.3, adjust=0.5), width=7),
    ],
    ids=["supervised", "fixmatch", "dst"],
)
def test_the_adjusted_labeled_loss_is_its_equation(method: Method) -> None:
    net = with_prior(warm_net(method), COUNTS, (0.1, 0.2, 0.3, 0.4))
    labeled, unlabeled = tiny_batch()
    ours = method.objective(net, labeled, unlabeled).terms["labeled"]
    shares, expected = (4 / 8, 2 / 8, 1 / 8, 1 / 8), torch.zeros(())
    for view, factor in (("weak", 1.0), ("strong", 0.3)):
        for x, y in zip(labeled[view], labeled.y, strict=True):
            z = net.classifier(x[None])[0]
            scores = torch.stack([z[k].exp() * shares[k] ** 0.5 for k in range(4)])
            expected = expected - factor * (scores[y] / scores.sum()).log() / len(labeled)
    torch.testing.assert_close(ours, expected)
    assert_same_gradient(net.parameters(), ours, expected)


# The estimate


def answers(*classes: int, K: int = 3) -> Tensor:
    """Probabilities of models that are 0.8 sure of these classes."""
    return torch.full((len(classes), K), 0.2 / (K - 1)).scatter(1, torch.tensor(classes)[:, None], 0.8)


EVEN = torch.full((3,), 1 / 3)


def test_shares_by_hand() -> None:
    p, q = answers(0, 0, 0, 1, 1), answers(0, 0, 0, 1, 2)
    q[4] = torch.tensor([0.0, 0.0, 1.0])  # surer than p, so that class 2 wins this image
    shares, agreement = estimate_shares(p, q, torch.ones(5), EVEN)
    assert agreement == pytest.approx(0.8)
    trust = 0.8 / 0.85
    predicted = [3.5 / 6.5, 1.5 / 6.5, 1.5 / 6.5]
    assert shares.tolist() == pytest.approx([trust * share + (1 - trust) / 3 for share in predicted])


def test_the_order_of_the_pool_does_not_matter() -> None:
    g = torch.Generator().manual_seed(0)
    p, q = (torch.softmax(3 * torch.randn(200, 3, generator=g), 1) for _ in range(2))
    weight, order = torch.rand(200, generator=g), torch.randperm(200, generator=g)
    shares, agreement = estimate_shares(p, q, weight, EVEN)
    again = estimate_shares(p[order], q[order], weight[order], EVEN)
    torch.testing.assert_close(again[0], shares)
    assert again[1] == pytest.approx(agreement)
    assert float((shares - EVEN).abs().max()) > 0.01


def test_a_class_that_is_never_predicted_keeps_a_small_share() -> None:
    p = answers(*[0] * 50, *[1] * 50)
    shares, _ = estimate_shares(p, p, torch.ones(100), EVEN)
    assert 0 < float(shares[2]) < 0.01
    assert float(shares.sum()) == pytest.approx(1)
    prior = Prior((1, 1, 0))
    prior.pool.copy_(shares)
    assert torch.isfinite(prior.weights()).all()


def test_junk_does_not_count() -> None:
    p, q = answers(0, 0, 1, 2, 2, 2), answers(0, 0, 1, 1, 1, 1)
    members = torch.tensor([1.0, 1, 1, 0, 0, 0])
    shares, agreement = estimate_shares(p, q, members, EVEN)
    alone, _ = estimate_shares(p[:3], q[:3], torch.ones(3), EVEN)
    assert agreement == 1
    torch.testing.assert_close(shares, alone)
    nothing, agreement = estimate_shares(p, q, torch.zeros(6), EVEN)
    assert agreement == 0
    torch.testing.assert_close(nothing, EVEN)


@pytest.mark.parametrize(("agreeing", "trust"), [(10, 1.0), (9, 1.0), (6, 0.6 / 0.85), (3, 0.3 / 0.85), (0, 0.0)])
def test_where_two_models_disagree_the_estimate_is_nearer_to_the_labels(agreeing: int, trust: float) -> None:
    labels = torch.tensor([0.2, 0.5, 0.3])
    p = answers(*[0] * 10)
    q = torch.where(torch.arange(10)[:, None] < agreeing, p, torch.tensor([0.3, 0.4, 0.3]))
    shares, agreement = estimate_shares(p, q, torch.ones(10), labels)
    assert agreement == pytest.approx(agreeing / 10)
    predicted = (10.5 / 11.5, 0.5 / 11.5, 0.5 / 11.5)
    expected = [trust * share + (1 - trust) * l for share, l in zip(predicted, labels.tolist(), strict=True)]
    assert shares.tolist() == pytest.approx(expected)
