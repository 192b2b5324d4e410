"""The page of a model and its card in a real browser, at the width of a desk and of a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from markdown_it import MarkdownIt

import selftrain
from selftrain.web.security import Guarded
from selftrain.web.serve.answer import Served
from selftrain.web.serve.app import LARGEST, SCHEMA, serve_app
from selftrain.web.serve.exported import ServedExport
from selftrain.web.serve.model import ServedModel
from selftrain.web.server import bound_socket
from tests.browser import DESKTOP, PHONE, Watched, assert_fits
from tests.web.test_serve import coloured, model, run

__all__ = ["model", "run"]  # fixtures
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
TOKEN = "secret-token"


@contextmanager
def served(model: Served) -> Iterator[str]:
    """Serve a model in a thread, and yield its address."""
    sock = bound_socket(0)
    app = Guarded(serve_app(model), TOKEN, largest=LARGEST, log=lambda line: None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/{TOKEN}/"
    finally:
        server.should_exit = True
        thread.join(30)
        sock.close()


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedExport:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    selftrain.Run(run).export(file)
    return ServedExport(selftrain.ExportedModel(file))


def answer_in(page: Any, photo: Path) -> None:
    page.set_input_files("#file", photo)
    page.wait_for_selector("#answer:not([hidden])", timeout=280_000)
    page.wait_for_function("() => [...document.images].every(image => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_a_photo_is_answered(browser: Any, model: ServedModel, tmp_path: Path, size: Any, scheme: str) -> None:
    coloured("green", 50).save(tmp_path / "green.png")
    with served(model) as url, Watched(browser, url, size, scheme) as page:
        answer_in(page, tmp_path / "green.png")
        assert page.text_content("#label") in ("green", "unknown")
        assert page.locator("#bars li").count() == 3
        assert page.locator("#near img").count() == 6
        assert_fits(page, tmp_path / "page.png")


def test_a_file_that_is_no_image_is_refused(browser: Any, model: ServedModel, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    with served(model) as url:
        watched = Watched(browser, url, PHONE)
        watched.page.set_input_files("#file", tmp_path / "text.png")
        watched.page.wait_for_selector("#problem:not([hidden])", timeout=280_000)
        assert "not an image" in watched.page.text_content("#problem")
        assert_fits(watched.page)
        assert all("422" in line for line in watched.wrong)  # chromium logs the status of the answer
        watched.context.close()


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "dark"), (PHONE, "light")])
def test_an_exported_model_is_served(
    browser: Any, exported: ServedExport, model: ServedModel, tmp_path: Path, size: Any, scheme: str
) -> None:
    coloured("blue", 51).save(tmp_path / "blue.png")
    content = (tmp_path / "blue.png").read_bytes()
    mine, theirs = exported.answer(content), model.answer(content)
    assert set(mine) == set(theirs) == set(SCHEMA["required"])
    assert mine["guess"] == theirs["guess"] == "blue"
    assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=2e-3)
    assert mine["nearest"] == []
    with served(exported) as url, Watched(browser, url, size, scheme) as page:
        answer_in(page, tmp_path / "blue.png")
        assert page.text_content("#label") in ("blue", "unknown")
        assert page.locator("#near-box").is_hidden()
        assert page.text_content("#name").endswith("/model.onnx")
        assert_fits(page, tmp_path / "page.png")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_model_card_can_be_read(browser: Any, run: Path, tmp_path: Path, size: Any) -> None:
    """The card as a site shows it that renders Markdown, such as the hub: headings, tables and no stray markup."""
    _, header, text = (run / "model/README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert "library_name: selftrain" in header
    body = MarkdownIt("commonmark").enable("table").render(text)
    style = (
        "body { font: 16px/1.5 sans-serif; max-width: 50rem; margin: auto; padding: 1rem; overflow-wrap: anywhere } "
    )
    style += "pre, table { display: block; overflow-x: auto }"
    (tmp_path / "card.html").write_text(
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<link rel=icon href='data:,'><title>card</title><style>{style}</style>{body}",
        encoding="utf-8",
    )
    with Watched(browser, tmp_path / "card.html", size) as page:
        headings = page.locator("h2").all_text_contents()
        assert headings == ["Results", "Classes", "Intended use", "How to use it", "How it was made"]
        assert page.locator("h1").count() == 1
        assert page.locator("table").count() >= 1
        words = page.inner_text("body")
        assert all(name in words for name in ("red", "green", "blue", "selftrain predict"))
        assert [mark for mark in ("**", "##", "|---", "&lt;", "&amp;") if mark in words] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.screenshot(path=tmp_path / "card.png", full_page=True)
