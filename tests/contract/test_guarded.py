"""The default of the frozen regime, with its survey and its guard: trained, resumed, saved and loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import selftrain
from selftrain.files import read_json
from selftrain.methods.confidence import tempered
from selftrain.runs import finish, fit, guard
from selftrain.runs import survey as surveying
from selftrain.runs.guard import Verdict
from selftrain.runs.training import Training
from tests.runs.feature_piles import last_state, part_of, train_pile, uneven, unseen

pytestmark = pytest.mark.long

STEPS = {
    "fixmatch": 20,
    "dst(fixmatch)": 20,
    "dst(debiasmatch)": 20,
    "dst(dividemix)": 20,
    "noisy_student": 10,
    "dst(noisy_student)": 10,
    "mean_teacher": 20,
    "remixmatch": 20,
    "dst(fixmatch, preset=paper)": 20,
}
"""steps of each method; those with several rounds take them in each round"""
FIXED = ("parts.pile.", "parts.prior.")


class Kept:
    """What a run knew after its survey, and the model that it chose."""

    after_survey: dict[str, torch.Tensor]
    p: np.ndarray

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.surveys = 0
        survey = surveying.survey

        def noted(training: Training, *more: Any) -> None:
            survey(training, *more)
            self.surveys += 1
            self.after_survey = {name: value.clone() for name, value in training.net.state_dict().items()}

        def judge(training: Training, trained: nn.Module) -> Verdict | None:
            verdict = guard.judge(training, trained)
            assert verdict is not None
            with torch.no_grad():
                self.p = torch.softmax(verdict.model.eval()(torch.from_numpy(unseen()[0])), dim=1).numpy()
            return verdict

        monkeypatch.setattr(fit, "survey", noted)
        monkeypatch.setattr(finish, "judge", judge)


def settings_of(method: str) -> dict[str, Any]:
    steps = STEPS[method]
    return {"train.steps": steps, "train.eval_every": 10, "train.checkpoint_every": 6}


@pytest.mark.parametrize("method", STEPS)
def test_it_trains_resumes_and_predicts_with_its_guard(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, data, settings = Kept(monkeypatch), uneven(junk=100), settings_of(method)
    run = train_pile(tmp_path / "run", method, data=data, settings=settings)
    assert kept.surveys == 1
    assert run.results["accuracy"] > 0.8
    for name in ("prior", "screening", "guard"):
        assert run.results[name] is not None

    # training never changes what the survey found, not even a restart between rounds, and twins share it
    last = last_state(run.folder)
    for prefix in FIXED:
        found = part_of(kept.after_survey, prefix)
        assert found
        assert all(torch.equal(value, last[prefix + name]) for name, value in found.items())
    assert len(last["parts.pile.neighbours.answers"]) > 0
    if "dividemix" in method:
        assert torch.equal(last["parts.twin.parts.prior.pool"], last["parts.prior.pool"])

    # the model folder is all that prediction needs
    shutil.copytree(run.model, tmp_path / "shipped")
    p = selftrain.Run(tmp_path / "shipped").predict(unseen()[0]).probabilities
    card = read_json(run.model / "model.json")
    expected = tempered(np.asarray(kept.p), np.array(card["temperature"]), card["doubt"])
    np.testing.assert_allclose(p, expected, atol=1e-4)

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 20:  # in the second round, if there are several
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_pile(tmp_path / "again", method, data=data, settings=settings, watch=stop)
    again = train_pile(tmp_path / "again", method, data=data, settings=settings, resume=True)
    assert kept.surveys == 2  # one of each run, none of the resumed one
    assert (again.model / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()
    assert again.results["guard"] == run.results["guard"]
