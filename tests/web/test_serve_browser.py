"""The page of a model in a real browser, at the width of a desk and of a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from selftrain.web.security import Guarded
from selftrain.web.serve.app import LARGEST, serve_app
from selftrain.web.serve.model import ServedModel
from selftrain.web.server import bound_socket
from tests.web.test_serve import coloured, model, run

__all__ = ["model", "run"]  # fixtures
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
TOKEN = "secret-token"


@pytest.fixture
def url(model: ServedModel) -> Iterator[str]:
    sock = bound_socket(0)
    app = Guarded(serve_app(model), TOKEN, largest=LARGEST, log=lambda line: None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}/{TOKEN}/"
    server.should_exit = True
    thread.join(30)
    sock.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_a_photo_is_answered(browser: Any, url: str, tmp_path: Path, width: int, scheme: str) -> None:
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(url)
    coloured("green", 50).save(tmp_path / "green.png")
    page.set_input_files("#file", tmp_path / "green.png")
    page.wait_for_selector("#answer:not([hidden])", timeout=280_000)
    assert page.text_content("#label") in ("green", "unknown")
    assert page.locator("#bars li").count() == 3
    assert page.locator("#near img").count() == 6
    page.wait_for_function("() => [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert problems == []
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    (tmp_path / "text.png").write_text("not an image")
    page.set_input_files("#file", tmp_path / "text.png")
    page.wait_for_selector("#problem:not([hidden])", timeout=280_000)
    assert "not an image" in page.text_content("#problem")
