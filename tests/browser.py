"""Pages in a real browser: Debian's chromium, driven by playwright.

Tests that ask for ``browser`` are skipped where one of the two is not installed, unless SELFTRAIN_REQUIRE_BROWSER is 1.
Knows nothing of what is on a page.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = (1280, 900), (360, 740)
Size = tuple[int, int]

# Elements that stick out of the page, except inside a box that scrolls by itself.
OVERFLOWING = """() => [...document.body.querySelectorAll('*')].filter(e => {
  const box = e.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 0.5 && (box.left >= -0.5 || e.classList.contains('skip'))) return false;
  return !e.closest('.scroll') || e.classList.contains('scroll');
}).map(e => e.tagName + '.' + (e.className.baseVal ?? e.className)).slice(0, 5)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the tests of one module."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None  # type: ignore[assignment]
    missing = "playwright" if sync_playwright is None else "chromium" if CHROMIUM is None else None
    if missing and os.environ.get("SELFTRAIN_REQUIRE_BROWSER") == "1":
        pytest.fail(f"SELFTRAIN_REQUIRE_BROWSER is 1 and {missing} is not installed")
    if missing:
        pytest.skip(f"{missing} is not installed: apt-get install chromium, pip install playwright")
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Watched:
    """A page in the browser; leaving it fails if there were errors, dialogs or requests to the network."""

    def __init__(self, browser: Any, place: Path | str, size: Size = DESKTOP, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)
        address = place.as_uri() if isinstance(place, Path) else place
        self.allowed = ("file:", "data:") if isinstance(place, Path) else (address, "data:", "blob:")
        started = time.perf_counter()
        self.page.goto(address)
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.seconds = time.perf_counter() - started

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append("dialog")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.allowed):
            self.wrong.append(f"request: {request.url}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *error: object) -> None:
        self.context.close()
        if error[0] is None:
            assert self.wrong == []


def assert_fits(page: Any, picture: Path | None = None) -> None:
    """Check that nothing is wider than the window, and keep a screenshot of the whole page."""
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.evaluate(OVERFLOWING) == []
    if picture is not None:
        page.screenshot(path=picture, full_page=True)
