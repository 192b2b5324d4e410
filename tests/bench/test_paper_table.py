"""The paper's hyper-parameters, typed again from its appendix "Hyperparameters", against every run of ``paper/...``.

``test_protocol.py`` compares docs/results/protocol.md with the runs; the table here depends on neither.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from selftrain.bench.catalogue import find_bench
from selftrain.bench.cells import cells_of
from selftrain.bench.paper import PAPER
from selftrain.config.options import flatten
from selftrain.methods import DST, METHODS, make_method
from selftrain.methods.spelling import usual_values
from selftrain.runs.resolve import resolve

# "we use Wide ResNet-28-2 for CIFAR-10 and SVHN, WRN-28-8 for CIFAR-100, WRN-37-2 for STL-10"
WIDE_RESNETS = {"cifar10": "wrn-28-2", "svhn": "wrn-28-2", "cifar100": "wrn-28-8", "stl10": "wrn-37-2"}
# "learning rate of 0.03, mini-batch size of 512 (64 for labeled data, 448 for unlabeled data), weight decay in
# {0.0005, 0.001}, unlabeled loss weight lambda = 1.0 and train for 1000k iterations"
SCRATCH: dict[str, set[Any]] = {
    "optim.lr": {0.03},
    "train.batch": {64},
    "train.unlabeled_batch": {448},
    "optim.weight_decay": {0.0005, 0.001},
    "train.steps": {1_000_000},
}
# "SGD with momentum of 0.9. We choose weight decay in {0.0005, 0.001}, learning rates in {0.001, 0.003, 0.01, 0.03}. We
# train for 40k iterations and use the cosine learning rate schedule. The mini-batch size is set to 64."
FINETUNED: dict[str, set[Any]] = {
    "optim.momentum": {0.9},
    "optim.weight_decay": {0.0005, 0.001},
    "optim.lr": {0.001, 0.003, 0.01, 0.03},
    "train.steps": {40_000},
    "optim.schedule": {"cosine"},
}
LAMBDA, TAU, T = (0.1, 0.3, 1.0, 3.0), (0.7, 0.8, 0.9, 0.95), (0.1, 0.5, 1.0, 2.0)
WARMUP = (5_000 / 40_000, 10_000 / 40_000)
SEARCHED: dict[str, dict[str, tuple[float, ...]]] = {
    "pi_model": {"lam": LAMBDA, "ramp": WARMUP},
    "mean_teacher": {"lam": LAMBDA, "ramp": WARMUP},
    "pseudo_label": {"tau": TAU, "lam": LAMBDA},
    "fixmatch": {"tau": TAU, "lam": LAMBDA},
    "uda": {"T": T, "lam": LAMBDA},
    "noisy_student": {"T": T, "lam": LAMBDA},
    "self_tuning": {"D": (24, 32)},
    "flexmatch": {"tau": TAU, "lam": LAMBDA},
    "debiasmatch": {"tau": TAU, "lam": LAMBDA, "kappa": (0.1, 0.3, 1.0, 3.0)},
}
FIXED: dict[str, dict[str, Any]] = {
    "mean_teacher": {"m": 0.999},
    "noisy_student": {"students": 3},  # "3 rounds, excluding the round that trains with only labeled data"
    "self_tuning": {"T": 0.07, "dim": 1024},
    "flexmatch": {"warmup": False},  # "we find it better to turn off threshold warm-up"
    "debiasmatch": {"m": 0.999},
    "dst": {"width": 2048},
}


def settings_of_runs(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the dataset and all settings of every run of a bench."""
    found = []
    for cell in cells_of(find_bench(name), 1):
        settings, _ = resolve({"data.path": cell.dataset, "method": cell.row.method, **cell.settings})
        found.append((cell.dataset, flatten(asdict(settings))))
    return found


@pytest.mark.parametrize("name", PAPER)
def test_every_run_has_the_values_of_the_paper(name: str) -> None:
    for dataset, settings in settings_of_runs(name):
        scratch = settings["regime"] == "scratch"
        for setting, allowed in (SCRATCH if scratch else FINETUNED).items():
            assert settings[setting] in allowed, (dataset, setting)
        if scratch:
            assert settings["network.backbone"] == WIDE_RESNETS[dataset]
        else:
            assert settings["train.batch"] + settings["train.unlabeled_batch"] == 64


@pytest.mark.parametrize("name", SEARCHED)
def test_a_sweep_searches_the_values_of_the_paper(name: str) -> None:
    for option, values in SEARCHED[name].items():
        assert tuple(METHODS[name].grid[option]) == pytest.approx(values), option


@pytest.mark.parametrize("name", FIXED)
def test_fixed_options_have_the_values_of_the_paper(name: str) -> None:
    usual = usual_values(METHODS[name], "finetune")
    assert {option: usual[option] for option in FIXED[name]} == FIXED[name]


@pytest.mark.parametrize(("regime", "tau", "width"), [("scratch", 0.95, None), ("finetune", 0.7, 2048)])
def test_dst_has_the_values_of_the_paper(regime: str, tau: float, width: int | None) -> None:
    # "We set the confidence threshold to 0.7 by default ... lambda is set to 1"; from scratch, FixMatch's own 0.95, and
    # heads of twice the feature dimension, which is what no width means
    method = make_method("dst(fixmatch)", regime)
    assert isinstance(method, DST)
    assert method.width == width
    base: Any = method.base
    assert (base.tau, base.lam) == (tau, 1.0)
