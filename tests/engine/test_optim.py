"""Optimiser groups and learning rates against their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from selftrain.config.resolve import make_settings
from selftrain.engine.optim import lr_factor, make_sgd, set_lr
from selftrain.methods import Supervised
from selftrain.nn.average import Average
from tests.tiny import tiny_net


def test_the_cosine_schedule_ends_at_seven_sixteenths_of_pi() -> None:
    optim = make_settings("scratch", {}).optim
    assert lr_factor(optim, 0, 100) == 1
    assert lr_factor(optim, 50, 100) == pytest.approx(math.cos(7 * math.pi / 32))
    assert lr_factor(optim, 100, 100) == pytest.approx(math.cos(7 * math.pi / 16))


def test_exponential_and_constant_schedules() -> None:
    optim = make_settings("scratch", {"optim.schedule": "exponential"}).optim
    assert lr_factor(optim, 1000, 9) == pytest.approx(1.4**-0.75)
    assert lr_factor(make_settings("scratch", {"optim.schedule": "constant"}).optim, 5, 9) == 1


def test_parameters_are_grouped_by_learning_rate_and_weight_decay() -> None:
    net = tiny_net(Supervised())
    given = {"optim.lr": 0.2, "optim.backbone_lr": 0.1, "optim.norm_decay": False, "optim.weight_decay": 0.01}
    optimizer = make_sgd(net, make_settings("scratch", given).optim)
    of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(of) == len(list(net.parameters()))
    backbone: Any = net.psi.backbone
    linear, norm, _ = backbone.layers
    assert (of[id(linear.weight)]["lr"], of[id(linear.weight)]["weight_decay"]) == pytest.approx((0.02, 0.01))
    assert of[id(linear.bias)]["weight_decay"] == 0
    assert of[id(norm.weight)]["weight_decay"] == 0
    assert (of[id(net.h.weight)]["lr"], of[id(net.h.weight)]["weight_decay"]) == pytest.approx((0.2, 0.01))
    assert all(group["nesterov"] and group["momentum"] == 0.9 for group in optimizer.param_groups)
    set_lr([optimizer], 0.5)
    assert of[id(linear.weight)]["lr"] == pytest.approx(0.01)
    assert of[id(net.h.weight)]["lr"] == pytest.approx(0.1)


def test_an_average_is_not_optimised() -> None:
    net = tiny_net(Supervised())
    net.parts["average"] = Average(net.classifier, 0.9)
    trained = [p for group in make_sgd(net, make_settings("scratch", {}).optim).param_groups for p in group["params"]]
    assert len(trained) == len(list(net.classifier.parameters()))


@pytest.mark.parametrize("buffers", ["copied", "averaged"])
def test_average_by_hand(buffers: str) -> None:
    net = tiny_net(Supervised())
    model: Any = net.classifier
    average: Any = Average(model, 0.75, buffers)
    norm, its_norm = (one.psi.backbone.layers[1] for one in (model, average.module))
    expected, mean = model.h.weight.detach().clone(), norm.running_mean.clone()
    for t in range(8):
        with torch.no_grad():
            model.h.weight.add_(1.0)
            norm.running_mean.add_(1.0)
            norm.num_batches_tracked.add_(1)
        average.update(model, t)
        m = min(0.75, 1 - 1 / (t + 1))
        expected = m * expected + (1 - m) * model.h.weight.detach()
        mean = m * mean + (1 - m) * norm.running_mean
    torch.testing.assert_close(average.module.h.weight, expected)
    torch.testing.assert_close(its_norm.running_mean, mean if buffers == "averaged" else norm.running_mean)
    assert its_norm.num_batches_tracked == norm.num_batches_tracked == 8
    assert all(p.grad is None and not p.requires_grad for p in average.parameters())
