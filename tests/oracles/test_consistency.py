"""Pi-Model, Mean Teacher, VAT, RAT and UDA against references retyped from the equations, and their known traps."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selftrain.batch import Labeled, Unlabeled
from selftrain.methods import RAT, UDA, VAT, FixMatch, MeanTeacher, Method, PiModel, Supervised
from selftrain.methods.rat import transform
from selftrain.nn.average import Average
from selftrain.nn.layers import Classifier, Encoder
from selftrain.nn.network import Network, Task
from tests.oracles.references import (
    L_L,
    assert_same_gradient,
    cross,
    inputs_of,
    kl,
    logit_net,
    one_hot,
    p_of,
    picture_net,
    randomise,
    sharp,
)
from tests.tiny import INPUT, K, TinyBackbone, digits_loop, go_on, gradients, tiny_batch, tiny_net


def gaussian(t: int, length: float) -> float:
    return math.exp(-5 * (1 - min(t / length, 1)) ** 2)


def square(p: Tensor, q: Tensor, reduction: str) -> Tensor:
    """SqErr, then the batch mean."""
    rows = [((a - b) ** 2).sum() / (p.shape[1] if reduction == "class_mean" else 1) for a, b in zip(p, q, strict=True)]
    return torch.stack(rows).sum() / len(rows)


def with_dropout(net: Network) -> Network:
    net.psi.bottleneck = nn.Dropout(0.5)
    return net


def pictures(n_l: int = 6, n_u: int = 5, seed: int = 3) -> tuple[Labeled, Unlabeled]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n_l) % 3
    return (
        Labeled(y, weak=torch.randn(n_l, 1, 4, 4, generator=g)),
        Unlabeled(torch.arange(n_u), weak=torch.randn(n_u, 1, 4, 4, generator=g)),
    )


@pytest.mark.parametrize(
    "method",
    [
        PiModel(lam=0.0),
        MeanTeacher(lam=0.0),
        VAT(lam=0.0, lam_entropy=0.0),
        UDA(lam=0.0, tau=0.0),
        UDA(tau=1.0),
    ],
    ids=["pi_model", "mean_teacher", "vat", "uda", "uda with an empty mask"],
)
def test_without_unlabeled_weight_the_labeled_gradient_is_left_alone(method: Method) -> None:
    net = tiny_net(method).eval()
    net.step.fill_(40)
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    torch.testing.assert_close(losses.total, L_L(net, labeled))
    assert_same_gradient(net.parameters(), losses.total, L_L(net, labeled))


def test_without_unlabeled_weight_rat_is_supervised() -> None:
    method = RAT(lam=0.0)
    net = picture_net(method).eval()
    labeled, unlabeled = pictures()
    assert_same_gradient(net.parameters(), method.objective(net, labeled, unlabeled).total, L_L(net, labeled))


# Pi-Model


@pytest.mark.parametrize("reduction", ["class_mean", "class_sum"])
@pytest.mark.parametrize("step", [0, 10, 40, 90])
def test_pi_model_is_its_equation(reduction: str, step: int) -> None:
    method = PiModel(lam=7.0, ramp=0.4, reduction=reduction)  # type: ignore[arg-type]
    net = tiny_net(method, steps=100).eval()
    net.step.fill_(step)
    labeled, unlabeled = tiny_batch()
    terms = method.objective(net, labeled, unlabeled).terms
    p, q = p_of(net.classifier, unlabeled.weak), p_of(net.classifier, unlabeled["weak_2"])
    expected = 7.0 * gaussian(step, 40) * square(p, q, reduction)
    torch.testing.assert_close(terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(terms["unlabeled"], expected)
    assert_same_gradient(net.parameters(), terms["unlabeled"], expected)


def test_pi_model_of_equal_views_without_dropout_costs_nothing() -> None:
    method = PiModel(ramp=0.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    same = unlabeled.with_views({"weak": unlabeled.weak, "weak_2": unlabeled.weak})
    assert method.objective(net, labeled, same).terms["unlabeled"].item() == 0.0
    noisy = with_dropout(net).train()
    assert method.objective(noisy, labeled, same).terms["unlabeled"].item() > 0.0  # two masks


@pytest.mark.parametrize(("reduction", "expected"), [("class_sum", 2.0), ("class_mean", 1.0)])
def test_opposite_predictions_are_as_far_apart_as_can_be(reduction: str, expected: float) -> None:
    method = PiModel(lam=1.0, ramp=0.0, reduction=reduction)  # type: ignore[arg-type]
    net = logit_net(method, classes=2)
    labeled = Labeled(torch.tensor([0]), weak=torch.zeros(1, 2))
    views = {"weak": torch.tensor([[60.0, 0.0]]), "weak_2": torch.tensor([[0.0, 60.0]])}
    loss = method.objective(net, labeled, Unlabeled(torch.tensor([0]), **views)).terms["unlabeled"]
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("stop", [False, True])
def test_both_branches_of_the_pi_model_have_gradient_unless_one_is_stopped(stop: bool) -> None:
    method = PiModel(ramp=0.0, stop_target=stop)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    one, two = unlabeled.weak.clone().requires_grad_(), unlabeled["weak_2"].clone().requires_grad_()
    u = unlabeled.with_views({"weak": one, "weak_2": two})
    torch.autograd.backward(method.objective(net, labeled, u).terms["unlabeled"])
    assert one.grad is not None
    assert one.grad.abs().sum() > 0
    if stop:
        assert two.grad is None
    else:
        assert two.grad is not None
        assert two.grad.abs().sum() > 0


# Mean Teacher


def teacher_of(net: Network) -> nn.Module:
    return net.part("teacher", Average).module


@pytest.mark.parametrize("reduction", ["class_mean", "class_sum"])
def test_mean_teacher_is_its_equation(reduction: str) -> None:
    method = MeanTeacher(lam=5.0, ramp=0.4, reduction=reduction)  # type: ignore[arg-type]
    net = tiny_net(method, steps=100).eval()
    randomise(teacher_of(net), 7)
    net.step.fill_(20)
    labeled, unlabeled = tiny_batch()
    terms = method.objective(net, labeled, unlabeled).terms
    student = p_of(net.classifier, unlabeled.weak)
    target = p_of(teacher_of(net), unlabeled["weak_2"]).detach()
    expected = 5.0 * gaussian(20, 40) * square(student, target, reduction)
    torch.testing.assert_close(terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(terms["unlabeled"], expected)
    assert_same_gradient(net.parameters(), terms["unlabeled"], expected)


def test_mean_teachers_consistency_teaches_the_student_and_not_the_teacher() -> None:
    method = MeanTeacher(ramp=0.0)
    net = tiny_net(method)
    labeled, unlabeled = tiny_batch()
    loss = method.objective(net, labeled, unlabeled).terms["unlabeled"]
    assert loss.item() > 0
    assert all(size > 0 for size in gradients(net, loss).values())
    assert set(gradients(net, loss)) == {"psi", "h"}
    assert all(p.grad is None and not p.requires_grad for p in teacher_of(net).parameters())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_teacher_runs_in_the_mode_asked_for_and_keeps_its_statistics(mode: str) -> None:
    method = MeanTeacher(lam=1.0, ramp=0.0, teacher_mode=mode)  # type: ignore[arg-type]
    net = tiny_net(method).train()
    randomise(teacher_of(net), 7)
    labeled, unlabeled = tiny_batch()
    twin = copy.deepcopy(teacher_of(net)).train(mode == "train")
    before = copy.deepcopy(dict(teacher_of(net).named_buffers()))
    student = copy.deepcopy(net.classifier)
    p = p_of(student, torch.cat([labeled.weak, unlabeled.weak]))[len(labeled) :]  # one pass, one batch's statistics
    expected = square(p, p_of(twin, unlabeled["weak_2"]), "class_mean")
    torch.testing.assert_close(method.objective(net, labeled, unlabeled).terms["unlabeled"], expected)
    for name, buffer in teacher_of(net).named_buffers():
        assert torch.equal(buffer, before[name])
    assert teacher_of(net).training  # as it was


@pytest.mark.parametrize(("t", "m"), [(0, 0.0), (1, 0.5), (3, 0.75), (5000, 0.999)])
def test_the_teacher_is_the_moving_average_and_takes_over_every_buffer(t: int, m: float) -> None:
    method = MeanTeacher(m=0.999)
    torch.manual_seed(0)
    psi = Encoder(TinyBackbone(), mean=(0.0,), std=(1.0,), bottleneck=3)  # a second norm layer
    net = Network(Classifier(psi, nn.Linear(3, K)), Task(K, 50, 100, (INPUT,)))
    method.setup(net)
    before = {name: p.clone() for name, p in teacher_of(net).named_parameters()}
    randomise(net.classifier, 5)
    net.classifier.train()(tiny_batch()[0].weak)
    method.after_step(net, t)
    student = dict(net.classifier.named_parameters())
    for name, p in teacher_of(net).named_parameters():
        torch.testing.assert_close(p, (m * before[name] + (1 - m) * student[name]).detach())
    buffers = dict(net.classifier.named_buffers())
    norms = [name for name in buffers if "running" in name or "tracked" in name]
    assert len(norms) == 6
    for name, buffer in teacher_of(net).named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_a_training_step_moves_the_teacher_after_the_student() -> None:
    loop, stream, *_ = digits_loop(MeanTeacher(m=0.9), steps=4, batch=8, unlabeled=40)
    go_on(loop, stream, 2)
    before = {name: p.clone() for name, p in teacher_of(loop.net).named_parameters()}
    go_on(loop, stream, 1)  # t = 2: m = 2/3
    student = dict(loop.net.classifier.named_parameters())
    for name, p in teacher_of(loop.net).named_parameters():
        torch.testing.assert_close(p, (2 * before[name] + student[name].detach()) / 3)
    for a, b in zip(teacher_of(loop.net).buffers(), loop.net.classifier.buffers(), strict=True):
        assert torch.equal(a, b)


def test_the_teacher_is_what_is_evaluated() -> None:
    method = MeanTeacher()
    net = tiny_net(method)
    assert method.predictor(net) is teacher_of(net)
    assert method.averaged


# VAT


def test_vat_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    method = VAT(eps=0.8, lam=0.7, lam_entropy=0.3, xi=0.05, ramp=0.4)
    net = tiny_net(method, steps=100).eval()
    net.step.fill_(10)  # a quarter of the way up
    labeled, unlabeled = tiny_batch()
    d = torch.randn_like(unlabeled.weak)
    monkeypatch.setattr(torch, "randn_like", lambda _: d)
    terms = method.objective(net, labeled, unlabeled).terms

    x, clean = unlabeled.weak, p_of(net.classifier, unlabeled.weak)
    p = clean.detach()
    r = torch.stack([0.05 * row / row.norm() for row in d]).requires_grad_()
    (g,) = torch.autograd.grad(kl(p, p_of(net.classifier, x + r)).sum(), r)
    r_adv = torch.stack([0.8 * row / row.norm() for row in g])
    smoothness = 0.7 * 0.25 * kl(p, p_of(net.classifier, x + r_adv)).mean()
    entropy = 0.3 * cross(clean, clean).mean()
    torch.testing.assert_close(terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(terms["unlabeled"], smoothness, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(terms["entropy"], entropy)
    assert_same_gradient(net.parameters(), terms["unlabeled"], smoothness)
    assert_same_gradient(net.parameters(), terms["entropy"], entropy)  # gradient in both factors


def test_the_searched_direction_is_the_gradient_of_kl_in_closed_form() -> None:
    method = VAT()
    x, d = torch.randn(6, 3), torch.randn(6, 3)
    p = torch.softmax(x, 1)
    ours = method.direction(lambda z: z, x, p, d)
    for row, start, found in zip(x.double().numpy(), d.double().numpy(), ours.double().numpy(), strict=True):
        moved = row + 0.01 * start / np.linalg.norm(start)
        g = np.exp(moved) / np.exp(moved).sum() - np.exp(row) / np.exp(row).sum()
        assert found @ g / np.linalg.norm(g) > 0.999  # the default xi survives float32


def perturbed(method: VAT, net: Network, labeled: Labeled, unlabeled: Unlabeled) -> Tensor:
    """x + r_adv, the last thing psi is fed."""
    seen = inputs_of(net.psi)
    method.objective(net, labeled, unlabeled)
    return seen[-1]


@pytest.mark.parametrize("eps", [0.1, 6.0])
def test_the_perturbation_has_length_eps(eps: float) -> None:
    method = VAT(eps=eps)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    r = perturbed(method, net, labeled, unlabeled) - unlabeled.weak
    torch.testing.assert_close(r.norm(dim=1), torch.full((12,), eps), rtol=1e-4, atol=1e-5)


def test_the_perturbation_hurts_more_than_a_random_one_of_its_length() -> None:
    method = VAT(eps=1.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch(unlabeled=40)
    p = p_of(net.classifier, unlabeled.weak).detach()
    worst = kl(p, p_of(net.classifier, perturbed(method, net, labeled, unlabeled))).mean()
    for seed in range(20):
        d = torch.randn(40, INPUT, generator=torch.Generator().manual_seed(seed))
        moved = unlabeled.weak + d / d.norm(dim=1, keepdim=True)
        assert worst > 1.2 * kl(p, p_of(net.classifier, moved)).mean()


def test_clean_and_perturbed_passes_share_the_dropout_mask() -> None:
    method = VAT(eps=0.0, lam=1.0, ramp=0.0)
    net = with_dropout(tiny_net(method)).train()
    labeled, unlabeled = tiny_batch()
    assert method.objective(net, labeled, unlabeled).terms["unlabeled"].item() == pytest.approx(0.0, abs=1e-6)
    assert not torch.equal(net.classifier(unlabeled.weak), net.classifier(unlabeled.weak))  # dropout is on


def test_without_length_there_is_nothing_to_smooth() -> None:
    method = VAT(eps=0.0, ramp=0.0)
    net = tiny_net(method).eval()
    loss = method.objective(net, *tiny_batch()).terms["unlabeled"]
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    assert max(gradients(net, loss).values()) < 1e-5


@pytest.mark.parametrize("kind", ["vat", "rat"])
def test_the_search_leaves_accumulated_gradients_alone(kind: str) -> None:
    method: Method = VAT() if kind == "vat" else RAT()
    net = tiny_net(method) if kind == "vat" else picture_net(method)
    for p in net.parameters():
        p.grad = torch.full_like(p, 0.5)
    method.objective(net, *(tiny_batch() if kind == "vat" else pictures()))
    for p in net.parameters():
        assert torch.equal(p.grad, torch.full_like(p, 0.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["vat", "rat"])
def test_extra_passes_leave_running_statistics_alone(kind: str) -> None:
    method: Method = VAT() if kind == "vat" else RAT()
    net = (tiny_net(method) if kind == "vat" else picture_net(method)).train()
    labeled, unlabeled = tiny_batch() if kind == "vat" else pictures()
    once = copy.deepcopy(net.psi)
    if kind == "vat":
        once(torch.cat([labeled.weak, unlabeled.weak]))
    else:  # unlabeled views without gradient pass by themselves
        once(labeled.weak)
        once(unlabeled.weak)
    method.objective(net, labeled, unlabeled)
    for a, b in zip(net.psi.buffers(), once.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_entropy_of_vat_has_gradient_in_both_factors() -> None:
    method = VAT(lam=0.0, lam_entropy=1.0)
    net = logit_net(method)
    z = torch.randn(4, 3).requires_grad_()
    labeled = Labeled(torch.tensor([0]), weak=torch.zeros(1, 3))
    torch.autograd.backward(method.objective(net, labeled, Unlabeled(torch.arange(4), weak=z)).terms["entropy"])
    p = torch.softmax(z, 1).detach()
    H = -(p * p.log()).sum(1, keepdim=True)
    torch.testing.assert_close(z.grad, -p * (p.log() + H) / 4)


# RAT


def sampled(x: Tensor, theta: Tensor) -> Tensor:
    """Bilinear sampling at theta (u, v, 1), coordinates in [-1, 1] with pixels' centres inside, edges reflecting."""
    n, _, height, width = x.shape
    v, u = torch.meshgrid(
        (2 * torch.arange(height) + 1) / height - 1, (2 * torch.arange(width) + 1) / width - 1, indexing="ij"
    )
    at = torch.stack([u, v, torch.ones_like(u)], dim=-1) @ theta.transpose(1, 2)[:, None]  # (n, H, W, 2)

    def place(c: Tensor, size: int) -> Tensor:
        c = ((c + 1) * size - 1) / 2
        c = (c + 0.5) % (2 * size)
        c = torch.where(c > size, 2 * size - c, c) - 0.5
        return c.clamp(0, size - 1)

    i, j = place(at[..., 1], height), place(at[..., 0], width)
    out = torch.zeros(n, x.shape[1], height, width)
    for di in (0, 1):
        for dj in (0, 1):
            a, b = i.detach().floor() + di, j.detach().floor() + dj
            weight = (1 - (i - a).abs()).clamp(min=0) * (1 - (j - b).abs()).clamp(min=0)
            rows, columns = a.long().clamp(max=height - 1), b.long().clamp(max=width - 1)
            pixels = torch.stack([x[k][:, rows[k], columns[k]] for k in range(n)])
            out = out + weight[:, None] * pixels
    return out


