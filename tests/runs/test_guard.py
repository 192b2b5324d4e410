"""The guard's evidence by hand, and what it chooses: with nothing wrong the blend, with an alarm the labels alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import selftrain
from selftrain.files import read_json
from selftrain.methods import Diffusion
from selftrain.methods.confidence import tempered
from selftrain.nn.layers import Classifier
from selftrain.runs import finish, guard
from selftrain.runs.guard import Evidence, Verdict, upper_limit, weigh
from selftrain.runs.model import load_model
from selftrain.runs.training import Training
from tests.runs.feature_piles import K, features, last_state, part_of, train_pile, uneven, unseen
from tests.tiny import saved_model

CLASSES = ("ant", "bee", "cat")
X, Y = features(8, 8, 8)
LABELS = torch.from_numpy(X), Y


def sure_of(classes: Tensor, confidence: Tensor) -> Tensor:
    """Probabilities of a model that is so sure of these classes."""
    rest = ((1 - confidence) / (K - 1))[:, None].repeat(1, K)
    return rest.scatter(1, classes[:, None], confidence[:, None])


def pool(n: int = 60) -> tuple[Tensor, Tensor]:
    """Return the classes that the labels alone predict, and how sure it is: less from image to image."""
    return torch.arange(n) % K, torch.linspace(0.99, 0.5, n)


@pytest.mark.parametrize(
    ("errors", "n", "limit"), [(0, 10, 0.2130), (1, 20, 0.1960), (5, 10, 0.7307), (3, 3, 1.0), (0, 0, 1.0)]
)
def test_the_upper_limit_by_hand(errors: int, n: int, limit: float) -> None:
    assert upper_limit(errors, n) == pytest.approx(limit, abs=1e-4)


def test_more_labels_give_a_lower_limit() -> None:
    limits = [upper_limit(n // 10, n) for n in (10, 100, 1000, 100_000)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == pytest.approx(0.1, abs=0.002)


def test_the_same_model_raises_no_alarm() -> None:
    p = sure_of(*pool())
    evidence = weigh(p, p, *LABELS, CLASSES)
    assert evidence.disagreement == 0
    assert evidence.growth == 1
    assert evidence.alarm == ""
    assert evidence.labels == 24
    assert evidence.left_out_accuracy is not None
    assert evidence.left_out_accuracy > 0.8
    assert evidence.limit == pytest.approx(upper_limit(0, 12))


def test_shuffled_answers_on_the_surest_half_raise_an_alarm() -> None:
    classes, confidence = pool()
    shuffled = classes.clone()
    shuffled[:30] = (classes[:30] + 1) % K
    evidence = weigh(sure_of(classes, confidence), sure_of(shuffled, confidence), *LABELS, CLASSES)
    assert evidence.disagreement == 1
    assert "contradicts the labels-only model on 100% of the images" in evidence.alarm


@pytest.mark.parametrize(("contradicted", "alarm"), [(5, False), (6, True)])  # 12 labels without an error: 18.4%
def test_only_the_surest_half_counts_in_any_order(contradicted: int, alarm: bool) -> None:
    classes, confidence = pool()
    other = classes.clone()
    other[:contradicted] = (classes[:contradicted] + 1) % K
    other[30:] = (classes[30:] + 1) % K  # where the labels alone is unsure, the other model may know better
    order = torch.randperm(60)
    p, q = sure_of(classes, confidence)[order], sure_of(other, confidence)[order]
    evidence = weigh(p, q, *LABELS, CLASSES)
    assert evidence.disagreement == pytest.approx(contradicted / 30)
    assert bool(evidence.alarm) is alarm


def test_a_class_that_explodes_raises_an_alarm_that_names_it() -> None:
    classes, confidence = torch.zeros(120, dtype=torch.int64), torch.linspace(0.99, 0.5, 120)
    classes[-4:] = 2
    exploded = classes.clone()
    exploded[-40:] = 2  # all of them in the unsure half
    evidence = weigh(sure_of(classes, confidence), sure_of(exploded, confidence), *LABELS, CLASSES)
    assert evidence.disagreement == 0
    assert evidence.growth == 10
    assert evidence.alarm == "it predicts 'cat' 10 times as often as the labels-only model"


@pytest.mark.parametrize(
    ("before", "now", "growth", "alarm"),
    [(2, 9, 0, False), (2, 10, 5, False), (2, 11, 5.5, True), (0, 9, 0, False), (0, 12, 12, True)],
)
def test_growth_counts_from_ten_images_and_above_a_factor_of_five(
    before: int, now: int, growth: float, alarm: bool
) -> None:
    confidence = torch.linspace(0.99, 0.5, 12)
    n = torch.arange(12)
    p, q = (sure_of(torch.where(n >= 12 - count, 1, 0), confidence) for count in (before, now))
    evidence = weigh(p, q, LABELS[0][:1], np.array([0]), CLASSES)  # one label: disagreement says nothing
    assert evidence.growth == pytest.approx(growth)
    assert evidence.grown == ("bee" if growth else None)
    assert bool(evidence.alarm) is alarm


def test_one_label_per_class_cannot_be_held_out() -> None:
    x, y = torch.eye(K), np.arange(K)
    classes, confidence = pool()
    evidence = weigh(sure_of(classes, confidence), sure_of((classes + 1) % K, confidence), x, y, CLASSES)
    assert (evidence.limit, evidence.labels, evidence.left_out_accuracy) == (1, 0, None)
    assert evidence.disagreement == 1
    assert evidence.alarm == ""


def test_few_labels_and_few_images() -> None:
    p = sure_of(*pool(1))
    evidence = weigh(p, p, *LABELS, CLASSES)
    assert evidence.disagreement == 0
    assert evidence.alarm == ""
    nothing = weigh(p[:0], p[:0], *LABELS, CLASSES)
    assert (nothing.disagreement, nothing.growth, nothing.grown, nothing.alarm) == (0, 0, None, "")
    two = weigh(p, p, LABELS[0][:3], np.array([0, 0, 1]), CLASSES)  # a single pair that can be held out
    assert two.labels == 2
    assert two.limit == upper_limit(0, 1) or two.limit == 1


def test_a_disagreement_of_five_percent_never_raises_an_alarm() -> None:
    kind = {"growth": 1.0, "grown": None, "left_out_accuracy": 1.0, "labels": 10_000}
    assert Evidence(disagreement=0.05, limit=0.001, **kind).alarm == ""  # type: ignore[arg-type]
    assert Evidence(disagreement=0.051, limit=0.001, **kind).alarm  # type: ignore[arg-type]


# Whole runs


class Rolled(nn.Module):
    """A model that is sure of the class after the right one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return 100 * torch.softmax(self.model(x), dim=1).roll(1, dims=1)


