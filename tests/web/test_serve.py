"""A model on a page: answers follow the schema, limits hold, and no path of a request is opened."""

from __future__ import annotations

import io
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from starlette.testclient import TestClient

import selftrain
from selftrain.console import Reporter
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.web.security import Guarded
from selftrain.web.serve import answer as answer_module
from selftrain.web.serve import app as serve_module
from selftrain.web.serve.app import SCHEMA, serve_app
from selftrain.web.serve.model import ServedModel
from tests.web.test_label_browser import COLOURS

TOKEN, LARGEST = "secret-token", 200_000


def coloured(name: str, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(
        np.clip(np.array(COLOURS[name]) + rng.integers(-40, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
    )


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for k, name in enumerate(COLOURS):
        for i in range(10):
            part = f"labeled/{name}" if i < 4 else "unlabeled"
            (folder / "data" / part).mkdir(parents=True, exist_ok=True)
            coloured(name, 10 * k + i).save(folder / "data" / part / f"{name}{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFTRAIN_CACHE", str(folder / "cache"))
        selftrain.train(
            folder / "data", regime="frozen", size=32, steps=40, out=folder / "colours", quiet=True,
            settings={"train.threads": 1},
        )  # fmt: skip
    return folder / "colours"


@pytest.fixture(scope="module")
def model(run: Path) -> ServedModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFTRAIN_CACHE", str(run.parent / "cache"))
        return ServedModel(selftrain.Run(run), Reporter(quiet=True))


@pytest.fixture
def client(model: ServedModel) -> Iterator[TestClient]:
    app = Guarded(serve_app(model), TOKEN, largest=LARGEST, log=lambda line: None)
    with TestClient(app, base_url=f"http://127.0.0.1:8124/{TOKEN}/") as found:
        yield found


def ask(client: TestClient, content: bytes) -> Any:
    return client.post("api/predict", content=content)


@pytest.mark.parametrize("name", COLOURS)
def test_an_answer_has_label_confidence_and_nearest_images(client: TestClient, name: str) -> None:
    found = ask(client, encoded(coloured(name, 99)))
    assert found.status_code == 200
    answer = found.json()
    assert set(SCHEMA["required"]) == set(answer)
    assert answer["guess"] == name
    assert answer["label"] == (None if answer["unknown"] else name)
    assert answer["confidence"] == pytest.approx(max(answer["probabilities"].values()))
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert next(iter(answer["probabilities"])) == name
    assert len(answer["nearest"]) == 6
    assert answer["nearest"][0]["label"] == name
    assert client.get(f"near/{answer['nearest'][0]['id']}").headers["content-type"] == "image/jpeg"


def test_the_page_says_the_same_as_predict(client: TestClient, run: Path, tmp_path: Path) -> None:
    coloured("red", 7).save(tmp_path / "one.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFTRAIN_CACHE", str(run.parent / "cache"))
        expected = selftrain.Run(run).predict(tmp_path / "one.png")
    answer = ask(client, (tmp_path / "one.png").read_bytes()).json()
    assert answer["guess"] == expected.labels[0]
    assert answer["confidence"] == pytest.approx(float(expected.confidence[0]), abs=2e-3)


def test_an_unknown_image_has_no_label(client: TestClient, model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_novelty", lambda x: 0.9)
    answer = ask(client, encoded(coloured("red"))).json()
    assert answer["unknown"] is True
    assert answer["label"] is None
    assert answer["guess"] in COLOURS


def test_limits_hold(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(client, b"").status_code == 422
    assert ask(client, b"not an image").status_code == 422
    assert ask(client, encoded(coloured("red"))[:60]).status_code == 422
    assert ask(client, b"x" * (LARGEST + 1)).status_code == 413
    monkeypatch.setattr(answer_module, "MOST_PIXELS", 1000)
    large = ask(client, encoded(coloured("red")))
    assert large.status_code == 422
    assert "1,024 pixels" in large.json()["error"]
    monkeypatch.setattr(serve_module, "MOST_WAITING", 0)
    assert ask(client, encoded(coloured("red"))).status_code == 503


@pytest.mark.parametrize(
    "path", ["near/999", "near/-1", "near/..%2f..%2fconfig.yaml", "static/../model.py", "config.yaml"]
)
def test_no_path_of_a_request_is_opened(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (403, 404)


def test_a_path_as_the_body_is_not_opened(client: TestClient, run: Path) -> None:
    assert ask(client, str(run.parent / "data/labeled/red/red0.png").encode()).status_code == 422


def test_strangers_are_refused(client: TestClient) -> None:
    body = encoded(coloured("red"))
    assert client.post("http://127.0.0.1:8124/wrong/api/predict", content=body).status_code == 403
    assert client.post("api/predict", content=body, headers={"origin": "http://evil.example"}).status_code == 403


def test_what_cannot_be_served_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        ServedModel(selftrain.Run(tmp_path), Reporter(quiet=True))


def test_the_schema_is_served(client: TestClient) -> None:
    assert client.get("api/schema").json() == SCHEMA
    assert client.get("api/model").json()["classes"] == sorted(COLOURS)
    assert client.get("").status_code == 200


@pytest.mark.parametrize("path", ["private", "sun397", "hf:nobody/nothing"])
def test_places_that_a_run_names_are_not_opened(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A stranger's run named a private folder, or a dataset whose download began."""
    stranger = Path(shutil.copytree(run, tmp_path / "run"))
    asked: list[Any] = []
    labeled = json.loads((stranger / "split.json").read_text())["labeled"]
    for entry in labeled:
        (tmp_path / "private" / entry["path"]).parent.mkdir(parents=True, exist_ok=True)
        coloured("red").save(tmp_path / "private" / entry["path"])
    config = yaml.safe_load((stranger / "config.yaml").read_text())
    config["data"]["path"] = str(tmp_path / path) if path == "private" else path
    (stranger / "config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(Source, "from_settings", lambda *args, **more: asked.append(args))
    monkeypatch.setattr(socket.socket, "connect", lambda *args: asked.append(args))
    monkeypatch.setenv("SELFTRAIN_CACHE", str(run.parent / "cache"))
    served = ServedModel(selftrain.Run(stranger), Reporter(quiet=True))
    assert asked == []
    assert served.labeled is not None
    assert len(served.labeled.images) == len(labeled)
    (stranger / "thumbnails.npz").unlink()
    assert ServedModel(selftrain.Run(stranger), Reporter(quiet=True)).labeled is None


def test_a_model_that_fails_is_an_answer_not_a_crash(
    client: TestClient, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: bytes) -> dict[str, Any]:
        raise UserError("model.onnx: cannot be run (a reason).")

    monkeypatch.setattr(model, "answer", fail)
    found = ask(client, encoded(coloured("red")))
    assert (found.status_code, found.json()) == (500, {"error": "model.onnx: cannot be run (a reason)."})