def moved(x: Tensor, affine: Tensor, colour: Tensor, noise: Tensor) -> Tensor:
    """noise(colour(affine(x)))."""
    identity = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    C = x.shape[1]
    x = sampled(x, identity + affine.reshape(-1, 2, 3))
    return x * (1 + colour[:, :C, None, None]) + colour[:, C:, None, None] + noise


def test_a_transformation_by_nothing_changes_nothing() -> None:
    x = torch.randn(3, 2, 5, 4)
    still = transform(x, (torch.zeros(3, 6), torch.zeros(3, 4), torch.zeros_like(x)))
    torch.testing.assert_close(still, x, rtol=1e-4, atol=1e-5)
    large = torch.randn(1, 3, 224, 224)
    with torch.autocast("cpu", torch.bfloat16):  # whose eight bits cannot tell the columns of a photo apart
        still = transform(large, (torch.zeros(1, 6), torch.zeros(1, 6), torch.zeros_like(large)))
    torch.testing.assert_close(still, large, rtol=1e-3, atol=1e-3)


def test_transformations_by_hand() -> None:
    x = torch.randn(1, 1, 4, 4)
    none = (torch.zeros(1, 6), torch.zeros(1, 2), torch.zeros_like(x))
    mirror = torch.tensor([[-2.0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(transform(x, (mirror, *none[1:])), x.flip(3), rtol=1e-4, atol=1e-5)
    shift = torch.tensor([[0, 0, 0.5, 0, 0, 0]])  # by one pixel of four; the edge is reflected
    expected = torch.cat([x[..., 1:], x[..., 3:]], dim=3)
    torch.testing.assert_close(transform(x, (shift, *none[1:])), expected, rtol=1e-4, atol=1e-5)
    colour = torch.tensor([[0.5, -2.0]])
    torch.testing.assert_close(transform(x, (none[0], colour, none[2])), 1.5 * x - 2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(transform(x, (none[0], none[1], x)), 2 * x, rtol=1e-4, atol=1e-5)


def test_transformations_are_their_formula() -> None:
    x = torch.randn(4, 2, 5, 4)
    phi = (0.4 * torch.randn(4, 6), torch.randn(4, 4), torch.randn_like(x))
    torch.testing.assert_close(transform(x, phi), moved(x, *phi), rtol=1e-4, atol=1e-4)


def directions(x: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    n, C = x.shape[:2]
    return (
        torch.randn(n, 6, generator=g),
        torch.randn(n, 2 * C, generator=g),
        torch.randn(x.shape, generator=g),
    )


def unit(d: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in d])


@pytest.mark.parametrize("step", [0, 10, 50])
def test_the_adversary_is_the_normalised_gradient_of_each_group(step: int) -> None:
    method = RAT(eps_affine=0.2, eps_colour=0.3, eps_noise=2.0, xi=0.02, ramp=0.4)
    net = picture_net(method, steps=100).eval()
    net.step.fill_(step)
    x = pictures()[1].weak
    p, d = p_of(net.classifier, x).detach(), directions(x)
    ours = method.adversary(net, net.classifier, x, p, d)
    start = [(0.02 * unit(part)).requires_grad_() for part in d]
    grads = torch.autograd.grad(kl(p, p_of(net.classifier, moved(x, *start))).sum(), start)
    for phi, g, eps in zip(ours, grads, (0.2, 0.3, 2.0), strict=True):
        length = eps * gaussian(step, 40)
        torch.testing.assert_close(phi.flatten(1).norm(dim=1), torch.full((5,), length), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(phi, length * unit(g), rtol=2e-2, atol=2e-2 * length)
        assert not phi.requires_grad


def test_at_no_transformation_the_gradient_vanishes_so_the_search_starts_off_it() -> None:
    method = RAT()
    net = picture_net(method).eval()
    x = pictures()[1].weak
    p = p_of(net.classifier, x).detach()
    zero = [torch.zeros_like(part).requires_grad_() for part in directions(x)]
    for g in torch.autograd.grad(kl(p, p_of(net.classifier, moved(x, *zero))).sum(), zero):
        assert g.abs().max() < 1e-5
    fed: list[Tensor] = []

    def logits(x: Tensor) -> Tensor:
        fed.append(x.detach())
        out: Tensor = net.classifier(x)
        return out

    method.adversary(net, logits, x, p, directions(x))
    assert (fed[0] - x).abs().max() > 1e-4


def test_rat_is_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    method = RAT(lam=0.7, ramp=0.0)
    net = picture_net(method).eval()
    labeled, unlabeled = pictures()
    x, phi = unlabeled.weak, directions(unlabeled.weak)
    monkeypatch.setattr(RAT, "adversary", lambda *_: phi)
    terms = method.objective(net, labeled, unlabeled).terms
    expected = 0.7 * kl(p_of(net.classifier, x).detach(), p_of(net.classifier, moved(x, *phi))).mean()
    torch.testing.assert_close(terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(terms["unlabeled"], expected, rtol=1e-4, atol=1e-5)
    assert_same_gradient(net.parameters(), terms["unlabeled"], expected, 1e-4)


def test_rat_without_lengths_costs_nothing() -> None:
    method = RAT(eps_affine=0.0, eps_colour=0.0, eps_noise=0.0)
    net = picture_net(method).eval()
    assert method.objective(net, *pictures()).terms["unlabeled"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("others", ["at rest", "drawn"])
def test_rat_with_noise_alone_is_vat_for_the_same_direction(others: str) -> None:
    """With a length of 0 the other groups take no part, whatever was drawn for them."""
    method = RAT(eps_affine=0.0, eps_colour=0.0, eps_noise=2.0, ramp=0.0)
    net = picture_net(method).eval()
    x = pictures()[1].weak
    p, (affine, colour, d) = p_of(net.classifier, x).detach(), directions(x)
    if others == "at rest":
        affine, colour = torch.zeros_like(affine), torch.zeros_like(colour)
    phi = method.adversary(net, net.classifier, x, p, (affine, colour, d))
    r = VAT(eps=2.0).direction(net.classifier, x, p, d) * 2.0
    torch.testing.assert_close(phi[2], r, rtol=1e-2, atol=1e-2)
    assert phi[0].abs().sum() == phi[1].abs().sum() == 0


# UDA


@pytest.mark.parametrize("T", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("tau", [0.0, 0.36, 0.6])
def test_uda_is_its_equation(T: float, tau: float) -> None:
    method = UDA(T=T, tau=tau, lam=0.7)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    losses = method.objective(net, labeled, unlabeled)
    p_w = p_of(net.classifier, unlabeled.weak).detach()
    keep = p_w.max(dim=1).values >= tau
    expected = 0.7 * (kl(sharp(p_w, T), p_of(net.classifier, unlabeled.strong)) * keep).sum() / 12
    torch.testing.assert_close(losses.terms["labeled"], L_L(net, labeled))
    torch.testing.assert_close(losses.terms["unlabeled"], expected)
    assert losses.pseudo is not None
    assert torch.equal(losses.pseudo.keep, keep)
    if keep.any():
        assert_same_gradient(net.parameters(), losses.terms["unlabeled"], expected)
    else:
        assert losses.terms["unlabeled"].item() == 0.0


def test_the_temperature_changes_the_target_and_not_the_mask() -> None:
    net = tiny_net(UDA()).eval()
    labeled, unlabeled = tiny_batch()
    cold, warm = (UDA(T=T, tau=0.36).objective(net, labeled, unlabeled).pseudo for T in (0.1, 1.0))
    assert cold is not None
    assert warm is not None
    assert torch.equal(cold.keep, warm.keep)
    assert 0 < int(cold.keep.sum()) < 12
    assert cold.target is not None
    assert warm.target is not None
    assert (cold.target.amax(1) > warm.target.amax(1)).all()
    torch.testing.assert_close(warm.target, p_of(net.classifier, unlabeled.weak).detach())


def test_a_cold_uda_has_the_gradient_of_fixmatch() -> None:
    uda, fixmatch = UDA(T=0.001, tau=0.36), FixMatch(tau=0.36)
    net = tiny_net(uda).eval()
    batch = tiny_batch()
    ours, theirs = (method.objective(net, *batch).terms["unlabeled"] for method in (uda, fixmatch))
    assert_same_gradient(net.parameters(), ours, theirs)


def test_uda_sends_no_gradient_through_the_weak_view() -> None:
    method = UDA(tau=0.0)
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    weak, strong = unlabeled.weak.clone().requires_grad_(), unlabeled.strong.clone().requires_grad_()
    torch.autograd.backward(
        method.objective(net, labeled, unlabeled.with_views({"weak": weak, "strong": strong})).total
    )
    assert weak.grad is None
    assert strong.grad is not None


@pytest.mark.parametrize(
    ("schedule", "step", "a"),
    [
        ("linear", 0, 0.0), ("linear", 50, 0.5), ("linear", 100, 1.0),
        ("exp", 0, math.exp(-5)), ("exp", 50, math.exp(-2.5)), ("exp", 100, 1.0),
        ("log", 0, 0.0), ("log", 50, 1 - math.exp(-2.5)), ("log", 100, 1 - math.exp(-5)),
    ],
)  # fmt: skip
def test_annealing_drops_labeled_samples_whose_true_class_is_already_probable(
    schedule: str, step: int, a: float
) -> None:
    method = UDA(tsa=schedule, tau=0.0)  # type: ignore[arg-type]
    net = logit_net(method, classes=4, steps=100)
    net.step.fill_(step)
    eta = a * (1 - 1 / 4) + 1 / 4
    p_true = torch.tensor([0.05, 0.26, 0.3, 0.5, 0.62, 0.64, 0.9, 0.95])
    rest = (1 - p_true)[:, None] * torch.tensor([[0.9, 0.08, 0.02]])  # another class is the likeliest of the first
    p = torch.cat([p_true[:, None], rest], dim=1)
    labeled = Labeled(torch.zeros(8, dtype=torch.int64), weak=p.log())
    _, unlabeled = tiny_batch()
    u = unlabeled.map(lambda x: x[:, :4])
    expected = [-math.log(v) for v in p_true.tolist() if v <= eta]
    loss = method.objective(net, labeled, u).terms["labeled"]
    assert loss.item() == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_annealing_that_drops_every_sample_costs_nothing() -> None:
    method = UDA(tsa="linear", tau=1.0)
    net = logit_net(method, classes=4)
    labeled = Labeled(torch.zeros(3, dtype=torch.int64), weak=9 * one_hot(torch.zeros(3, dtype=torch.int64), 4))
    _, unlabeled = tiny_batch()
    loss = method.objective(net, labeled, unlabeled.map(lambda x: x[:, :4])).total
    assert loss.item() == 0.0
    torch.autograd.backward(loss)


def test_annealing_off_is_the_plain_labeled_loss() -> None:
    net = tiny_net(UDA()).eval()
    labeled, unlabeled = tiny_batch()
    plain = UDA(w_strong=0.1).objective(net, labeled, unlabeled).terms["labeled"]
    torch.testing.assert_close(plain, Supervised(w_strong=0.1).objective(net, labeled).total)


def test_the_search_for_a_direction_is_in_full_precision() -> None:
    from selftrain.methods.vat import quiet_logits

    net = tiny_net(VAT())
    _, unlabeled = tiny_batch()
    logits = quiet_logits(net)
    plain = logits(unlabeled.weak)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = logits(unlabeled.weak)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, plain)


@pytest.mark.parametrize(("shape", "expected"), [((3, 32, 32), 6.0), ((3, 64, 64), 12.0), ((1, 8, 8), 6 / 48**0.5)])
def test_an_unset_length_is_the_same_for_every_input(shape: tuple[int, ...], expected: float) -> None:
    from selftrain.methods.vat import length

    assert length(None, torch.zeros(2, *shape)) == pytest.approx(expected)
    assert length(0.5, torch.zeros(2, *shape)) == 0.5
