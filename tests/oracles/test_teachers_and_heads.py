"""Self-Tuning, Noisy Student, methods of several heads, and ALI against references retyped from the equations."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import (
    ALI,
    CoTraining,
    FixMatch,
    Losses,
    Method,
    MutualLearning,
    NoisyStudent,
    SelfTuning,
    TriTraining,
)
from selftrain.methods.co_training import overlap
from selftrain.methods.noisy_student import TeacherLogits
from selftrain.methods.self_tuning import Queues, group_contrast
from selftrain.methods.tri_training import agreement
from selftrain.nn.average import Average
from selftrain.nn.layers import Committee
from selftrain.nn.network import Network
from tests.oracles.references import L_L, assert_same_gradient, cross, kl, p_of, randomise, through
from tests.tiny import K, digits_loop, go_on, gradients, tiny_batch, tiny_net


def flow(net: Network, loss: Tensor) -> dict[str, bool]:
    return {part: size > 0 for part, size in gradients(net, loss).items()}


def no_gradient(module: nn.Module) -> bool:
    return all(p.grad is None for p in module.parameters())


# Self-Tuning


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in rows])


def contrast(q: Tensor, own: Tensor, queues: Tensor, y: Tensor, T: float) -> Tensor:
    """PGC, key by key."""
    n_classes, D, _ = queues.shape
    losses = []
    for q_i, k_i, c in zip(q, own, y.tolist(), strict=True):
        every = [k_i, *(queues[a, b] for a in range(n_classes) for b in range(D))]
        total = torch.stack([torch.exp(q_i @ k / T) for k in every]).sum()
        positives = [k_i, *(queues[c, b] for b in range(D))]
        losses.append(-torch.stack([torch.log(torch.exp(q_i @ k / T) / total) for k in positives]).sum() / (D + 1))
    return torch.stack(losses).mean()


def self_tuning_net(method: SelfTuning) -> Network:
    net = tiny_net(method).eval()
    randomise(net.parts["key"], 5)  # the key encoder differs from psi
    return net


def test_self_tuning_is_its_equation_with_the_queues_from_before_the_batch() -> None:
    method = SelfTuning(lam=0.7, D=3, dim=5, T=0.3)
    net = self_tuning_net(method)
    labeled, unlabeled = tiny_batch()
    before = net.part("queues", Queues).keys.clone()
    terms = method.objective(net, labeled, unlabeled).terms
    assert not torch.equal(net.part("queues", Queues).keys, before)

    query = through(net.psi, net.parts["projector"])
    key = net.part("key", Average).module
    q_l, q_u = unit(query(labeled.strong)), unit(query(unlabeled.strong))
    k_l, k_u = (unit(key(x)).detach() for x in (labeled["strong_2"], unlabeled["strong_2"]))
    y_u = p_of(net.classifier, unlabeled.strong).argmax(dim=1)
    expected = {
        "labeled": L_L(net, labeled, "strong"),
        "contrast_labeled": 0.7 * contrast(q_l, k_l, before, labeled.y, 0.3),
        "contrast_unlabeled": 0.7 * contrast(q_u, k_u, before, y_u, 0.3),
    }
    assert set(terms) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value)
        assert_same_gradient(net.parameters(), terms[name], value)


def test_equal_similarities_cost_the_log_of_the_number_of_keys() -> None:
    q = unit(torch.randn(4, 6))
    queues = torch.zeros(3, 5, 6)
    loss = group_contrast(q, torch.zeros(4, 6), queues, torch.tensor([0, 1, 2, 0]), 0.07)
    assert loss.item() == pytest.approx(math.log(1 + 5 * 3), abs=1e-5)


def test_the_contrast_teaches_psi_and_projector_and_never_h() -> None:
    method = SelfTuning(D=3, dim=5)
    net = self_tuning_net(method)
    terms = method.objective(net, *tiny_batch()).terms
    assert flow(net, terms["contrast_unlabeled"]) == {"psi": True, "h": False, "projector": True}
    assert no_gradient(net.h)
    assert flow(net, terms["contrast_labeled"]) == {"psi": True, "h": False, "projector": True}
    assert no_gradient(net.h)
    assert flow(net, terms["labeled"]) == {"psi": True, "h": True, "projector": False}
    assert no_gradient(net.parts["key"])


def test_self_tuning_without_contrast_is_supervised_on_strong_views() -> None:
    method = SelfTuning(lam=0.0, D=3, dim=5)
    net = self_tuning_net(method)
    labeled, unlabeled = tiny_batch()
    loss = method.objective(net, labeled, unlabeled).total
    assert_same_gradient(net.parameters(), loss, L_L(net, labeled, "strong"))


def test_queues_wrap_and_keep_the_last_keys_of_each_class() -> None:
    queues = Queues(3, 4, 2)
    keys, places = queues.keys.clone(), [0, 0, 0]
    g = torch.Generator().manual_seed(0)
    for n in (3, 1, 20, 7, 2):  # 20 at once are more than a class can hold
        k, y = torch.randn(n, 2, generator=g), torch.randint(3, (n,), generator=g)
        queues.enqueue(k, y)
        for key, c in zip(k, y.tolist(), strict=True):
            keys[c, places[c]] = key
            places[c] = (places[c] + 1) % 4
        assert torch.equal(queues.keys, keys)
        assert queues.pointers.tolist() == places


def test_of_more_keys_than_a_queue_holds_the_last_remain() -> None:
    queues = Queues(2, 3, 1)
    other = queues.keys[1].clone()
    queues.enqueue(torch.arange(8.0)[:, None], torch.zeros(8, dtype=torch.int64))
    assert sorted(queues.keys[0].flatten().tolist()) == [5.0, 6.0, 7.0]
    assert torch.equal(queues.keys[1], other)
    queues.enqueue(torch.tensor([[8.0]]), torch.tensor([0]))  # takes the place of the oldest
    assert sorted(queues.keys[0].flatten().tolist()) == [6.0, 7.0, 8.0]


def test_true_and_pseudo_labels_choose_the_queues() -> None:
    method = SelfTuning(D=20, dim=5)
    net = self_tuning_net(method)
    labeled, unlabeled = tiny_batch()
    method.objective(net, labeled, unlabeled)
    y = torch.cat([labeled.y, p_of(net.classifier, unlabeled.strong).argmax(dim=1)])
    assert net.part("queues", Queues).pointers.tolist() == torch.bincount(y, minlength=K).tolist()


def test_the_key_encoder_follows_once_a_step() -> None:
    method = SelfTuning(D=3, dim=5, m=0.9)
    net = self_tuning_net(method).train()
    before = [p.clone() for p in net.parts["key"].parameters()]
    method.objective(net, *tiny_batch())
    for p, old in zip(net.parts["key"].parameters(), before, strict=True):
        assert torch.equal(p, old)  # not in the objective
    method.after_step(net, 100)
    student = [*net.psi.parameters(), *net.parts["projector"].parameters()]
    for p, old, new in zip(net.parts["key"].parameters(), before, student, strict=True):
        torch.testing.assert_close(p, 0.9 * old + 0.1 * new.detach())
    for a, b in zip(net.parts["key"].buffers(), net.psi.buffers(), strict=True):
        assert torch.equal(a, b)


# Noisy Student


def remembered(net: Network) -> TeacherLogits:
    return net.part("teacher_logits", TeacherLogits)


@pytest.mark.parametrize("T", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_noisy_student_is_its_equation(T: float, tau: float) -> None:
    method = NoisyStudent(T=T, tau=tau, lam=0.7)
    net = tiny_net(method).eval()
    remembered(net).logits.copy_(torch.randn(50, K, generator=torch.Generator().manual_seed(2)))
    remembered(net).round.fill_(1)
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    z = remembered(net).logits[unlabeled.index]
    keep = torch.softmax(z, 1).amax(1) >= tau  # the temperature does not change what is kept
    expected = 0.7 * (cross(torch.softmax(z / T, 1), p_of(net.classifier, unlabeled.strong)) * keep).sum() / 12
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(losses.terms["unlabeled"], expected)
    assert_same_gradient(net.parameters(), losses.terms["unlabeled"], expected)
    assert losses.pseudo is not None
    assert torch.equal(losses.pseudo.y, z.argmax(1))


def test_the_first_round_and_a_weight_of_zero_are_supervised() -> None:
    labeled, unlabeled = tiny_batch()
    for method, round_ in ((NoisyStudent(), 0), (NoisyStudent(lam=0.0), 1)):
        net = tiny_net(method).eval()
        remembered(net).logits.copy_(torch.randn(50, K))
        remembered(net).round.fill_(round_)
        loss = method.objective(net, labeled, unlabeled).total
        torch.testing.assert_close(loss, L_L(net, labeled))
        assert_same_gradient(net.parameters(), loss, L_L(net, labeled))


def test_a_teacher_is_asked_between_rounds_only() -> None:
    method = NoisyStudent(students=2)
    assert method.rounds == 3
    assert [t for t in range(30) if method.survey_due(t, 10)] == [10, 20]


def test_the_teacher_answers_in_evaluation_mode_and_its_answers_stay_for_the_round() -> None:
    method = NoisyStudent(students=2)
    loop, stream, *_ = digits_loop(method, steps=3, batch=8, unlabeled=60)
    net = loop.net
    go_on(loop, stream, 3)
    assert (remembered(net).logits == 0).all()
    for round_ in (1, 2):
        teacher = copy.deepcopy(net.classifier).eval()
        go_on(loop, stream, 1)
        answers = remembered(net).logits.clone()
        for u in stream.pool(3 * round_, batch=7):
            with torch.no_grad():
                torch.testing.assert_close(answers[u.index], teacher(u.weak), rtol=1e-4, atol=1e-4)
        assert remembered(net).round.item() == round_
        assert net.training
        go_on(loop, stream, 2)
        assert torch.equal(remembered(net).logits, answers)


def test_answers_belong_to_their_samples_whatever_the_order() -> None:
    method = NoisyStudent()
    net = tiny_net(method, unlabeled=20).train()
    x = torch.randn(20, 5)
    pool = [Unlabeled(rows, weak=x[rows]) for rows in torch.arange(20).roll(7).chunk(3)]
    method.survey(net, net.classifier, pool)
    direct = copy.deepcopy(net.classifier).eval()(x).detach()
    torch.testing.assert_close(remembered(net).logits, direct)
    assert all(module.training for module in net.classifier.modules())


def test_every_student_starts_from_the_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    method = NoisyStudent(students=2)
    loop, stream, *_ = digits_loop(method, steps=3, batch=8, unlabeled=40)
    starts: list[dict[str, Tensor]] = []
    steps: list[int] = []
    momenta: list[int] = []

    def watched(self: Method, net: Network, labeled: Labeled, unlabeled: Unlabeled, turn: str = "all") -> Losses:
        if loop.step % 3 == 0:
            starts.append(copy.deepcopy(net.classifier.state_dict()))
            steps.append(int(net.step))
            momenta.append(len(loop.optimizers[0].optimizer.state))
        return original(self, net, labeled, unlabeled, turn)

    original = NoisyStudent.objective
    monkeypatch.setattr(NoisyStudent, "objective", watched)
    go_on(loop, stream, 9)
    assert len(starts) == 3
    assert steps == momenta == [0, 0, 0]
    for name, value in starts[0].items():
        assert torch.equal(value, starts[1][name])
        assert torch.equal(value, starts[2][name])
    assert any(not torch.equal(value, starts[0][name]) for name, value in loop.net.classifier.state_dict().items())


# Co-training and Mutual Learning


def two_heads(method: CoTraining) -> Network:
    net = tiny_net(method).eval()
    randomise(net.parts["h_2"], 3)
    return net


def heads_of(net: Network) -> tuple[nn.Module, nn.Module]:
    return net.h, net.parts["h_2"]


def pseudo_loss(net: Network, h: nn.Module, strong: Tensor, teacher: nn.Module, weak: Tensor, tau: float) -> Tensor:
    """L_U(psi, h, f_hat of the teacher)."""
    p_w, p_s = p_of(through(net.psi, teacher), weak), p_of(through(net.psi, h), strong)
    rows = [p_s[j, p.argmax()].log() for j, p in enumerate(p_w) if p.max() >= tau]
    assert 0 < len(rows) < len(weak) or tau == 0
    return -torch.stack(rows).sum() / len(weak)


def test_co_training_is_its_equation() -> None:
    method = CoTraining(tau=0.4, lam=0.7, gamma=0.2)
    net = two_heads(method)
    labeled, unlabeled = tiny_batch()
    terms = method.objective(net, labeled, unlabeled).terms
    h_1, h_2 = heads_of(net)
    W_1, W_2 = (torch.stack(list(h.weight)) for h in (h_1, h_2))  # type: ignore[arg-type]
    expected = {
        "labeled": L_L(net, labeled, "weak", h_1) + L_L(net, labeled, "weak_2", h_2),
        "unlabeled_1": 0.7 * pseudo_loss(net, h_1, unlabeled.strong, h_2, unlabeled["weak_2"], 0.4),
        "unlabeled_2": 0.7 * pseudo_loss(net, h_2, unlabeled["strong_2"], h_1, unlabeled.weak, 0.4),
        "overlap": 0.2 * sum((W_1[a] @ W_2[b]) ** 2 for a in range(K) for b in range(K)),
    }
    assert set(terms) == set(expected)
    for name, value in expected.items():
        assert isinstance(value, Tensor)
        torch.testing.assert_close(terms[name], value)
        assert_same_gradient(net.parameters(), terms[name], value)


@pytest.mark.parametrize("soft", [False, True])
def test_mutual_learning_is_its_equation(soft: bool) -> None:
    method = MutualLearning(tau=0.4, lam=0.7, soft=soft)
    net = two_heads(method)
    labeled, unlabeled = tiny_batch()
    terms = method.objective(net, labeled, unlabeled).terms
    h_1, h_2 = heads_of(net)
    torch.testing.assert_close(terms["labeled"], L_L(net, labeled, h=h_1) + L_L(net, labeled, h=h_2))
    for name, own, other in (("unlabeled_1", h_1, h_2), ("unlabeled_2", h_2, h_1)):
        if soft:
            target = p_of(through(net.psi, other), unlabeled.weak).detach()
            expected = 0.7 * kl(target, p_of(through(net.psi, own), unlabeled.strong)).mean()
        else:
            expected = 0.7 * pseudo_loss(net, own, unlabeled.strong, other, unlabeled.weak, 0.4)
        torch.testing.assert_close(terms[name], expected)
        assert_same_gradient(net.parameters(), terms[name], expected)


@pytest.mark.parametrize(
    "method", [CoTraining(tau=0.3), MutualLearning(tau=0.3), MutualLearning(soft=True)], ids=["co", "mutual", "soft"]
)
def test_a_head_that_teaches_gets_no_gradient_from_its_pupil(method: CoTraining) -> None:
    net = two_heads(method)
    terms = method.objective(net, *tiny_batch()).terms
    assert flow(net, terms["unlabeled_1"]) == {"psi": True, "h": True, "h_2": False}
    assert no_gradient(net.parts["h_2"])
    assert flow(net, terms["unlabeled_2"]) == {"psi": True, "h": False, "h_2": True}
    assert no_gradient(net.h)
    assert flow(net, terms["labeled"]) == {"psi": True, "h": True, "h_2": True}


def test_swapping_heads_and_views_swaps_the_losses() -> None:
    method = CoTraining(tau=0.4, gamma=0.1)
    net = two_heads(method)
    labeled, unlabeled = tiny_batch()
    swap = {"weak": "weak_2", "weak_2": "weak", "strong": "strong_2", "strong_2": "strong"}
    terms = method.objective(net, labeled, unlabeled).terms
    net.classifier.h, net.parts["h_2"] = net.parts["h_2"], net.classifier.h
    swapped = method.objective(
        net,
        labeled.with_views({a: labeled[b] for a, b in swap.items()}),
        unlabeled.with_views({a: unlabeled[b] for a, b in swap.items()}),
    ).terms
    for name, other in (
        ("labeled", "labeled"), ("overlap", "overlap"),
        ("unlabeled_1", "unlabeled_2"), ("unlabeled_2", "unlabeled_1"),
    ):  # fmt: skip
        torch.testing.assert_close(terms[name], swapped[other])
    assert not torch.equal(terms["unlabeled_1"], terms["unlabeled_2"])


@pytest.mark.parametrize("method", [CoTraining(tau=0.36), MutualLearning(tau=0.36)], ids=["co", "mutual"])
def test_equal_heads_on_equal_views_have_the_terms_of_fixmatch(method: CoTraining) -> None:
    net = tiny_net(method).eval()
    net.parts["h_2"] = copy.deepcopy(net.h)
    labeled, unlabeled = tiny_batch()
    same_l = labeled.with_views({"weak": labeled.weak, "weak_2": labeled.weak})
    weak, strong = unlabeled.weak, unlabeled.strong
    same_u = unlabeled.with_views({"weak": weak, "weak_2": weak, "strong": strong, "strong_2": strong})
    terms = method.objective(net, same_l, same_u).terms
    theirs = FixMatch(tau=0.36).objective(net, labeled, unlabeled).terms
    assert theirs["unlabeled"] > 0
    torch.testing.assert_close(terms["unlabeled_1"], theirs["unlabeled"])
    torch.testing.assert_close(terms["unlabeled_2"], theirs["unlabeled"])
    torch.testing.assert_close(terms["labeled"], 2 * theirs["labeled"])


@pytest.mark.parametrize("kind", [CoTraining, MutualLearning, TriTraining])
def test_heads_start_apart(kind: type[Method]) -> None:
    net = tiny_net(kind())
    weights = [h.weight for h in (net.h, *net.parts.values())]
    for i, a in enumerate(weights):
        for b in weights[:i]:
            assert not torch.equal(a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method",
    [
        CoTraining(lam=0.0, tau=0.0),
        CoTraining(tau=1.0),
        MutualLearning(lam=0.0, tau=0.0),
        TriTraining(lam=0.0, gamma=0.0),
        TriTraining(tau=1.0, gamma=0.0),
    ],
)
def test_without_unlabeled_weight_both_heads_are_supervised(method: Method) -> None:
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    loss = method.objective(net, labeled, unlabeled).total
    second = "weak_2" if type(method) is CoTraining else "weak"
    expected = L_L(net, labeled, "weak", net.h) + L_L(net, labeled, second, net.parts["h_2"])
    torch.testing.assert_close(loss, expected)
    assert_same_gradient(net.parameters(), loss, expected)


def test_heads_that_look_at_different_features_do_not_overlap() -> None:
    h_1, h_2 = nn.Linear(6, 3), nn.Linear(6, 3)
    with torch.no_grad():
        h_1.weight.copy_(torch.cat([torch.randn(3, 3), torch.zeros(3, 3)], dim=1))
        h_2.weight.copy_(torch.cat([torch.zeros(3, 3), torch.randn(3, 3)], dim=1))
    assert overlap(h_1, h_2).item() == 0.0
    assert overlap(h_1, h_1).item() > 0.0


def test_two_heads_predict_with_their_mean_softmax() -> None:
    method = CoTraining()
    net = two_heads(method)
    x = tiny_batch()[1].weak
    expected = (p_of(through(net.psi, net.h), x) + p_of(through(net.psi, net.parts["h_2"]), x)) / 2
    torch.testing.assert_close(p_of(method.predictor(net), x), expected)


# Tri-training


def three_heads(method: TriTraining) -> Network:
    net = tiny_net(method).eval()
    for seed, name in ((3, "h_2"), (4, "h_3")):
        net.parts[name] = copy.deepcopy(net.h)  # alike enough to agree at times
        randomise(net.parts[name], seed, 0.2)
    return net


@pytest.mark.parametrize("tau", [0.0, 0.36])
@pytest.mark.parametrize("third", [False, True])
def test_tri_training_is_its_equation(tau: float, third: bool) -> None:
    method = TriTraining(tau=tau, lam=0.7, gamma=0.2, third_labeled=third)
    net = three_heads(method)
    labeled, unlabeled = tiny_batch()
    terms = method.objective(net, labeled, unlabeled).terms
    heads = (net.h, net.parts["h_2"], net.parts["h_3"])
    p_w = [p_of(through(net.psi, h), unlabeled.weak).detach() for h in heads]
    expected_l = torch.stack([L_L(net, labeled, h=h) for h in (heads if third else heads[:2])]).sum()
    torch.testing.assert_close(terms["labeled"], expected_l)
    assert_same_gradient(net.parameters(), terms["labeled"], expected_l)
    for i, h in enumerate(heads):
        a, b = (p_w[j] for j in range(3) if j != i)
        p_s = p_of(through(net.psi, h), unlabeled.strong)
        rows = [
            -p_s[j, a[j].argmax()].log()
            for j in range(12)
            if a[j].argmax() == b[j].argmax() and a[j].max() >= tau and b[j].max() >= tau
        ]
        assert 0 < len(rows) < 12
        expected = 0.7 * torch.stack(rows).sum() / 12
        torch.testing.assert_close(terms[f"unlabeled_{i + 1}"], expected)
        assert_same_gradient(net.parameters(), terms[f"unlabeled_{i + 1}"], expected)
    W_1, W_2 = (h.weight for h in heads[:2])
    torch.testing.assert_close(terms["overlap"], 0.2 * (W_1 @ W_2.T).norm() ** 2)  # type: ignore[operator]


def test_the_third_head_sees_pseudo_labels_only() -> None:
    method = TriTraining()
    net = three_heads(method)
    terms = method.objective(net, *tiny_batch()).terms
    assert flow(net, terms["labeled"]) == {"psi": True, "h": True, "h_2": True, "h_3": False}
    assert no_gradient(net.parts["h_3"])
    assert flow(net, terms["overlap"]) == {"psi": False, "h": True, "h_2": True, "h_3": False}
    assert flow(net, terms["unlabeled_1"]) == {"psi": True, "h": True, "h_2": False, "h_3": False}
    assert flow(net, terms["unlabeled_2"]) == {"psi": True, "h": False, "h_2": True, "h_3": False}
    assert flow(net, terms["unlabeled_3"]) == {"psi": True, "h": False, "h_2": False, "h_3": True}


def test_heads_teach_where_they_agree_and_are_sure() -> None:
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    q = torch.tensor([[0.8, 0.2], [0.3, 0.7], [0.9, 0.1], [0.1, 0.9]])
    assert agreement(p, q, 0.0).keep.tolist() == [True, False, True, True]
    assert agreement(p, q, 0.8).keep.tolist() == [True, False, False, True]
    assert agreement(p, q, 0.0).y[[0, 2, 3]].tolist() == [0, 0, 1]


def test_disagreement_everywhere_costs_nothing() -> None:
    method = TriTraining(gamma=0.0)
    net = tiny_net(method).eval()
    with torch.no_grad():
        for k, h in enumerate((net.h, net.parts["h_2"], net.parts["h_3"])):
            h.weight.zero_()  # type: ignore[operator]
            h.bias.copy_(torch.eye(K)[k])  # type: ignore[operator]
    terms = method.objective(net, *tiny_batch()).terms
    assert [terms[f"unlabeled_{i}"].item() for i in (1, 2, 3)] == [0.0, 0.0, 0.0]


class Says(nn.Module):
    """A head with one answer."""

    def __init__(self, *p: float) -> None:
        super().__init__()
        self.p = torch.tensor([p])

    def forward(self, x: Tensor) -> Tensor:
        return self.p.log().expand(len(x), -1)


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        ([(0.98, 0.01, 0.01), (0.3, 0.4, 0.3), (0.3, 0.4, 0.3)], 1),  # two votes beat one, however sure
        ([(0.5, 0.3, 0.2), (0.2, 0.45, 0.35), (0.1, 0.1, 0.8)], 2),  # a vote each: the mean decides
    ],
)
def test_three_heads_vote_and_the_mean_softmax_breaks_ties(
    answers: list[tuple[float, float, float]], winner: int
) -> None:
    committee = Committee(*(Says(*p) for p in answers), vote=True)
    assert committee(torch.zeros(2, 1)).argmax(dim=1).tolist() == [winner, winner]
    predictor = TriTraining().predictor(tiny_net(TriTraining()))
    assert isinstance(predictor.h, Committee)
    assert predictor.h.vote
    assert len(predictor.h.heads) == 3


# ALI


def ali_net(method: ALI) -> Network:
    return tiny_net(method).eval()


def test_ali_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    method = ALI(lam=0.7, z=3)
    net = ali_net(method)
    labeled, unlabeled = tiny_batch()
    z = torch.randn(12, 3)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: z)
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.full_like(x, -0.7))
    d_terms = method.objective(net, labeled, unlabeled, "discriminator").terms
    g_terms = method.objective(net, labeled, unlabeled, "generator").terms

    def P(x: Tensor, z: Tensor) -> Tensor:  # noqa: N802
        return torch.softmax(net.parts["joint"](net.psi(x), z), 1)

    def z_hat(x: Tensor) -> Tensor:
        mean, log_sigma = net.parts["inference"](x)
        out: Tensor = mean - 0.7 * log_sigma.exp()
        return out

    label = P(labeled.weak, z_hat(labeled.weak).detach())
    generated = net.parts["generator"](z)
    expected = {
        "labeled": -torch.stack([label[i, y].log() for i, y in enumerate(labeled.y)]).mean(),
        "real": -0.7 * torch.log(1 - P(unlabeled.weak, z_hat(unlabeled.weak).detach())[:, K]).mean(),
        "fake": -0.7 * torch.log(P(generated.detach(), z)[:, K]).mean(),
    }
    assert set(d_terms) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(d_terms[name], value, rtol=1e-4, atol=1e-5)
        assert_same_gradient(net.parameters(), d_terms[name], value)
    real = P(unlabeled.weak, z_hat(unlabeled.weak))[:, K]
    value = 0.7 * (-torch.log(1 - P(generated, z)[:, K]) - torch.log(real)).mean()
    assert set(g_terms) == {"generator"}
    torch.testing.assert_close(g_terms["generator"], value, rtol=1e-4, atol=1e-5)
    players = [*net.parts["generator"].parameters(), *net.parts["inference"].parameters()]
    assert_same_gradient(players, g_terms["generator"], value)


def test_ali_for_its_features_plays_without_labels() -> None:
    method = ALI(lam=0.7, z=3, features=True)
    net = ali_net(method)
    labeled, unlabeled = tiny_batch()
    assert net.parts["joint"](net.psi(unlabeled.weak), torch.zeros(12, 3)).shape == (12, 2)  # real or generated
    features = net.parts["inference"].features(labeled.weak)  # type: ignore[operator]
    logits = net.parts["linear"](features.detach())
    expected = -torch.stack([torch.softmax(logits, 1)[i, y].log() for i, y in enumerate(labeled.y)]).mean()
    loss = method.objective(net, labeled, unlabeled, "discriminator").terms["labeled"]
    torch.testing.assert_close(loss, expected)
    assert_same_gradient(net.parameters(), loss, expected)
    torch.testing.assert_close(method.predictor(net)(labeled.weak), logits)


def test_zero_logits_cost_what_chance_costs() -> None:
    method = ALI(z=3)
    net = ali_net(method)
    with torch.no_grad():
        for p in net.parts["joint"].top[-1].parameters():  # type: ignore[union-attr, index]
            p.zero_()
    batch = tiny_batch()
    terms = method.objective(net, *batch, "discriminator").terms
    assert terms["labeled"].item() == pytest.approx(math.log(K + 1), abs=1e-5)
    assert terms["real"].item() == pytest.approx(math.log((K + 1) / K), abs=1e-5)
    assert terms["fake"].item() == pytest.approx(math.log(K + 1), abs=1e-5)
    terms = method.objective(net, *batch, "generator").terms
    assert terms["generator"].item() == pytest.approx(math.log((K + 1) / K) + math.log(K + 1), abs=1e-5)


def test_the_discriminators_step_leaves_the_generators_alone_and_theirs_the_discriminator() -> None:
    method = ALI(z=3)
    net = tiny_net(method).train()
    batch = tiny_batch()
    gradients(net, method.objective(net, *batch, "discriminator").total)
    assert no_gradient(net.parts["generator"])
    assert no_gradient(net.parts["inference"])
    assert all(p.grad is not None for part in (net.psi, net.parts["joint"]) for p in part.parameters())
    sizes = gradients(net, method.objective(net, *batch, "generator").total)
    assert no_gradient(net.psi)
    assert no_gradient(net.parts["joint"])
    assert sizes["generator"] > 0
    assert sizes["inference"] > 0
    assert all(p.requires_grad for p in net.parameters())  # thawed again


def test_generated_samples_leave_running_statistics_of_psi_alone() -> None:
    method = ALI(z=3)
    net = tiny_net(method).train()
    labeled, unlabeled = tiny_batch()
    once = copy.deepcopy(net.psi)
    once(torch.cat([labeled.weak, unlabeled.weak]))
    for turn in method.turns:
        method.objective(net, labeled, unlabeled, turn)
    for a, b in zip(net.psi.buffers(), once.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_certain_logits_have_finite_losses() -> None:
    method = ALI(z=3)
    for sign in (1, -1):
        net = ali_net(method)
        with torch.no_grad():
            net.parts["joint"].top[-1].bias[-1] = 200.0 * sign  # type: ignore[union-attr, index]
        for turn in method.turns:
            assert method.objective(net, *tiny_batch(), turn).total.isfinite()


def test_the_last_logit_never_changes_a_prediction() -> None:
    method = ALI(z=3)
    net = ali_net(method)
    predictor = method.predictor(net)
    x = tiny_batch()[1].weak
    before = predictor(x)
    assert before.shape == (12, K)
    mean, _ = net.parts["inference"](x)
    torch.testing.assert_close(before, net.parts["joint"](net.psi(x), mean)[:, :K])
    with torch.no_grad():
        net.parts["joint"].top[-1].bias[-1] = 1000.0  # type: ignore[union-attr, index]
    assert torch.equal(predictor(x), before)


def test_without_the_game_ali_is_supervised() -> None:
    method = ALI(lam=0.0, z=3)
    net = ali_net(method)
    losses = method.objective(net, *tiny_batch(), "discriminator")
    assert_same_gradient(net.parameters(), losses.total, losses.terms["labeled"])
    assert sum(gradients(net, method.objective(net, *tiny_batch(), "generator").total).values()) == 0.0


def test_generators_have_an_optimiser_of_their_own() -> None:
    method = ALI(z=3)
    net = ali_net(method)
    (adam,) = method.optimizers(net)
    assert isinstance(adam, torch.optim.Adam)
    own = {p for group in adam.param_groups for p in group["params"]}
    assert own == {*net.parts["generator"].parameters(), *net.parts["inference"].parameters()}
