"""Optimisations change nothing: the same losses and weights as a step in plain torch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from selftrain.engine.allocator import keep_freed_memory
from selftrain.engine.optim import lr_factor
from selftrain.engine.runtime import compile_networks
from selftrain.methods import make_method
from selftrain.methods.dst import DST
from selftrain.nn.layers import apply_in_one_pass, mlp_head
from tests.tiny import digits_loop, go_on, tiny_batch, tiny_net


@pytest.mark.parametrize("spelling", ["fixmatch(tau=0.2)", "dst(fixmatch(tau=0.2), dropout=0)"])
def test_a_step_equals_plain_torch(spelling: str) -> None:
    """Contiguous images, SGD and the moving average written out, each view encoded in its own pass."""
    method = make_method(spelling, "scratch")
    averaged: dict[str, Any] = {"optim.ema": 0.9}
    loop, stream, *_ = digits_loop(method, **averaged)
    loop.net.to(memory_format=torch.channels_last)
    plain = copy.deepcopy(loop.net).to(memory_format=torch.contiguous_format)
    plain.psi.memory_format = torch.contiguous_format
    del plain.parts["average"]
    average = copy.deepcopy(plain.classifier)
    optim = loop.settings.optim
    velocity = {p: torch.zeros_like(p) for p in plain.parameters()}
    for t in range(4):
        labeled, unlabeled = stream[t]
        loop.take_step(labeled, unlabeled)
        losses = method.objective(plain, labeled, unlabeled)
        plain.zero_grad()
        losses.total.backward()  # type: ignore[no-untyped-call]
        lr = optim.lr * lr_factor(optim, t, loop.settings.train.steps)
        with torch.no_grad():
            for p, v in velocity.items():
                if p.grad is None:
                    continue
                g = p.grad + optim.weight_decay * p
                v.mul_(optim.momentum).add_(g)
                p.sub_(lr * (g + optim.momentum * v))
            m = min(0.9, 1 - 1 / (t + 1))
            for a, p in zip(average.parameters(), plain.classifier.parameters(), strict=True):
                a.copy_(m * a + (1 - m) * p)
        plain.advance()
        for name, value in plain.named_parameters():
            torch.testing.assert_close(loop.net.get_parameter(name), value, atol=1e-5, rtol=1e-4)
    for a, ours in zip(average.parameters(), loop.predictor.parameters(), strict=True):
        torch.testing.assert_close(ours, a, atol=1e-5, rtol=1e-4)


def test_views_without_gradient_do_not_change_the_losses() -> None:
    """Without batch norm, DST with all views in one pass with gradient has the same losses as with weak views in a pass
    without gradient."""
    method = make_method("dst(fixmatch(tau=0.2), worst_view=strong, dropout=0)", "frozen")
    net = tiny_net(method).eval()
    labeled, unlabeled = tiny_batch()
    lean = method.objective(net, labeled, unlabeled)
    every = type(method.views)(method.views.labeled, method.views.unlabeled, gradient=method.views.unlabeled)
    l, u = net.encode(every, labeled, unlabeled)
    assert isinstance(method, DST)
    f_hat = method.base.label(net, net.h, u)
    torch.testing.assert_close(lean.terms["labeled"], method.base.supervise(net, net.h, l), atol=1e-5, rtol=0)
    torch.testing.assert_close(lean.terms["worst"], method.eta * method.E(net, l, u, f_hat, {}), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", [2, 3])
def test_one_pass_over_several_batches_equals_one_pass_each(layers: int) -> None:
    torch.manual_seed(0)
    head = mlp_head(6, 8, 3, dropout=0.0, layers=layers)
    parts = [torch.randn(5, 6), torch.randn(3, 6)]
    at_once, apart = apply_in_one_pass(head, *parts), [head(part) for part in parts]
    for one, other in zip(at_once, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    both = [torch.autograd.grad(torch.cat(ys).square().sum(), list(head.parameters())) for ys in (at_once, apart)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_allocator_is_left_alone_if_the_user_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not keep_freed_memory()


def test_a_network_that_cannot_be_compiled_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no working C++ compiler\nand a long trace")

    monkeypatch.setattr(torch, "compile", refuse)
    net = tiny_net(make_method("fixmatch"))
    said: list[str] = []
    assert not compile_networks(net, said.append)
    assert said == [
        "`train.compile=True`: torch.compile does not work here (no working C++ compiler). "
        "Training continues without it."
    ]


def test_compiling_keeps_weights_and_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile`` itself is not run here; the test is about the names in a checkpoint."""
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    method = make_method("fixmatch(tau=0.2)", "scratch")
    loop, stream, *_ = digits_loop(method)
    names = list(loop.net.state_dict())
    assert compile_networks(loop.net, pytest.fail)
    assert list(loop.net.state_dict()) == names
    go_on(loop, stream, 2)
    copied: nn.Module = copy.deepcopy(loop.net.psi)
    assert copied(stream[0][0].weak).isfinite().all()
