"""FreeMatch, SoftMatch, AdaMatch, CoMatch and SimMatch against references retyped sample by sample, and their traps.

The formulas are those of the public code that docs/concepts/methods/thresholds.md names file by file.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import AdaMatch, CoMatch, FixMatch, FreeMatch, Method, SimMatch, SoftMatch, make_method
from selftrain.methods.adamatch import LabeledPredictions
from selftrain.methods.comatch import Memory, graph_contrast
from selftrain.methods.freematch import RunningPredictions
from selftrain.methods.prior import PART, Prior
from selftrain.methods.self_tuning import Queues
from selftrain.methods.simmatch import Window
from selftrain.methods.softmatch import ConfidenceSpread
from selftrain.nn.network import Network
from tests.oracles.references import L_L, assert_same_gradient, logit_net, p_of, through
from tests.tiny import K, tiny_batch, tiny_net

Rows = list[list[float]]
EARLIER = (0.4, 0.3, 0.2, 0.1)
"""an earlier mean prediction"""


def under_way(method: Method, step: int = 5000) -> Network:
    """A network late in training, where m_t = m."""
    net = tiny_net(method, steps=10_000).eval()
    with torch.no_grad():
        net.h.weight.mul_(4)  # type: ignore[operator]
    net.step.fill_(step)
    return net


def weak_and_strong(net: Network, u: Unlabeled, h: nn.Module | None = None) -> tuple[Rows, Tensor]:
    """p_w as numbers, and p_s with its gradient."""
    return p_of(net.classifier, u.weak).tolist(), p_of(through(net.psi, h or net.h), u.strong)


def column_means(rows: Rows) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def averaged(old: list[float], new: list[float], m: float) -> list[float]:
    return [m * a + (1 - m) * b for a, b in zip(old, new, strict=True)]


def normalised(values: list[float]) -> list[float]:
    return [value / sum(values) for value in values]


def aligned(rows: Rows, target: list[float], mean: list[float]) -> Rows:
    return [normalised([p * t / q for p, t, q in zip(row, target, mean, strict=True)]) for row in rows]


def best(row: list[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def check(net: Network, method: Method, batch: tuple[Labeled, Unlabeled], unlabeled: Tensor) -> None:
    """Compare both terms and the gradient of the second with their references."""
    torch.manual_seed(3)
    losses = method.objective(net, *batch)
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, batch[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses.terms["unlabeled"], unlabeled, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], unlabeled)


ALL = [
    FreeMatch(),
    SoftMatch(),
    AdaMatch(ramp=0.0, interpolate=False),
    CoMatch(tau=0.0, dim=4),
    SimMatch(tau=0.0, dim=4),
]


@pytest.mark.parametrize("method", ALL, ids=lambda m: str(m.name))
def test_no_gradient_flows_through_the_weak_view(method: Method) -> None:
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    views = {name: unlabeled[name].clone().requires_grad_() for name in method.views.unlabeled}
    torch.autograd.backward(method.objective(net, labeled, unlabeled.with_views(views)).total)
    assert views["weak"].grad is None
    strong = views["strong"].grad
    assert strong is not None
    assert strong.abs().sum() > 0


@pytest.mark.parametrize("method", ALL, ids=lambda m: str(m.name))
def test_a_label_changes_no_state(method: Method) -> None:
    net = tiny_net(method).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    _, u = net.encode(method.views, *tiny_batch())
    first, second = (method.label(net, net.h, u) for _ in range(2))  # type: ignore[attr-defined]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(first.y, second.y)
    assert torch.equal(first.counted, second.counted)


@pytest.mark.parametrize("name", ["freematch", "softmatch", "adamatch"])
def test_running_values_start_as_means(name: str) -> None:
    """m_t = min(m, 1 - 1/(t + 1)): after three steps each of them counts a third, and with mean_start=false 1 - m."""
    for mean_start in (True, False):
        method = make_method(name, overrides={"m": 0.9, "mean_start": mean_start})
        net, seen = logit_net(method), []
        start = net.parts[name].values.clone()  # type: ignore[operator]
        for step in range(3):
            net.step.fill_(step)
            rows = torch.softmax(torch.randn(6, 3), dim=1)
            seen.append(rows.mean(dim=0))
            z = rows.log()
            labels = Labeled(torch.tensor([0, 1]), weak=torch.zeros(2, 3))
            method.objective(net, labels, Unlabeled(torch.arange(6), weak=z, strong=z))
        found = net.parts[name].values
        place = {"freematch": slice(1, 4), "softmatch": slice(2, 5), "adamatch": slice(4, 7)}[name]
        expected = torch.stack(seen).mean(dim=0)
        if not mean_start:
            expected = 0.9**3 * start[place] + sum(0.1 * 0.9 ** (2 - i) * p for i, p in enumerate(seen))
        torch.testing.assert_close(found[place], expected, rtol=1e-4, atol=1e-5)  # type: ignore[index]


# FreeMatch


def set_running(net: Network, tau: float, p: tuple[float, ...], hist: tuple[float, ...]) -> None:
    net.part("freematch", RunningPredictions).values.copy_(torch.tensor([tau, *p, *hist]))


@pytest.mark.parametrize("w_f", [0.0, 0.05])
def test_freematch_is_its_equation(w_f: float) -> None:
    method = FreeMatch(m=0.9, w_f=w_f, lam=0.7)
    net, batch = under_way(method), tiny_batch()
    hist = (0.25, 0.25, 0.3, 0.2)
    set_running(net, 0.6, EARLIER, hist)
    p_w, p_s = weak_and_strong(net, batch[1])
    tau = 0.9 * 0.6 + 0.1 * sum(map(max, p_w)) / 12
    p = averaged(list(EARLIER), column_means(p_w), 0.9)
    labels = [best(row) for row in p_w]
    shares = averaged(list(hist), [labels.count(k) / 12 for k in range(K)], 0.9)
    keep = [max(row) >= tau * p[y] / max(p) for row, y in zip(p_w, labels, strict=True)]
    assert 0 < sum(keep) < 12
    loss = torch.stack([-p_s[j, labels[j]].log() for j in range(12) if keep[j]]).sum() / 12
    # Self-adaptive fairness as in the public code: 1/0 counts as 0, and log(0 + 1e-12) as a constant.
    kept = p_s[torch.tensor(keep)]
    counts = [int((kept.argmax(dim=1) == k).sum()) / len(kept) for k in range(K)]
    a = normalised([p[k] / shares[k] for k in range(K)])
    b = torch.stack([kept[:, k].mean() / counts[k] if counts[k] else 0 * kept[0, 0] for k in range(K)])
    public = sum(a[k] * (b[k] / b.sum() + 1e-12).log() for k in range(K))
    constant = sum(a[k] * math.log(1e-12) for k in range(K) if not counts[k])
    check(net, method, batch, 0.7 * (loss + w_f * (public - constant)))
    found = net.part("freematch", RunningPredictions).values.tolist()
    assert found == pytest.approx([tau, *p, *shares], abs=1e-5)


def test_freematch_thresholds_follow_the_running_prediction() -> None:
    method = FreeMatch(m=1.0, mean_start=False, w_f=0.0)
    net = logit_net(method, classes=2)
    set_running(net, 0.8, (0.6, 0.4), (0.5, 0.5))
    p = torch.tensor([[0.81, 0.19], [0.79, 0.21], [0.46, 0.54], [0.47, 0.53]])
    f_hat = method.label(net, net.h, Unlabeled(torch.arange(4), weak=p.log()))
    assert f_hat.keep.tolist() == [True, False, True, False]  # thresholds 0.8 and 0.5333


def test_freematch_with_nothing_kept_has_no_loss() -> None:
    method = FreeMatch(tau_min=1.0, w_f=0.05)
    net, (labeled, unlabeled) = under_way(method), tiny_batch()
    set_running(net, 1.0, (0.25,) * 4, (0.25,) * 4)
    losses = method.objective(net, labeled, unlabeled)
    assert losses.terms["unlabeled"].item() == 0.0
    losses.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_freematch_with_uniform_shares_and_a_fixed_confidence_is_fixmatch() -> None:
    method, other = FreeMatch(m=1.0, mean_start=False, w_f=0.0), FixMatch(tau=0.5)
    net, batch = under_way(method), tiny_batch()
    set_running(net, 0.5, (0.25,) * 4, (0.25,) * 4)
    torch.testing.assert_close(method.objective(net, *batch).total, other.objective(net, *batch).total)


def test_the_fairness_of_freematch_fades_on_a_pool_unlike_the_labels() -> None:
    method = FreeMatch(w_f=0.05, tau_max=0.3)
    net, batch = under_way(method), tiny_batch()
    values = []
    for pool in (None, (0.25,) * 4, (0.7, 0.1, 0.1, 0.1)):
        if pool is not None:
            net.parts[PART] = Prior((1,) * 4)
            net.part(PART, Prior).pool.copy_(torch.tensor(pool))
        set_running(net, 0.3, EARLIER, (0.25,) * 4)
        values.append(method.objective(net, *batch).terms["unlabeled"].item())
    set_running(net, 0.3, EARLIER, (0.25,) * 4)
    without = FreeMatch(w_f=0.0, tau_max=0.3).objective(net, *batch).terms["unlabeled"].item()
    assert values[0] == pytest.approx(values[1])
    assert values[2] == pytest.approx(without)
    assert values[0] != pytest.approx(without)


# SoftMatch


@pytest.mark.parametrize("uniform", [False, True], ids=["not aligned", "aligned"])
def test_softmatch_is_its_equation(uniform: bool) -> None:
    method = SoftMatch(m=0.9, lam=0.7, aligned=uniform)
    net, batch = under_way(method), tiny_batch()
    net.part("softmatch", ConfidenceSpread).values.copy_(torch.tensor([0.6, 0.04, *EARLIER]))
    p_w, p_s = weak_and_strong(net, batch[1])
    mean = averaged(list(EARLIER), column_means(p_w), 0.9)
    a = aligned(p_w, [0.25] * 4, mean) if uniform else p_w
    sure = [max(row) for row in a]
    now = sum(sure) / 12
    variance = sum((s - now) ** 2 for s in sure) / 11
    mu, v = 0.9 * 0.6 + 0.1 * now, 0.9 * 0.04 + 0.1 * variance
    weight = [math.exp(-4 * min(s - mu, 0) ** 2 / (2 * v)) for s in sure]
    assert min(weight) < 0.9
    expected = sum(weight[j] * -p_s[j, best(p_w[j])].log() for j in range(12)) / 12
    assert isinstance(expected, Tensor)
    check(net, method, batch, 0.7 * expected)
    assert net.part("softmatch", ConfidenceSpread).values.tolist() == pytest.approx([mu, v, *mean], abs=1e-5)


def weight_of(values: list[float], p: list[list[float]]) -> list[float]:
    method = SoftMatch(m=1.0, mean_start=False, aligned=False)
    net = logit_net(method, classes=2)
    net.part("softmatch", ConfidenceSpread).values.copy_(torch.tensor(values))
    weight = method.label(net, net.h, Unlabeled(torch.arange(len(p)), weak=torch.tensor(p).log())).weight
    assert weight is not None
    return [float(value) for value in weight]


def test_the_weight_of_softmatch_falls_below_the_mean_only() -> None:
    p = [[0.6, 0.4], [0.8, 0.2], [0.95, 0.05]]
    assert weight_of([0.8, 0.04, 0.5, 0.5], p) == pytest.approx([math.exp(-2), 1.0, 1.0], abs=1e-4)
    assert weight_of([0.8, 0.0, 0.5, 0.5], p) == pytest.approx([0.0, 1.0, 1.0], abs=1e-4), "v = 0 is a cut at mu"


def test_softmatch_survives_a_single_sample() -> None:
    method = SoftMatch(m=0.9)
    net = logit_net(method)
    f_hat = method.label(net, net.h, Unlabeled(torch.arange(1), weak=torch.zeros(1, 3)))
    assert f_hat.weight is not None
    assert f_hat.weight.isfinite().all()
    assert f_hat.note is not None
    assert f_hat.note[1] == 1.0, "one sample has no variance: the earlier one stays"


def test_softmatch_aligns_with_the_pool() -> None:
    method = SoftMatch(m=1.0, mean_start=False)
    net = logit_net(method)
    p = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]])
    net.part("softmatch", ConfidenceSpread).values.copy_(torch.tensor([0.6, 0.04, 0.6, 0.3, 0.1]))
    for pool in ((1 / 3,) * 3, (0.6, 0.3, 0.1)):
        net.parts[PART] = Prior((1, 1, 1))
        net.part(PART, Prior).pool.copy_(torch.tensor(pool))
        weight = method.label(net, net.h, Unlabeled(torch.arange(2), weak=p.log())).weight
        a = aligned(p.tolist(), list(pool), [0.6, 0.3, 0.1])
        expected = [math.exp(-4 * min(max(row) - 0.6, 0) ** 2 / 0.08) for row in a]
        assert weight is not None
        assert weight.tolist() == pytest.approx(expected, abs=1e-5)


# AdaMatch


def set_labeled(net: Network, c: float, p_l: tuple[float, ...], p_u: tuple[float, ...]) -> None:
    net.part("adamatch", LabeledPredictions).values.copy_(torch.tensor([c, *p_l, *p_u]))


def test_adamatch_is_its_equation() -> None:
    method = AdaMatch(tau=0.8, m=0.9, lam=0.7, interpolate=False, ramp=0.5)
    net, batch = under_way(method, step=2500), tiny_batch()
    p_l = (0.3, 0.3, 0.2, 0.2)
    set_labeled(net, 0.7, p_l, EARLIER)
    p_w, p_s = weak_and_strong(net, batch[1])
    on_labels = p_of(net.classifier, batch[0].weak).tolist()
    p_u = averaged(list(EARLIER), column_means(p_w), 0.9)
    a = aligned(p_w, list(p_l), p_u)
    keep = [max(row) >= 0.8 * 0.7 for row in a]
    assert 0 < sum(keep) < 12
    loss = torch.stack([-p_s[j, best(a[j])].log() for j in range(12) if keep[j]]).sum() / 12
    ramp = 0.5 - 0.5 * math.cos(min(math.pi, 2 * math.pi * 2500 / 10_000))
    assert ramp == pytest.approx(0.5)
    check(net, method, batch, 0.7 * ramp * loss)
    c = 0.9 * 0.7 + 0.1 * sum(map(max, on_labels)) / 8
    expected = [c, *averaged(list(p_l), column_means(on_labels), 0.9), *p_u]
    assert net.part("adamatch", LabeledPredictions).values.tolist() == pytest.approx(expected, abs=1e-5)


def test_adamatch_without_alignment_and_with_full_confidence_is_fixmatch() -> None:
    method, other = AdaMatch(tau=0.5, m=1.0, mean_start=False, ramp=0.0, interpolate=False), FixMatch(tau=0.5)
    net, batch = under_way(method), tiny_batch()
    set_labeled(net, 1.0, EARLIER, EARLIER)
    torch.testing.assert_close(method.objective(net, *batch).total, other.objective(net, *batch).total)


def test_adamatch_aligns_with_the_pool_where_its_frequencies_are_not_those_of_the_labels() -> None:
    method = AdaMatch(m=1.0, mean_start=False)
    net = logit_net(method)
    set_labeled(net, 0.5, (0.5, 0.3, 0.2), (0.4, 0.3, 0.3))
    net.parts[PART] = Prior((2, 1, 1))
    net.part(PART, Prior).pool.copy_(torch.tensor([0.2, 0.4, 0.4]))
    p = torch.tensor([[0.5, 0.3, 0.2], [0.42, 0.3, 0.28]])
    f_hat = method.label(net, net.h, Unlabeled(torch.arange(2), weak=p.log()))
    target = [0.5 * 0.2 / 0.5, 0.3 * 0.4 / 0.25, 0.2 * 0.4 / 0.25]
    assert f_hat.y.tolist() == [best(row) for row in aligned(p.tolist(), target, [0.4, 0.3, 0.3])] == [1, 1]


def test_adamatch_draws_labeled_logits_between_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    method = AdaMatch(lam=0.0)
    batch = tiny_batch()

    def labeled_loss(r: float) -> float:
        monkeypatch.setattr(torch, "rand_like", lambda z: torch.full_like(z, r))
        net = tiny_net(method)  # in training mode, where batch norm differs between the passes
        return method.objective(net, *batch).terms["labeled"].item()

    net = tiny_net(method)
    l, _ = net.encode(method.views, *batch)
    together = torch.nn.functional.cross_entropy(net.h(l.weak), batch[0].y).item()
    alone = torch.nn.functional.cross_entropy(net.h(tiny_net(method).psi(batch[0].weak)), batch[0].y).item()
    assert labeled_loss(0.0) == pytest.approx(together, abs=1e-5), "r = 0 removes the interpolation"
    assert labeled_loss(1.0) == pytest.approx(alone, abs=1e-5)
    assert abs(together - alone) > 1e-3
    assert AdaMatch(interpolate=False, lam=0.0).objective(tiny_net(method), *batch).total.item() == pytest.approx(
        together, abs=1e-5
    )


# CoMatch


def embeddings(net: Network, z: Tensor) -> Tensor:
    g: Tensor = net.parts["projector"](net.psi(z))
    return torch.nn.functional.normalize(g, dim=1)


@pytest.mark.parametrize("full", [False, True], ids=["memory filling", "memory full"])
def test_comatch_is_its_equation(full: bool) -> None:
    method = CoMatch(tau=0.6, alpha=0.8, T=0.3, connect=0.4, contrast=0.6, dim=4, queue=10, window=2, lam=0.7)
    net, batch = under_way(method), tiny_batch()
    memory, g = net.part("memory", Memory), torch.Generator().manual_seed(5)
    memory.g.copy_(torch.nn.functional.normalize(torch.randn(10, 4, generator=g), dim=1))
    memory.p.copy_(torch.softmax(torch.randn(10, K, generator=g), dim=1))
    memory.window.copy_(torch.tensor([EARLIER, (0.1, 0.2, 0.3, 0.4)]))
    memory.seen.fill_(10 if full else 9)
    kept_g, kept_p = memory.g.tolist(), memory.p.tolist()
    p_w, p_s = weak_and_strong(net, batch[1])
    a = aligned(p_w, [0.25] * 4, [0.25] * 4)
    q = []
    for row, own in zip(a, embeddings(net, batch[1].weak).tolist(), strict=True):
        similar = normalised([math.exp(sum(x * y for x, y in zip(own, k, strict=True)) / 0.3) for k in kept_g])
        near = [sum(s * p[c] for s, p in zip(similar, kept_p, strict=True)) for c in range(K)]
        q.append([0.8 * x + 0.2 * y for x, y in zip(row, near, strict=True)] if full else row)
    keep = [max(row) >= 0.6 for row in q]
    assert 0 < sum(keep) < 12
    loss = sum(-sum(q[j][k] * p_s[j, k].log() for k in range(K)) for j in range(12) if keep[j]) / 12
    one, other = embeddings(net, batch[1].strong), embeddings(net, batch[1]["strong_2"])
    contrast = torch.zeros(())
    for i in range(12):
        links = [1.0 if i == j else sum(x * y for x, y in zip(q[i], q[j], strict=True)) for j in range(12)]
        links = normalised([link if link >= 0.4 else 0.0 for link in links])
        near_i = (one[i] @ other.T / 0.3).exp()
        contrast = contrast - sum(links[j] * (near_i[j] / near_i.sum()).log() for j in range(12)) / 12
    check(net, method, batch, 0.7 * (loss + 0.6 * contrast))
    assert int(memory.seen) == (30 if full else 29) - (20 - 10), "of 20 rows at once the last 10 stay"
    torch.testing.assert_close(memory.window[0], torch.tensor(column_means(p_w)), rtol=1e-4, atol=1e-5)


def test_comatch_with_its_own_predictions_and_no_contrast_is_fixmatch_with_soft_targets() -> None:
    method = CoMatch(tau=0.5, alpha=1.0, contrast=0.0, dim=4)
    net, batch = under_way(method), tiny_batch()
    p_w, p_s = weak_and_strong(net, batch[1])
    target = torch.tensor(p_w)
    expected = (-(target * p_s.log()).sum(dim=1) * (target.amax(dim=1) >= 0.5)).mean()
    check(net, method, batch, expected)


def test_a_graph_without_links_is_infonce() -> None:
    g_1, g_2 = (torch.nn.functional.normalize(torch.randn(5, 3), dim=1) for _ in range(2))
    q = torch.eye(5)
    expected = torch.nn.functional.cross_entropy(g_1 @ g_2.T / 0.2, torch.arange(5))
    torch.testing.assert_close(graph_contrast(g_1, g_2, q, 0.8, 0.2), expected)


def test_the_memory_of_comatch_forgets_the_oldest() -> None:
    memory = Memory(5, 1, 2, 1)
    for value in range(4):
        rows = torch.full((2, 1), float(value))
        memory.write(rows, rows.expand(2, 2))
    assert sorted(memory.g[:, 0].tolist()) == [1.0, 2.0, 2.0, 3.0, 3.0]
    assert int(memory.seen) == 8
    assert torch.equal(memory.g[:, 0], memory.p[:, 0])


# SimMatch


def test_simmatch_is_its_equation() -> None:
    method = SimMatch(tau=0.4, alpha=0.7, T=0.3, lam_in=0.6, dim=4, D=2, window=2, lam=0.7)
    net, batch = under_way(method), tiny_batch()
    bank, g = net.part("bank", Queues), torch.Generator().manual_seed(5)
    bank.keys.copy_(torch.nn.functional.normalize(torch.randn(K, 2, 4, generator=g), dim=2))
    bank.filled.fill_(True)
    bank.filled[2, 1] = False
    net.part("window", Window).means.copy_(torch.tensor([EARLIER, (0.1, 0.2, 0.3, 0.4)]))
    slots = [(k, bank.keys[k, d].clone()) for k in range(K) for d in range(2) if (k, d) != (2, 1)]
    p_w, p_s = weak_and_strong(net, batch[1])
    a = aligned(p_w, [0.25] * 4, [0.25] * 4)
    weak, strong = embeddings(net, batch[1].weak).detach(), embeddings(net, batch[1].strong)
    loss = between = torch.zeros(())
    keep = []
    for j in range(12):
        s = normalised([math.exp(float(weak[j] @ key) / 0.3) for _, key in slots])
        q = [
            0.7 * a[j][k] + 0.3 * sum(share for share, (c, _) in zip(s, slots, strict=True) if c == k) for k in range(K)
        ]
        t = normalised([share * a[j][k] for share, (k, _) in zip(s, slots, strict=True)])
        keep.append(max(q) >= 0.4)
        if keep[-1]:
            loss = loss - sum(q[k] * p_s[j, k].log() for k in range(K)) / 12
        similar = torch.stack([strong[j] @ key / 0.3 for _, key in slots]).exp()
        between = between - sum(x * y for x, y in zip(t, (similar / similar.sum()).log(), strict=True)) / 12
    assert 0 < sum(keep) < 12
    check(net, method, batch, 0.7 * (loss + 0.6 * between))
    torch.testing.assert_close(bank.keys.norm(dim=2), torch.ones(K, 2))
    assert bank.filled.all()


def test_simmatch_starts_without_labeled_samples_as_fixmatch_with_soft_targets() -> None:
    method = SimMatch(tau=0.5, dim=4)
    net, batch = under_way(method), tiny_batch()
    p_w, p_s = weak_and_strong(net, batch[1])
    target = torch.tensor(p_w)
    check(net, method, batch, (-(target * p_s.log()).sum(dim=1) * (target.amax(dim=1) >= 0.5)).mean())


def test_with_one_slot_per_class_and_uniform_predictions_the_similarities_stay() -> None:
    method = SimMatch(dim=4, D=1)
    net = logit_net(method)
    bank = net.part("bank", Queues)
    bank.filled.fill_(True)
    f_hat = method.label(net, net.h, Unlabeled(torch.arange(2), weak=torch.ones(2, 3)))
    s = torch.softmax(method.similarities(net, torch.ones(2, 3)), dim=1)
    assert f_hat.note is not None
    torch.testing.assert_close(f_hat.note[:, :3], s)