@pytest.mark.long
def test_a_collapsed_run_falls_back_to_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "judge", lambda training, trained: guard.judge(training, Rolled(trained)))
    run = train_pile(tmp_path / "run")
    verdict = run.results["guard"]
    assert verdict["choice"] == "labels_only"
    assert verdict["disagreement"] > 0.5
    assert verdict["reason"].startswith("it contradicts the labels-only model on")
    assert run.results["accuracy"] == verdict["labels_only"]["accuracy"]
    assert "guard: the model trained on the labels alone is kept" in (run.folder / "log.txt").read_text()
    reference = part_of(last_state(run.folder), "parts.pile.reference.")
    _, card = load_model(run.model)
    assert card.neighbours == card.predictor == ""
    saved = saved_model(run.model).state_dict()
    assert saved.keys() == reference.keys()
    assert all(torch.equal(saved[name], value) for name, value in reference.items())
    assert run.evaluate(*unseen())["accuracy"] == run.results["accuracy"]


@pytest.mark.long
@pytest.mark.parametrize("small", [False, True])
def test_the_blend_is_the_mean_of_its_models_and_is_saved(
    small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}

    def judge(training: Training, trained: nn.Module) -> Verdict | None:
        kept["verdict"] = verdict = guard.judge(training, trained)
        x = torch.from_numpy(unseen()[0])
        pile: Any = training.net.parts["pile"]
        models = [trained, pile.neighbours, *([pile.reference] if small else [])]
        inner, psi, split = Diffusion().empty_predictor(), cast(Classifier, trained).psi, training.problem.split
        hidden = np.setdiff1d(split.unlabeled[pile.weight.numpy() > 0.5], split.labeled)  # junk has no part in it
        with torch.no_grad():
            for model in models:
                model.eval()
            z, pool = (psi(training.clean(rows)) for rows in (split.labeled, hidden))
            Diffusion().fit_predictor(inner, z, torch.from_numpy(split.labels), pool, training.net.task.classes)
            answers = [*(model(x) for model in models), inner(psi(x))]
            kept["p"] = torch.stack([torch.softmax(z, dim=1) for z in answers]).mean(dim=0).numpy()
        return verdict

    monkeypatch.setattr(finish, "judge", judge)
    run = train_pile(tmp_path / "run", data=uneven(small=small))
    assert kept["verdict"].choice == run.results["guard"]["choice"] == "blend"
    card = read_json(run.model / "model.json")
    assert card["neighbours"].startswith("diffusion(")
    assert card["inner_neighbours"]
    assert card["reference"] is small
    expected = tempered(kept["p"], card["temperature"][0], card["doubt"])
    np.testing.assert_allclose(selftrain.Run(run.model).predict(unseen()[0]).probabilities, expected, atol=1e-5)
    assert run.evaluate(*unseen())["accuracy"] == run.results["accuracy"]
    assert run.results["guard"]["self_trained"]["accuracy"] is not None
