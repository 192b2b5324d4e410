"""Layers, committees, saved random states and running statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from selftrain.methods import make_method
from selftrain.nn.contexts import SavedRandomState
from selftrain.nn.layers import Committee, Dropout, inner_part, shuffle_weights
from selftrain.nn.norms import keeping_running_statistics
from tests.tiny import tiny_batch, tiny_net


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 512), (5, 13, 3)])
def test_dropout_of_one_half_doubles_or_drops_each_unit(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape) + 1
    y = Dropout(0.5)(x)
    assert ((y == 0) | (y == 2 * x)).all()


def test_dropout_of_one_half_is_fair_and_independent() -> None:
    torch.manual_seed(0)
    masks = torch.stack([Dropout(0.5)(torch.ones(40, 64)) for _ in range(500)]).view(500, -1) / 2
    share = masks.mean(dim=0)
    assert abs(share.mean() - 0.5) < 0.002
    assert (share - 0.5).abs().max() < 5 * 0.5 / 500**0.5
    neighbours = (masks[:, 1:] * masks[:, :-1]).mean()  # bits of one byte, of one word, of neighbouring words
    assert abs(neighbours - 0.25) < 0.003


def test_dropout_with_another_rate_is_that_of_torch() -> None:
    x = torch.rand(8, 8)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    torch.manual_seed(3)
    expected = nn.Dropout(0.3)(x)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.3)(x), expected)


def test_dropout_passes_gradient_where_it_passes_values() -> None:
    x = torch.ones(4, 32, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # type: ignore[arg-type]
    assert Dropout(0.5)(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_saved_random_state_can_be_replayed() -> None:
    saved = SavedRandomState.capture(torch.device("cpu"))
    with saved.replayed():
        first = torch.rand(3)
    outside = torch.rand(3)
    with saved.replayed():
        assert torch.equal(torch.rand(3), first)
    assert not torch.equal(torch.rand(3), outside)


def test_shuffled_weights_are_the_same_numbers_in_another_order() -> None:
    layer = nn.Linear(20, 20)
    before = layer.weight.detach().clone()
    shuffle_weights(layer)
    assert not torch.equal(layer.weight, before)
    assert torch.equal(layer.weight.flatten().sort().values, before.flatten().sort().values)


def test_the_mean_softmax_breaks_ties_between_votes() -> None:
    logits = [torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])]
    heads = [nn.Module() for _ in logits]
    for head, value in zip(heads, logits, strict=True):
        head.forward = lambda x, value=value: value
    assert Committee(*heads, vote=True)(torch.empty(1)).argmax() == 1
    assert Committee(*heads)(torch.empty(1)).argmax() == 0
    assert Committee(heads[0], heads[1], vote=True)(torch.empty(1)).argmax() == 0
    assert Committee(*heads, vote=True)(torch.empty(1)).exp().sum() == pytest.approx(1)


def test_running_statistics_are_kept_and_momentum_is_restored() -> None:
    norm = nn.BatchNorm1d(2)
    with keeping_running_statistics(norm):
        norm(torch.randn(4, 2))
    assert norm.momentum == 0.1
    assert norm.num_batches_tracked == 0
    assert torch.equal(norm.running_mean, torch.zeros(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", ["fixmatch", "dst(fixmatch)", "mean_teacher", "supervised"])
def test_labeled_and_unlabeled_views_can_have_separate_batch_norm_passes(spelling: str) -> None:
    method = make_method(spelling)
    net, alone = tiny_net(method), tiny_net(method)
    net.bn_apart = True
    labeled, unlabeled = tiny_batch()
    l, u = net.encode(method.views, labeled, unlabeled)
    z_l = alone.embed(*(labeled[name] for name in method.views.labeled))  # only these update the running statistics
    for name, z in zip(method.views.labeled, z_l, strict=True):
        torch.testing.assert_close(l[name], z)
    for name in method.views.unlabeled:
        together = method.views.gradient if name in method.views.gradient else (
            *(other for other in method.views.unlabeled if other not in method.views.gradient),
        )  # fmt: skip
        expected = torch.cat([unlabeled[other] for other in together])
        with keeping_running_statistics(alone.psi):
            z = dict(zip(together, alone.psi(expected).chunk(len(together)), strict=True))[name]
        torch.testing.assert_close(u[name], z)
        assert u[name].requires_grad == (name in method.views.gradient)
    for mine, theirs in zip(net.psi.buffers(), alone.psi.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_inner_part_of_an_image_is_its_centre_enlarged() -> None:
    pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    pixels[..., 1:7, 1:7] = 200  # 75% of the side
    inner = inner_part(pixels, 0.75)
    assert (inner.shape, inner.dtype) == (pixels.shape, pixels.dtype)
    assert (inner == 200).all()
    pixels[..., :4] = 0
    halves = inner_part(pixels, 0.75)
    assert (halves[..., 0] == 0).all()
    assert (halves[..., -1] == 200).all()
