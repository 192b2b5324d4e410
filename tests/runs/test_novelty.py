"""Images of no class in a trained model: the file, the predictions, the column, and what the command line says."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import selftrain
from selftrain.errors import UserError
from selftrain.methods.junk import Novelty, fit_novelty
from selftrain.runs.model import load_novelty, save_novelty
from tests.cli.test_cli import run as command
from tests.folders import layout_2

DIM = 20


def features(n: int, seed: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (3 * np.eye(DIM)[first + y] + 0.3 * rng.normal(size=(n, DIM))).astype(np.float32), y


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    x, y = features(90, 0)
    known = np.where(np.arange(90) < 15, y, -1)
    out = tmp_path_factory.mktemp("novelty") / "run"
    run = selftrain.train((x, known), out=out, method="prototypes", backbone="features", quiet=True)
    save_novelty(run.model, make_novelty())
    return run


def make_novelty(dim: int = DIM) -> Novelty:
    x, y = features(90, 0)
    labeled, pool = torch.from_numpy(x[:15, :dim]), torch.from_numpy(x[:, :dim])
    return fit_novelty(labeled, torch.from_numpy(y[:15]), pool, 3)


def pile() -> np.ndarray:
    """Return features of ten members of classes, then of five images of none."""
    return np.concatenate([features(10, 1)[0], features(5, 2, first=8)[0]])


def test_a_saved_novelty_comes_back(tmp_path: Path) -> None:
    assert load_novelty(tmp_path) is None
    save_novelty(tmp_path, None)
    saved = make_novelty()
    save_novelty(tmp_path, saved)
    assert {path.name for path in tmp_path.iterdir()} == {"novelty.safetensors"}
    loaded = load_novelty(tmp_path, classes=3, dim=DIM)
    assert loaded is not None
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    save_novelty(tmp_path, None)
    assert load_novelty(tmp_path) is None


def test_a_damaged_novelty_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    save_novelty(tmp_path, make_novelty())
    path = tmp_path / "novelty.safetensors"
    for wanted in ({"classes": 4}, {"dim": 7}):
        with pytest.raises(UserError, match=r"novelty.safetensors: made for 3 classes and 20 features, but"):
            load_novelty(tmp_path, **wanted)
    whole = path.read_bytes()
    state = safetensors.torch.load(whole)
    for changed in (
        {**state, "more": torch.zeros(1)},
        {name: value for name, value in state.items() if name != "centre"},
        {**state, "centre": torch.zeros(5)},
        {**state, "threshold": torch.zeros(2)},
        {**state, "prototypes": torch.zeros(DIM)},
    ):
        safetensors.torch.save_file(changed, path)
        with pytest.raises(UserError, match=r"novelty.safetensors: .*without novelty"):
            load_novelty(tmp_path)
    for damaged in (whole[: len(whole) // 2], b"", b"not a file of tensors"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"novelty.safetensors: not a safetensors file"):
            load_novelty(tmp_path)


def test_predictions_have_the_novelty_of_each_image(trained: selftrain.Run, tmp_path: Path) -> None:
    predictions = selftrain.Run(trained.folder).predict(pile())
    novelty = predictions.novelty
    assert novelty is not None
    assert novelty == pytest.approx(make_novelty()(torch.from_numpy(pile())).numpy(), abs=1e-5)
    assert (novelty[10:] > 0.5).all()
    assert predictions.novel == [path for path, value in zip(predictions.paths, novelty, strict=True) if value > 0.5]
    with predictions.save(tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "label", "confidence", "novelty", "prob_0", "prob_1", "prob_2"]
    assert [row["novelty"] for row in rows] == [f"{value:.4f}" for value in novelty]


def test_many_batches_keep_the_order(trained: selftrain.Run) -> None:
    x = np.concatenate([pile()] * 40)
    novelty = selftrain.Run(trained.folder).predict(x).novelty
    assert novelty is not None
    assert novelty == pytest.approx(np.tile(novelty[:15], 40), abs=1e-5)


def test_the_command_line_names_images_of_no_class(
    trained: selftrain.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(x: np.ndarray) -> str:
        np.save(tmp_path / "new.npy", x)
        assert command(monkeypatch, "predict", trained.folder, tmp_path / "new.npy", "-o", tmp_path / "p.csv") == 0
        return " ".join(capsys.readouterr().err.split())

    likeness = make_novelty().likeness(torch.from_numpy(pile()[:10]))
    surest = pile()[int(likeness.argmax())]
    junk = pile()[10:]
    few = said(np.stack([surest, *junk]))
    assert "5 of 6 rows look like none of the classes (column novelty > 0.5): 1, 2, 3 and 2 more" in few
    one = said(np.stack([surest, junk[0]]))
    assert "1 of 2 rows looks like none of the classes (column novelty > 0.5): 1" in one
    assert "none of the classes" not in said(surest[None])


@pytest.mark.long
def test_novelty_of_images_uses_the_features_of_the_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))
    data = layout_2(tmp_path / "data", per_class=4)
    options: dict[str, Any] = {"labels_per_class": 2, "size": 32, "method": "prototypes", "quiet": True}
    run = selftrain.train(data, out=tmp_path / "run", **options)
    (run.model / "novelty.safetensors").unlink(missing_ok=True)
    before = selftrain.Run(run.folder)
    assert before.predict(data / "test").novelty is None
    extractor = before.predictor.extractor
    assert extractor is not None
    K, dim = len(before.predictor.card.classes), extractor.dim
    centre, prototypes = torch.zeros(dim), torch.nn.functional.normalize(torch.randn(K, dim), dim=1)
    novelty = Novelty(centre, prototypes, torch.tensor(0.1), torch.tensor(0.2))
    save_novelty(run.model, novelty)
    after = selftrain.Run(run.folder)
    found = after.predict(data / "test")
    assert found.novelty is not None
    assert np.array_equal(found.probabilities, before.predict(data / "test").probabilities)
    assert len(found.novelty) == len(found)
    assert ((found.novelty > 0) & (found.novelty < 1)).all()
    save_novelty(run.model, Novelty(centre[:5], prototypes[:, :5], torch.tensor(0.1), torch.tensor(0.2)))
    with pytest.raises(UserError, match="belong to another model"):
        selftrain.Run(run.folder).predict(data / "test")
