"""ABC, DASO, CReST+ and OpenMatch against references retyped from their equations, around a base and inside DST."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from selftrain.batch import Unlabeled
from selftrain.methods import ABC, DASO, DST, CReST, FixMatch, Method, OpenMatch
from selftrain.methods.crest import Chosen, choose
from selftrain.methods.daso import Shares
from selftrain.methods.prior import PART, Prior
from selftrain.methods.self_tuning import Queues
from selftrain.nn.network import Network
from tests.oracles.references import L_L, assert_same_gradient, logit_net, p_of, through
from tests.tiny import K, tiny_batch, tiny_net

UNEVEN = (0.7, 0.1, 0.1, 0.1)


def net_of(
    method: Method, step: int = 50, pool: tuple[float, ...] | None = None, labels: tuple[int, ...] = (1,) * K
) -> Network:
    net = tiny_net(method).eval()
    with torch.no_grad():
        net.h.weight.mul_(4)  # type: ignore[operator]
    net.step.fill_(step)
    if pool is not None:
        net.parts[PART] = Prior(labels)
        net.part(PART, Prior).pool.copy_(torch.tensor(pool))
    return net


def certain(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Let every Bernoulli draw succeed that is more likely than not; keep the chances."""
    chances: list[Tensor] = []

    def draw(chance: Tensor) -> Tensor:
        chances.append(chance)
        return (chance > 0.5).to(chance.dtype)

    monkeypatch.setattr(torch, "bernoulli", draw)
    return chances


# ABC


def test_abc_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = certain(monkeypatch)
    method, base = ABC(FixMatch(tau=0.5), tau=0.3, w_b=0.6), FixMatch(tau=0.5)
    net, (labeled, unlabeled) = net_of(method, 50, UNEVEN, (4, 2, 1, 1)), tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    plain = base.objective(net, labeled, unlabeled)
    h_b = through(net.psi, net.parts["h_b"])
    p_l, p_w, p_s = p_of(h_b, labeled.weak), p_of(h_b, unlabeled.weak).tolist(), p_of(h_b, unlabeled.strong)
    expected = plain.terms["labeled"]
    for i, y in enumerate(labeled.y.tolist()):
        chance = (0.25, 0.5, 1.0, 1.0)[y]
        assert float(chances[0][i]) == pytest.approx(chance)
        expected = expected - 0.6 * (chance > 0.5) * p_l[i, y].log() / 8
    torch.testing.assert_close(losses.terms["labeled"], expected, rtol=1e-4, atol=1e-5)
    second = plain.terms["unlabeled"]
    for j, row in enumerate(p_w):
        y = max(range(K), key=row.__getitem__)
        chance = 1 - 0.5 * (1 - 0.1 / UNEVEN[y])  # half of training has passed
        assert float(chances[1][j]) == pytest.approx(chance)
        second = second - 0.6 * (max(row) >= 0.3) * (chance > 0.5) * p_s[j, y].log() / 12
    torch.testing.assert_close(losses.terms["unlabeled"], second, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], second)
    assert method.predictor(net)(labeled.weak).equal(h_b(labeled.weak))


def test_the_balanced_head_of_an_even_problem_is_fixmatch() -> None:
    method = ABC(FixMatch(tau=0.3), tau=0.3)
    net, batch = net_of(method), tiny_batch()
    net.parts["h_b"].load_state_dict(net.h.state_dict())
    both, one = method.objective(net, *batch).total, FixMatch(tau=0.3).objective(net, *batch).total
    torch.testing.assert_close(both, 2 * one)


def test_under_dst_the_balanced_head_does_not_learn_from_its_own_labels() -> None:
    method = DST(ABC(FixMatch(tau=0.0), tau=0.0))
    net, batch = net_of(method), tiny_batch()
    terms = method.objective(net, *batch).terms
    balanced = next(net.parts["h_b"].parameters())
    (grad,) = torch.autograd.grad(terms["unlabeled"] + terms["worst"], [balanced], allow_unused=True)
    assert grad is None


# DASO


