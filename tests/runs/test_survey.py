"""What a frozen run finds out about its pool before it trains, end to end on small features."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import selftrain
from selftrain.errors import UserError
from selftrain.files import read_json
from selftrain.runs import fit, image_outputs, survey
from tests.cli.test_cli import run as command
from tests.runs.feature_piles import PLAIN, K, features, last_state, part_of, train_pile, uneven, unseen
from tests.tiny import saved_model

pytestmark = pytest.mark.long


def distance(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).sum() / 2)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_run_reports_its_pool_and_the_guard(tmp_path: Path) -> None:
    data = features(104, 44, 19)  # all true classes are known, so that the estimate can be judged
    run = train_pile(tmp_path / "run", data=data, labels_per_class=4, settings={"data.screen": False})
    results = run.results
    truth = np.array(results["pool_truth"]) / sum(results["pool_truth"])
    prior = results["prior"]
    assert prior["source"] == "auto"
    assert prior["labels"] == pytest.approx([1 / 3] * K)
    assert sum(prior["pool"]) == pytest.approx(1)
    assert prior["error"] == pytest.approx(distance(prior["pool"], truth), abs=1e-6)
    assert prior["error"] < 0.1 < prior["distance"]
    assert prior["distance"] == pytest.approx(distance(prior["pool"], prior["labels"]), abs=1e-6)
    assert 0.6 < prior["agreement"] <= 1
    assert results["screening"] is None
    assert results["guard"]["choice"] == "blend"
    assert results["guard"]["labels_only"]["accuracy"] > 0.6
    assert results["guard"]["self_trained"]["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("method", "supervised", "settings"),
    [
        ("fixmatch", "supervised", {}),
        ("dst(fixmatch)", "supervised", {"optim.ema": 0.9}),
        ("remixmatch", "supervised", {}),
        ("dst(dividemix)", "supervised", {"data.screen": False}),
        ("fixmatch(w_strong=0.5, adjust=0.3)", "supervised(w_strong=0.5, adjust=0.3)", {}),
    ],
)
def test_the_reference_is_the_run_of_supervised(
    method: str, supervised: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    x, y = uneven()
    y[np.flatnonzero(y == 2)[1:]] = -1  # uneven labels, so that they are adjusted for
    runs = {
        name: train_pile(tmp_path / name, text, data=(x, y), settings=settings)
        for name, text in (("self", method), ("alone", supervised))
    }
    reference = part_of(last_state(runs["self"].folder), "parts.pile.reference.")
    assert same(reference, saved_model(runs["alone"].model).state_dict())
    compared, alone = runs["self"].results["guard"]["labels_only"], runs["alone"].results
    assert {name: alone[name] for name in compared} == compared
    assert alone["guard"] is alone["prior"] is alone["screening"] is None


def test_the_survey_finds_junk_which_is_not_drawn(tmp_path: Path) -> None:
    data = uneven(junk=80)
    screened = train_pile(tmp_path / "screened", data=data)
    found = screened.results["screening"]
    assert found["share"] == pytest.approx(80 / 247, abs=0.1)
    assert found["drawn"] == pytest.approx(167 / 247, abs=0.1)
    state = last_state(screened.folder)
    weight = state["parts.pile.weight"].numpy()
    assert weight[-80:].mean() < 0.1
    assert weight[:-80].mean() > 0.9
    assert weight[:167][data[1][:167] >= 0].tolist() == [1] * 12  # labeled images are members
    assert distance(screened.results["prior"]["pool"], np.array([104, 44, 19]) / 167) < 0.1
    assert state["parts.pile.neighbours.known"].shape[0] < 12 + 167  # the graph is without junk
    everything = train_pile(tmp_path / "all", data=data, settings={"data.screen": False})
    assert everything.results["screening"] is None
    assert (last_state(everything.folder)["parts.pile.weight"] == 1).all()
    assert not same(part_of(state, "classifier."), part_of(last_state(everything.folder), "classifier."))


def test_without_guard_screening_or_estimate_there_is_no_survey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "survey", never)
    run = train_pile(tmp_path / "run", settings=PLAIN)
    assert not part_of(last_state(run.folder), "parts.pile.")
    assert run.results["guard"] is run.results["prior"] is run.results["screening"] is None
    assert read_json(run.model / "model.json")["neighbours"] == ""
    model = part_of(last_state(run.folder), "classifier.")
    assert same(saved_model(run.model).state_dict(), model)


def never(*_: Any) -> None:
    raise AssertionError("this run makes no survey")


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fixmatch", PLAIN | {"data.screen": True}), ("dst(fixmatch)", PLAIN | {"data.prior": "auto"})],
)
def test_each_question_alone_makes_a_survey(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    run = train_pile(tmp_path / "run", method, settings=settings)
    assert part_of(last_state(run.folder), "parts.pile.")
    assert run.results["prior"] is not None
    assert (run.results["screening"] is not None) is settings["data.screen"]
    assert run.results["guard"] is None
    assert same(saved_model(run.model).state_dict(), part_of(last_state(run.folder), "classifier."))


def test_an_empty_pool_trains_on_the_labels(tmp_path: Path) -> None:
    x, y = uneven()
    run = train_pile(
        tmp_path / "run", "supervised", data=(x[y >= 0], y[y >= 0]), settings={"data.include_labeled": False}
    )
    assert run.results["unlabeled"] == 0
    assert run.results["guard"] is None
    assert run.results["accuracy"] > 0.6


# Stops


def stop_at(step: int) -> Any:
    def watch(row: dict[str, Any]) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    return watch


def weights_file(run: selftrain.Run) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    """A run on a pile with junk that nobody stops."""
    return train_pile(tmp_path_factory.mktemp("whole") / "run", data=uneven(junk=80))


def test_a_resumed_run_makes_no_second_survey(
    whole: selftrain.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, data = tmp_path / "run", uneven(junk=80)
    with pytest.raises(KeyboardInterrupt):
        train_pile(out, data=data, watch=stop_at(20))
    assert json.loads((out / "checkpoints" / "last.json").read_text())["state"]["dict"][0] == ["step", 15]
    monkeypatch.setattr(fit, "survey", never)
    run = train_pile(out, data=data, resume=True)
    assert weights_file(run) == weights_file(whole)
    for name in ("prior", "screening", "guard", "accuracy"):
        assert run.results[name] == whole.results[name]
    novelty = [one.model / "novelty.safetensors" for one in (run, whole)]
    assert novelty[0].read_bytes() == novelty[1].read_bytes()


def test_a_run_killed_before_its_first_checkpoint_starts_again(whole: selftrain.Run, tmp_path: Path) -> None:
    out, data = tmp_path / "run", uneven(junk=80)
    late = {"train.checkpoint_every": 30}
    with pytest.raises(KeyboardInterrupt):
        train_pile(out, data=data, watch=stop_at(10), settings=late)
    assert not (out / "checkpoints" / "last.json").exists()
    run = train_pile(out, data=data, settings=late, resume=True)
    assert weights_file(run) == weights_file(whole)
    assert run.results["guard"] == whole.results["guard"]


def test_a_run_killed_in_its_survey_leaves_no_folder(
    whole: selftrain.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(survey, "estimate_shares", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_pile(tmp_path / "run", data=uneven(junk=80))
    assert not (tmp_path / "run").exists()
    assert weights_file(train_pile(tmp_path / "run", data=uneven(junk=80))) == weights_file(whole)


# A prior that is given


def test_a_given_prior_is_that_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "shares.csv"
    file.write_text("class,share\n0,30\n2,10\n")  # a class that is not named has none
    for text, expected in (("uniform", [1 / 3] * 3), ("labels", [1 / 3] * 3), (str(file), [0.75, 0, 0.25])):
        run = train_pile(tmp_path / f"run{len(text)}", settings={"data.prior": text, "train.steps": 3})
        assert run.results["prior"]["source"] == text
        assert run.results["prior"]["pool"] == pytest.approx(expected)
        assert part_of(last_state(run.folder), "parts.prior.")["pool"].tolist() == pytest.approx(expected)


def test_a_uniform_prior_is_not_that_of_uneven_labels(tmp_path: Path) -> None:
    x, y = uneven()
    y[np.flatnonzero(y == 2)[1:]] = -1
    for text, expected in (("uniform", [1 / 3] * 3), ("labels", [4 / 9, 4 / 9, 1 / 9])):
        run = train_pile(tmp_path / text, data=(x, y), settings={"data.prior": text, "train.steps": 3})
        assert run.results["prior"]["labels"] == pytest.approx([4 / 9, 4 / 9, 1 / 9])
        assert run.results["prior"]["pool"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class,share\n0,1\nseven,2\n", "row 3: there is no class 'seven'"),
        ("class,share\n0,many\n", "row 2: the share 'many' is not a number"),
        ("class,share\n0,1\n1,-0.5\n", "row 3: the share '-0.5' must be a number of at least 0"),
        ("class,share\n0,nan\n", "row 2: the share 'nan' must be"),
        ("class,share\n0,inf\n", "row 2: the share 'inf' must be"),
        ("class,share\n0,0\n", "the shares of all classes are 0"),
        ("class,share\n0\n", "row 2: the share 'None' is not a number"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "shares.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=rf"data.prior=.*shares\.csv.*{words}"):
        train_pile(tmp_path / "run", settings={"data.prior": str(file)})
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_an_error_that_names_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.prior=.*none\.csv: expected auto, labels, uniform, or a CSV file"):
        train_pile(tmp_path / "run", settings={"data.prior": str(tmp_path / "none.csv")})


def test_the_command_line_predicts_from_the_model_folder_alone(
    whole: selftrain.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole.model, tmp_path / "shipped")
    np.save(tmp_path / "x.npy", unseen()[0])
    out = tmp_path / "said.csv"
    assert command(monkeypatch, "predict", tmp_path / "shipped", tmp_path / "x.npy", "-o", out) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    with np.load(whole.folder / "outputs.npz") as file:
        outputs = dict(file)
    labels = [row["label"] if float(row["novelty"]) <= 0.5 else "unknown" for row in rows]
    assert [row["label"] for row in rows] == labels
    best = [max(("0", "1", "2"), key=lambda name: float(row[f"prob_{name}"])) for row in rows]
    assert [int(name) for name in best] == outputs["eval_predicted"].tolist()
    said = [float(row["confidence"]) for row in rows]
    np.testing.assert_allclose(said, outputs["eval_confidence"].astype(float), atol=1e-3)


def test_neighbours_count_in_a_pool_that_is_larger_than_what_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = uneven(junk=80)
    options: dict[str, Any] = {"data": data, "settings": {"train.steps": 5}}
    everything = last_state(train_pile(tmp_path / "everything", **options).folder)["parts.pile.likeness"]
    monkeypatch.setattr(image_outputs, "CAP", 246)  # one image less
    found = last_state(train_pile(tmp_path / "sample", **options).folder)["parts.pile.likeness"]
    assert float((found - everything).abs().mean()) < 0.01
    monkeypatch.setattr(survey, "MOST_COMPARED", 100)
    alone = last_state(train_pile(tmp_path / "alone", **options).folder)["parts.pile.likeness"]
    assert float((alone - everything).abs().mean()) > 0.02


def test_the_largest_class_of_an_uneven_pool_is_not_taken_for_junk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [400, 60, 30])
    x = (rng.normal(size=(3, 12))[truth] + 0.7 * rng.normal(size=(len(truth), 12))).astype(np.float32)
    y = np.full(len(truth), -1)
    for k in range(3):
        y[np.flatnonzero(truth == k)[:5]] = k
    run = train_pile(tmp_path / "run", "fixmatch", data=(x, y), settings={"train.steps": 5})
    novelty = np.load(run.folder / "outputs.npz")["pool_novelty"]
    assert novelty[truth == 0].mean() < 0.5
