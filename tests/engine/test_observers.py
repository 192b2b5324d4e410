"""Observers count correctly on one rank and on two, and do not change training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from selftrain.batch import Unlabeled
from selftrain.engine.evaluate import answers, confusion_matrix, heads_answers, tally
from selftrain.engine.observers import (
    LossMeter,
    Observer,
    OtherHeads,
    PseudoLabelChurn,
    PseudoLabelQuality,
    make_observers,
)
from selftrain.methods import Losses, make_method
from selftrain.methods.functional import PseudoLabels
from selftrain.nn.contexts import evaluating
from tests.tiny import digits_loop, go_on

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def losses(y: list[int], keep: list[bool], **terms: float) -> Losses:
    values = {name: torch.tensor(value) for name, value in (terms or {"labeled": 1.0}).items()}
    return Losses(values, PseudoLabels(torch.tensor(y), torch.tensor(keep)))


def seen(*index: int) -> Unlabeled:
    return Unlabeled(torch.tensor(index))


def test_quantity_and_quality() -> None:
    meter = PseudoLabelQuality(torch.tensor([0, 1, 2, -1, 1]), CPU, 3)
    meter.on_step(losses([0, 2, 2, 0], [True, True, False, True]), seen(0, 1, 2, 3))
    meter.on_step(losses([1, -1], [True, False]), seen(4, 0))
    # 6 seen, 4 kept; of those 3 have a known class and 2 are right
    assert meter.read() == {
        "pseudo_label_quantity": pytest.approx(4 / 6),
        "pseudo_label_quality": pytest.approx(2 / 3),
        "pseudo_predicted": [2, 1, 2],
        "pseudo_kept": [2, 1, 1],
        "pseudo_kept_true": [1, 2, 0],
        "pseudo_right": [1, 1, 0],
        "pseudo_seen_true": [2, 2, 1],
    }
    assert set(meter.read().values()) == {None}


def test_weighted_labels_count_in_part() -> None:
    meter = PseudoLabelQuality(torch.tensor([0, 1, 1]), CPU, 2)
    weight = torch.tensor([0.5, 1.0, 0.25])
    for weights in (weight, weight):
        step = losses([0, 1, 0], [True, True, True])
        assert step.pseudo is not None
        meter.on_step(step._replace(pseudo=step.pseudo._replace(weight=weights)), seen(0, 1, 2))
    # quantity is the mean weight; of the weight, 3.5 - 0.5 is on right labels
    assert meter.read() == {
        "pseudo_label_quantity": pytest.approx(3.5 / 6),
        "pseudo_label_quality": pytest.approx(3 / 3.5),
        "pseudo_predicted": [4, 2],
        "pseudo_kept": [1.5, 2],
        "pseudo_kept_true": [1, 2.5],
        "pseudo_right": [1, 2],
        "pseudo_seen_true": [2, 4],
    }


def test_without_truth_there_is_no_quality() -> None:
    meter = PseudoLabelQuality(torch.full((3,), -1), CPU, 2)
    meter.on_step(losses([0, 1, 1], [True, True, False]), seen(0, 1, 2))
    row = meter.read()
    assert (row["pseudo_label_quantity"], row["pseudo_kept"]) == (pytest.approx(2 / 3), [1, 1])
    for name in ("pseudo_label_quality", "pseudo_kept_true", "pseudo_right", "pseudo_seen_true"):
        assert row[name] is None


def test_mean_losses_and_their_state() -> None:
    meter = LossMeter(CPU)
    for value in (1.0, 3.0):
        meter.on_step(losses([0], [True], labeled=value, worst=-1.0), seen(0))
    other = LossMeter(CPU)
    other.load_state_dict(meter.state_dict())
    for one in (meter, other):
        assert one.read() == pytest.approx({"loss": 1.0, "loss_labeled": 2.0, "loss_worst": -1.0})
    assert meter.read() == {}


def test_churn_by_hand() -> None:
    meter = PseudoLabelChurn(4, CPU, 3)
    meter.on_step(losses([0, 1, 2], [False] * 3), seen(0, 1, 2))  # the first time: nothing to compare with
    assert meter.read() == {"pseudo_churn": None}
    meter.on_step(losses([0, 2], [True] * 2), seen(0, 1))  # 1 changed
    meter.on_step(losses([1, -1], [True, False]), seen(1, 2))  # 1 changed again; 2 has no label now
    meter.on_step(losses([2, 0], [True] * 2), seen(2, 3))  # 2 is as when it last had a label; 3 is new
    assert meter.read() == {"pseudo_churn": pytest.approx(2 / 4)}


@pytest.mark.parametrize("every", [1, 7, 256])
def test_churn_against_a_loop(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PseudoLabelChurn, "EVERY", every)
    rng, meter = np.random.default_rng(0), PseudoLabelChurn(30, CPU, 40_000)
    assert meter.last.dtype == torch.int32
    last: dict[int, int] = {}
    for _ in range(3):
        before = changed = 0
        for _ in range(20):
            index, y = rng.permutation(30)[:12], rng.integers(-1, 3, 12)
            meter.on_step(losses(y.tolist(), [False] * 12), Unlabeled(torch.from_numpy(index)))
            for i, k in zip(index.tolist(), y.tolist(), strict=True):
                if k >= 0:
                    before, changed = before + (i in last), changed + (last.get(i, k) != k)
                    last[i] = k
        assert meter.read() == {"pseudo_churn": pytest.approx(changed / before)}


def test_heads_by_hand() -> None:
    meter = OtherHeads(CPU)
    f_hat = PseudoLabels(torch.tensor([0, 1, 1, -1]), torch.tensor([True, False, True, False]))
    worst = torch.tensor([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    pseudo = one_hot(torch.tensor([0, 1, 0, 1]), 2).float()
    term = {"labeled": torch.tensor(1.0)}
    meter.on_step(Losses(term, f_hat, {"h_worst": worst, "L_worst": torch.tensor(0.5), "h_pseudo": pseudo}), seen(0))
    kept = np.log(1 + np.e), np.log(1 + np.e**3)  # cross entropies of the first and third sample
    assert meter.read() == {
        "worst_error": pytest.approx(2 / 3),
        "worst_loss": pytest.approx(sum(kept) / 4 - 0.5),
        "head_agreement": pytest.approx(2 / 3),
    }
    meter.on_step(Losses(term, f_hat), seen(0))
    assert meter.read() == {"worst_error": None, "worst_loss": None, "head_agreement": None}


def watched(text: str, steps: int = 6, **options: Any) -> tuple[Any, Any]:
    loop, stream, *_ = digits_loop(make_method(text, "scratch"), steps=steps, **options)
    truth = torch.arange(200) % 10
    loop.observers = make_observers(truth, 10, CPU)
    return loop, stream


def readings(loop: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for observer in loop.observers:
        row |= observer.read()
    return row


@pytest.mark.parametrize(
    ("text", "worst", "agreement"),
    [
        ("dst(fixmatch(tau=0.2))", True, True),
        ("dst(fixmatch(tau=0.2), preset=paper)", True, True),
        ("dst(fixmatch(tau=0.2), pseudo_head=none)", True, False),
        ("dst(mean_teacher, worst=false)", False, True),
        ("dst(dividemix)", True, False),  # its samples are mixed
        ("fixmatch(tau=0.2)", False, False),
        ("tri_training", False, False),
        ("supervised", False, False),
    ],
)
def test_heads_are_observed_where_a_method_notes_them(text: str, worst: bool, agreement: bool) -> None:
    loop, stream = watched(text)
    go_on(loop, stream, loop.steps)
    row = readings(loop)
    assert (row["worst_error"] is not None) == (row["worst_loss"] is not None) == worst
    assert (row["head_agreement"] is not None) == agreement
    assert (row["pseudo_kept"] is None) == (text == "supervised")
    for name in ("worst_error", "head_agreement", "pseudo_churn", "pseudo_label_quality"):
        assert row[name] is None or 0 <= row[name] <= 1


def test_the_worst_loss_is_that_of_the_paper() -> None:
    """In the paper's preset the term of h' is L_U(h') - L_L(h') of Eq. 7."""
    loop, stream = watched("dst(fixmatch(tau=0.2), preset=paper, eta=0.5, reversal=1)", steps=3)
    go_on(loop, stream, 3)
    row = readings(loop)
    assert row["loss_worst"] == pytest.approx(0.5 * row["worst_loss"], rel=1e-5)  # the others' turn: psi minimises it


@pytest.mark.parametrize("text", ["dst(fixmatch(tau=0.2))", "dst(fixmatch(tau=0.2), preset=paper)", "flexmatch"])
def test_observers_change_nothing(text: str) -> None:
    (plain, stream), (loop, stream_2) = watched(text), watched(text)
    plain.observers = []
    go_on(plain, stream, 6)
    for _ in range(6):
        go_on(loop, stream_2, 1)
        loop.state_dict()
        readings(loop)
    state = loop.net.state_dict()
    for name, value in plain.net.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_saved_state_is_complete(tmp_path: Path) -> None:
    loop, stream = watched("dst(fixmatch(tau=0.2))")
    go_on(loop, stream, 3)
    torch.save(loop.state_dict(), tmp_path / "state.pt")
    go_on(loop, stream, 3)
    other, stream = watched("dst(fixmatch(tau=0.2))")
    go_on(other, stream, 2)  # a state that loading must replace
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    go_on(other, stream, 3)
    assert readings(other) == readings(loop)


def test_no_host_sync_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, stream = watched("dst(fixmatch(tau=0.2))")
    go_on(loop, stream, 1)

    def forbidden(*args: Any) -> Any:
        raise AssertionError("a value was fetched from the device")

    made = losses([0, 1], [True, False])._replace(
        notes={"h_worst": torch.eye(10)[:2], "L_worst": torch.tensor(1.0), "h_pseudo": torch.eye(10)[:2]}
    )
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    for _ in range(20):  # enough for the queued steps to be counted
        for observer in loop.observers:
            observer.on_step(made, seen(0, 1))


@pytest.mark.long
def test_two_ranks_see_what_one_sees(tmp_path: Path) -> None:
    """The same batch on one rank and shared by two gives the same counts, and a state that either can load."""
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m",
         "tests.engine.two_ranks", str(out)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert out.exists(), done.stderr[-3000:]
    from tests.engine.two_ranks import watch

    expected = watch(slice(None), tmp_path / "one.pt")
    for found, row in zip(json.loads(out.read_text()), expected, strict=True):
        assert found == {name: pytest.approx(value) for name, value in row.items()}


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
    truth = np.array([0, 1, 2, 2, -1])  # the last one is unknown
    matrix = confusion_matrix(model, [logits[:3], logits[3:]], truth, 3, CPU)
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_confidences_are_counted_in_their_bins() -> None:
    p = torch.tensor([[0.5, 0.5], [1 / 15, 14 / 15], [0.0, 1.0], [0.61, 0.39], [0.99, 0.01]])
    counted = tally(nn.Identity(), [p.log()], np.array([0, 1, 0, 0, -1]), 2, CPU)
    assert counted.confusion.tolist() == [[2, 1], [0, 1]]
    bins = counted.bins
    assert np.flatnonzero(bins[:, 0]).tolist() == [7, 9, 13, 14]  # 7.5/15, 9.15/15, 14/15 and 1
    assert bins[[7, 9, 13, 14], 2].tolist() == [1, 1, 1, 0]
    assert bins[:, 1].sum() == pytest.approx(0.5 + 0.61 + 14 / 15 + 1, abs=1e-6)


def test_predictions_and_runners_up() -> None:
    p = torch.tensor([[0.2, 0.5, 0.3], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    said = answers(nn.Identity(), [p[:2].log(), p[2:].log()], CPU)
    assert said["predicted"].tolist() == [1, 0, 0]
    assert said["runner_up"].tolist() == [2, 1, 1]
    assert said["confidence"].dtype == np.float16
    assert said["confidence"].tolist() == pytest.approx([0.5, 0.5, 1.0])
    heads = {"a": nn.Identity(), "b": nn.Softmin(dim=1)}
    both = heads_answers(nn.Identity(), heads, [p], CPU)
    assert (both["a"].tolist(), both["b"].tolist()) == ([1, 0, 0], [0, 2, 1])


def test_observers_implement_the_protocol() -> None:
    watching: list[Observer] = make_observers(torch.zeros(5, dtype=torch.int64), 3, CPU)
    assert len({type(observer) for observer in watching}) == len(watching)