@pytest.mark.parametrize("T_d", [1.0, 1.5])
def test_daso_is_its_equation(T_d: float) -> None:
    method = DASO(FixMatch(tau=0.4, lam=0.7), T_p=0.3, T_d=T_d, w_align=0.6, D=2, warmup=0.0, m=0.9)
    net, (labeled, unlabeled) = net_of(method), tiny_batch()
    queue, m = net.part("prototypes", Queues), (0.4, 0.3, 0.2, 0.1)
    queue.keys.copy_(torch.randn(queue.keys.shape, generator=torch.Generator().manual_seed(2)))
    queue.filled.fill_(True)
    net.part("shares", Shares).m.copy_(torch.tensor(m))
    prototypes = queue.keys.mean(dim=1).clone()
    p_w, p_s = p_of(net.classifier, unlabeled.weak).tolist(), p_of(net.classifier, unlabeled.strong)

    def near(z: Tensor) -> Tensor:
        cosines = torch.stack([(z * c).sum() / z.norm() / c.norm() for c in prototypes]) / 0.3
        return cosines.exp() / cosines.exp().sum()

    z_w, z_s = net.psi(unlabeled.weak).detach(), net.psi(unlabeled.strong)
    expected, labels = torch.zeros(()), []
    for j, row in enumerate(p_w):
        q, y = near(z_w[j]).tolist(), max(range(K), key=row.__getitem__)
        v = (m[y] / max(m)) ** (1 / T_d)
        target = [(1 - v) * a + v * b for a, b in zip(row, q, strict=True)]
        labels.append(max(range(K), key=target.__getitem__))
        if max(row) >= 0.4:
            expected = expected - sum(t * p_s[j, k].log() for k, t in enumerate(target)) / 12
        expected = expected - 0.6 * sum(b * s.log() for b, s in zip(q, near(z_s[j]), strict=True)) / 12
    losses = method.objective(net, labeled, unlabeled)
    torch.testing.assert_close(losses.terms["unlabeled"], 0.7 * expected, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], 0.7 * expected)
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    assert losses.pseudo is not None
    assert losses.pseudo.y.tolist() == labels
    shares = [0.9 * old + 0.1 * labels.count(k) / 12 for k, old in enumerate(m)]
    assert net.part("shares", Shares).m.tolist() == pytest.approx(shares, abs=1e-5)


def test_even_shares_give_the_prototypes_label_alone() -> None:
    method = DASO(FixMatch(tau=0.0), D=1, warmup=0.0)
    net, (_, unlabeled) = net_of(method), tiny_batch()
    net.part("prototypes", Queues).filled.fill_(True)
    u = Unlabeled(unlabeled.index, weak=net.psi(unlabeled.weak).detach())
    target = method.label(net, net.h, u).target
    assert target is not None
    torch.testing.assert_close(target, torch.softmax(method.similarities(net, u.weak), dim=1))


def test_daso_warms_up_as_its_base() -> None:
    method, base = DASO(FixMatch(tau=0.4), warmup=0.8), FixMatch(tau=0.4)
    net, batch = net_of(method), tiny_batch()
    net.part("prototypes", Queues).filled.fill_(True)
    torch.testing.assert_close(method.objective(net, *batch).total, base.objective(net, *batch).total)


# OpenMatch


@pytest.mark.parametrize("step", [1, 50])
def test_openmatch_is_its_equation(step: int) -> None:
    method = OpenMatch(FixMatch(tau=0.3, lam=0.7), w_out=0.5, w_entropy=0.2, w_agree=0.4, start=0.1)
    net, (labeled, unlabeled) = net_of(method, step), tiny_batch()

    def in_out(x: Tensor) -> Tensor:
        """(B, K, 2) probabilities, one head at a time."""
        logits = net.parts["in_or_out"](net.psi(x))
        pairs = torch.stack([logits[:, :K], logits[:, K:]], dim=2)
        return pairs.exp() / pairs.exp().sum(dim=2, keepdim=True)

    losses = method.objective(net, labeled, unlabeled)
    on_l, expected = in_out(labeled.weak), L_L(net, labeled)
    for i, y in enumerate(labeled.y.tolist()):
        hardest = torch.stack([on_l[i, k, 1].log() for k in range(K) if k != y]).min()
        expected = expected - 0.5 * (on_l[i, y, 0].log() + hardest) / 8
    torch.testing.assert_close(losses.terms["labeled"], expected, rtol=1e-4, atol=1e-5)
    one, other = in_out(unlabeled.weak), in_out(unlabeled["weak_2"])
    p_w, p_s = p_of(net.classifier, unlabeled.weak).tolist(), p_of(net.classifier, unlabeled.strong)
    second = torch.zeros(())
    kept = []
    for j, row in enumerate(p_w):
        y = max(range(K), key=row.__getitem__)
        kept.append(max(row) >= 0.3 and (step < 10 or float(one[j, y, 0].detach()) > 0.5))
        if kept[-1]:
            second = second - p_s[j, y].log() / 12
    entropy = sum(-(p * p.log()).sum(dim=2).mean() for p in (one, other)) / 2
    second = second + 0.2 * entropy + 0.4 * (one - other).square().sum(dim=(1, 2)).mean()
    torch.testing.assert_close(losses.terms["unlabeled"], 0.7 * second, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], 0.7 * second)
    assert losses.pseudo is not None
    assert losses.pseudo.keep.tolist() == kept
    assert (sum(kept) < 12) is (step == 50)


