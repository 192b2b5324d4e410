"""Methods that were published for even pools: the published value with a uniform prior, another one with another."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import DebiasMatch, DivideMix, ReMixMatch, make_method
from selftrain.methods.debiasmatch import MeanPrediction
from selftrain.methods.functional import PseudoLabels
from selftrain.methods.prior import PART, Prior
from selftrain.methods.remixmatch import Alignment
from selftrain.nn.network import Network
from tests.oracles.references import cross, logit_net, never_mix, p_of, sharp
from tests.tiny import tiny_batch, tiny_net

EVEN, UNEVEN = (1 / 3, 1 / 3, 1 / 3), (0.7, 0.2, 0.1)


def with_pool(net: Network, pool: tuple[float, ...]) -> Network:
    """Give a network a prior whose labels are even, as its pool may be."""
    for one in net.members:
        one.parts[PART] = Prior((1,) * len(pool))
        one.part(PART, Prior).pool.copy_(torch.tensor(pool))
    return net


# DebiasMatch


def debiased(net: Network, z: Tensor, kappa: float) -> PseudoLabels:
    method = DebiasMatch(tau=0.5, kappa=kappa, m=0.9, update_first=False)
    net.part("debiasmatch", MeanPrediction).q.copy_(torch.tensor([0.5, 0.3, 0.2]))
    return method.label(net, net.h, Unlabeled(torch.arange(len(z)), weak=z))


def test_debiasmatch_compares_the_mean_prediction_with_the_pool() -> None:
    z = torch.tensor([[0.5, 0.35, 0.15], [0.4, 0.35, 0.25], [0.2, 0.5, 0.3], [0.9, 0.05, 0.05]]).log()
    net = logit_net(DebiasMatch())
    published = debiased(net, z, 1.0)
    uniform = debiased(with_pool(net, EVEN), z, 1.0)
    assert torch.equal(uniform.y, published.y)
    assert torch.equal(uniform.keep, published.keep)
    assert published.y.tolist() == [max(range(3), key=row.__getitem__) for row in by_hand(z, EVEN)] == [1, 2, 1, 0]

    uneven, expected = debiased(with_pool(net, UNEVEN), z, 1.0), by_hand(z, UNEVEN)
    assert uneven.y.tolist() == [max(range(3), key=row.__getitem__) for row in expected] == [0, 0, 1, 0]
    assert uneven.keep.tolist() == [max(row) >= 0.5 for row in expected]
    assert published.note is not None
    assert torch.equal(uneven.note, published.note), "the mean prediction itself knows no prior"  # type: ignore[arg-type]


def by_hand(z: Tensor, pool: tuple[float, ...]) -> list[list[float]]:
    """p_k pi_k / q_k, normalised, with kappa = 1."""
    rows = []
    for p in z.exp().tolist():
        scores = [p[k] * pool[k] / (0.5, 0.3, 0.2)[k] for k in range(3)]
        rows.append([score / sum(scores) for score in scores])
    return rows


# DivideMix


def divided_loss(net: Network, p: Tensor) -> float:
    """The loss of a pair of mixed samples per image, whose targets are what is predicted: what remains is the prior."""
    method = DivideMix(w_uniform=1.0)
    z, n = p.log(), len(p)
    keep, doubtful = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
    pairs = torch.stack([z, z], dim=1)
    f_hat = PseudoLabels(p.argmax(dim=1), keep, torch.stack([p, p], dim=1), note=doubtful)
    return float(method.imitate(net, net.h, Unlabeled(torch.arange(n), mixed=pairs), f_hat).detach())


@pytest.mark.parametrize("pool", [EVEN, UNEVEN, (0.5, 0.5, 0.0)])
def test_dividemix_pulls_the_mean_prediction_to_the_pool(pool: tuple[float, ...]) -> None:
    p = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.4, 0.2]])
    net = logit_net(DivideMix())
    expected = sum(share * math.log(share / mean) for share, mean in zip(pool, (0.5, 0.35, 0.15), strict=True) if share)
    assert divided_loss(with_pool(net, pool), p) == pytest.approx(expected, abs=1e-6)


def test_dividemix_without_a_prior_is_as_published() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.4, 0.2]])
    net = logit_net(DivideMix())
    published = sum(1 / 3 * math.log(1 / 3 / mean) for mean in (0.5, 0.35, 0.15))
    assert divided_loss(net, p) == pytest.approx(published, abs=1e-6)


def test_both_networks_of_dividemix_read_the_prior() -> None:
    method = make_method("dst(dividemix)", "frozen")
    net = with_pool(tiny_net(method), (0.7, 0.1, 0.1, 0.1))
    assert method.reads_prior
    assert all(PART in one.parts for one in net.members)
    assert len(net.members) == 2


# ReMixMatch


def first_term(net: Network, p_data: str, batch: tuple[Labeled, Unlabeled]) -> Tensor:
    method = ReMixMatch(lam_first=0.6, lam_rotation=0.0, T=0.5, ramp=0.0, p_data=p_data)  # type: ignore[arg-type]
    return method.objective(net, *batch).terms["first"]


@pytest.mark.parametrize("pool", [None, (0.25,) * 4, (0.7, 0.1, 0.1, 0.1)])
def test_remixmatch_aligns_with_the_pool(pool: tuple[float, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    never_mix(monkeypatch)
    net, batch = tiny_net(ReMixMatch(lam_rotation=0.0)).eval(), tiny_batch()
    seen = torch.tensor([0.4, 0.3, 0.2, 0.1])
    if pool is not None:
        with_pool(net, pool)
    alignment = net.part("alignment", Alignment)

    def start() -> None:
        alignment.window.copy_(seen.expand_as(alignment.window))
        alignment.p_data.fill_(0.25)

    start()
    ours = first_term(net, "prior", batch)
    q = p_of(net.classifier, batch[1].weak).detach() * torch.tensor(pool or (0.25,) * 4) / seen
    q = sharp(q / q.sum(dim=1, keepdim=True), 0.5)
    torch.testing.assert_close(ours, 0.6 * cross(q, p_of(net.classifier, batch[1].strong)).mean(), rtol=1e-4, atol=1e-5)
    start()
    published = first_term(net, "uniform", batch)
    same = pool is None or len(set(pool)) == 1
    assert torch.allclose(ours, published) is same
