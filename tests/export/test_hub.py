"""Models on the hub, against a server on this machine: upload, download, pinned revisions, strangers, no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import constants
from huggingface_hub.utils.tqdm import disable_progress_bars

import selftrain
from selftrain.checksums import FIELD
from selftrain.cli.options import open_model
from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.export.hub import HubModel, check_card, pull, push
from tests.export.hub_server import Hub, serve
from tests.folders import layout_2
from tests.runs.small_runs import train_small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> selftrain.Run:
    data = layout_2(tmp_path_factory.mktemp("data") / "data")
    return train_small(data, tmp_path_factory.mktemp("runs") / "run", labels_per_class=2)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        disable_progress_bars()
        yield server


def test_a_model_goes_up_and_comes_down(run: selftrain.Run, hub: Hub) -> None:
    revision = push(run.folder, "somebody/ants")
    (_, files), *_ = hub.repositories["somebody/ants"]
    assert set(files) <= {"README.md", "model.json", "model.safetensors", "novelty.safetensors"}
    header = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert header["library_name"] == "selftrain"
    assert header["model-index"][0]["name"] == "somebody/ants"
    images = np.zeros((2, 16, 16, 3), np.uint8)
    expected = run.predict(images).probabilities
    for name in ("hf:somebody/ants", f"hf:somebody/ants@{revision}"):
        model = open_model(Path(name), Reporter(quiet=True))
        assert np.array_equal(model.predict(images).probabilities, expected)
    asked = len(hub.requests)
    assert np.array_equal(selftrain.Run.from_hub(f"somebody/ants@{revision}").predict(images).probabilities, expected)
    assert len(hub.requests) == asked  # a complete revision that was downloaded before needs no network


def test_a_revision_stays_what_it_is(run: selftrain.Run, hub: Hub) -> None:
    revision = push(run.folder, "somebody/ants")
    card = json.loads((run.model / "model.json").read_text())
    card.pop(FIELD, None)  # an edited card has no checksum
    hub.commit("somebody/ants", {"model.json": json.dumps({**card, "classes": ["x", "y", "z"]}).encode()})
    assert selftrain.Run.from_hub("somebody/ants").predictor.card.classes == ("x", "y", "z")
    assert selftrain.Run.from_hub(f"somebody/ants@{revision}").predictor.card.classes == ("ant", "bee", "cat")


def test_nothing_else_of_a_strangers_repository_is_downloaded(run: selftrain.Run, hub: Hub) -> None:
    files = {name: (run.model / name).read_bytes() for name in ("model.json", "model.safetensors")}
    hub.commit("stranger/model", {**files, "pytorch_model.bin": b"\x80\x04evil", "modeling.py": b"raise SystemExit"})
    folder = pull("hf:stranger/model")
    assert {path.name for path in folder.iterdir()} == set(files)
    assert not any("modeling.py" in request or ".bin" in request for request in hub.requests if "resolve" in request)
    hub.commit("stranger/other", {"modeling.py": b"raise SystemExit"})
    with pytest.raises(UserError, match=r"hf:stranger/other: not a model of selftrain"):
        pull("hf:stranger/other")


@pytest.mark.parametrize(
    "changes",
    [{"bottleneck": 10**9}, {"preprocessing": {"size": 10**6}}, {"backbone": "hf-hub:evil/model"}, {"classes": "ab"}],
)
def test_a_strangers_card_is_checked(run: selftrain.Run, tmp_path: Path, changes: dict[str, object]) -> None:
    card = json.loads((run.model / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**card, **changes}))
    with pytest.raises(UserError, match=r"model\.json"):
        check_card(tmp_path)


def test_what_is_missing_is_said(run: selftrain.Run, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model or revision"):
        pull("hf:nobody/nothing")
    with pytest.raises(UserError, match="leave out @main"):
        push(run.folder, "somebody/ants@main")
    with pytest.raises(UserError, match="Is the run finished"):
        push(tmp_path, "somebody/ants")


@pytest.mark.parametrize("text", ["hf:name", "hf:../etc", "hf:a/b/c", "hf:a/b@", "hf:a/b@x y", "hf:"])
def test_names_are_checked(text: str) -> None:
    with pytest.raises(UserError, match="hf:USER/NAME"):
        HubModel.parse(text)


def test_without_a_network_the_error_says_what_to_do(run: selftrain.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens here
    with pytest.raises(
        UserError, match=r"hf:a/b: cannot be opened; the Hugging Face Hub does not answer .* model folder"
    ):
        pull("hf:a/b")