# CReST+


def test_the_surest_of_each_class_are_chosen_and_fewest_of_the_most_frequent() -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.3, 0.7], [0.4, 0.6]])
    assert choose(p, torch.tensor([0.8, 0.2]), 1.0).tolist() == [0, -1, -1, -1, 1, 1]  # 0.2 / 0.8 of four, all of two
    assert choose(p, torch.tensor([0.8, 0.2]), 2.0).tolist() == [0, 0, -1, -1, 1, 1]
    assert choose(p, torch.tensor([0.5, 0.5]), 3.0).tolist() == [0, 0, 0, 0, 1, 1]


def test_crest_learns_chosen_images_as_if_they_were_labeled() -> None:
    method, base = CReST(FixMatch(tau=1.0)), FixMatch(tau=1.0)
    net, (labeled, unlabeled) = net_of(method), tiny_batch()
    chosen = net.part("chosen", Chosen)
    chosen.y[unlabeled.index[:3]] = torch.tensor([2, 0, 1])
    p = p_of(net.classifier, unlabeled.weak)
    extra = -(p[0, 2].log() + p[1, 0].log() + p[2, 1].log())
    expected = (8 * base.objective(net, labeled, unlabeled).terms["labeled"] + extra) / 11
    torch.testing.assert_close(method.objective(net, labeled, unlabeled).terms["labeled"], expected)


@pytest.mark.parametrize(("round_", "t"), [(0, 1.0), (5, 0.5)])
def test_crest_aligns_labels_with_a_flatter_and_flatter_prior(round_: int, t: float) -> None:
    method = CReST(FixMatch(tau=0.0), t=0.5)
    net = logit_net(method)
    net.parts[PART] = Prior((1, 1, 1))
    net.part(PART, Prior).pool.copy_(torch.tensor([0.64, 0.32, 0.04]))
    chosen, mean = net.part("chosen", Chosen), (0.5, 0.3, 0.2)
    chosen.p.copy_(torch.tensor(mean))
    chosen.round.fill_(round_)
    p = torch.softmax(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    y = method.label(net, net.h, Unlabeled(torch.arange(40), weak=p.log())).y
    expected = [max(range(3), key=lambda k: row[k] * (0.64, 0.32, 0.04)[k] ** t / mean[k]) for row in p.tolist()]
    assert y.tolist() == expected


def test_crest_surveys_between_its_rounds() -> None:
    method = CReST(FixMatch(), generations=3)
    assert [t for t in range(31) if method.survey_due(t, 10)] == [10, 20, 30]
    assert method.rounds == 3
    net = tiny_net(method, unlabeled=12)
    _, unlabeled = tiny_batch()
    pool = [Unlabeled(torch.arange(12), weak=unlabeled.weak)]
    method.survey(net, net.classifier, pool)
    chosen = net.part("chosen", Chosen)
    assert int(chosen.round) == 1
    assert chosen.y.tolist() == net.classifier.eval()(unlabeled.weak).argmax(dim=1).tolist(), (
        "an even pool: all of them"
    )
    assert math.isclose(float(chosen.p.sum()), 1.0, abs_tol=1e-5)
