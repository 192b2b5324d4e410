"""Observers count what they say they count, and evaluation leaves a model as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from selftrain.batch import Unlabeled
from selftrain.engine.evaluate import confusion_matrix
from selftrain.engine.observers import LossMeter, PseudoLabelQuality
from selftrain.functional import PseudoLabels
from selftrain.methods import Losses
from selftrain.network import evaluating

CPU = torch.device("cpu")


def losses(y: list[int], keep: list[bool], **terms: float) -> Losses:
    values = {name: torch.tensor(value) for name, value in (terms or {"labeled": 1.0}).items()}
    return Losses(values, PseudoLabels(torch.tensor(y), torch.tensor(keep)))


def test_quantity_and_quality() -> None:
    meter = PseudoLabelQuality(torch.tensor([0, 1, 2, -1, 1]), CPU)
    meter.on_step(losses([0, 2, 2, 0], [True, True, False, True]), Unlabeled(torch.tensor([0, 1, 2, 3])))
    meter.on_step(losses([1], [True]), Unlabeled(torch.tensor([4])))
    # 5 seen, 4 kept; of those 3 have a known class and 2 are right
    assert meter.read() == {"pseudo_label_quantity": pytest.approx(0.8), "pseudo_label_quality": pytest.approx(2 / 3)}
    assert meter.read() == {"pseudo_label_quantity": None, "pseudo_label_quality": None}


def test_means_of_the_losses_and_their_state() -> None:
    meter = LossMeter(CPU)
    for value in (1.0, 3.0):
        meter.on_step(losses([0], [True], labeled=value, worst=-1.0), Unlabeled(torch.tensor([0])))
    other = LossMeter(CPU)
    other.load_state_dict(meter.state_dict())
    for one in (meter, other):
        assert one.read() == pytest.approx({"loss": 1.0, "loss_labeled": 2.0, "loss_worst": -1.0})
    assert meter.read() == {}


def test_evaluation_restores_every_modules_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    model.train()
    model[2].eval()
    with torch.inference_mode(), evaluating(model):
        assert not any(module.training for module in model.modules())
        assert torch.is_inference_mode_enabled()
    assert [module.training for module in model.modules()] == [True, True, True, False]


def test_confusion_matrix_counts_by_true_class() -> None:
    model = nn.Identity()
    logits = torch.eye(3)[[0, 1, 1, 2, 0]]
    truth = np.array([0, 1, 2, 2, -1])  # the last one is nobody's
    matrix = confusion_matrix(model, [logits[:3], logits[3:]], truth, 3, CPU)
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
