"""Forty photos are labeled by keyboard in a real browser; the server is killed in between, and nothing is lost."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import selftrain
from selftrain.runs.run import Run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
KEYS = {"red": "1", "green": "2", "blue": "3"}
PHOTOS, WANTED = 66, 40


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("label") / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(PHOTOS):
        name = list(COLOURS)[i % 3]
        pixels = np.clip(np.array(COLOURS[name]) + rng.integers(-40, 40, (32, 32, 3)), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:02d}-{name}.png")
    return folder


HIDDEN_BY_CLASSES = """() => {
  const photo = document.querySelector("[role=option].current").getBoundingClientRect();
  return photo.bottom > document.querySelector("aside").getBoundingClientRect().top + 1;
}"""
WAIT = 280_000
"""milliseconds: importing torch alone takes minutes on a machine with much other work"""


class Server:
    """``selftrain label`` in a process of its own, which does not outlive its test."""

    alive: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, photos: Path, *words: str):
        command = [sys.executable, "-m", "selftrain", "label", str(photos), "--no-browser", "--size", "32", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.alive.append(self.process)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self._close()

    def _close(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    for process in Server.alive:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    Server.alive.clear()


def answers(photos: Path) -> dict[str, str]:
    with (photos / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({row["path"] for row in rows})
    return {row["path"]: row["label"] for row in rows}


def label_by_keyboard(page: Any, photos: Path, until: int) -> None:
    """Look at the current photo and press the key of its class, until the file has so many answers."""
    while True:
        have = len(answers(photos)) if (photos / "labels.csv").exists() else 0
        if have >= until:
            return
        page.wait_for_selector("[role=option].current:not(.answered)", timeout=WAIT)
        name = page.get_attribute("[role=option].current", "aria-label").split(",")[0]
        key = KEYS[name.removesuffix(".png").split("-")[1]]
        page.keyboard.press(key)
        page.wait_for_function(
            "n => document.getElementById('counts').textContent.startsWith(n + ' of')", arg=str(have + 1), timeout=WAIT
        )


def test_forty_photos_by_keyboard_with_a_kill_in_the_middle(
    browser: Any, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(photos.parent / "cache"))
    server = Server(photos, "--classes", "red,green,blue")
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(server.url)
    label_by_keyboard(page, photos, 10)
    page.keyboard.press("u")
    page.wait_for_function("() => document.getElementById('counts').textContent.startsWith('9 of')")
    assert len(answers(photos)) == 9
    label_by_keyboard(page, photos, 21)
    assert problems == []
    before = answers(photos)
    server.kill()
    assert answers(photos) == before
    page.keyboard.press("1")  # no server: the page says so, and nothing is lost
    page.wait_for_selector("#problem:not([hidden])")
    assert "cannot be reached" in page.text_content("#problem")
    page.context.close()

    server = Server(photos)
    page = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark").new_page()
    problems.clear()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.url)
    # classes now have the order in which they were first used
    page.wait_for_selector("#classes button")
    shown = page.eval_on_selector_all(
        "#classes button", "all => all.map(one => [one.dataset.name, one.ariaKeyShortcuts])"
    )
    KEYS.update(dict(shown))
    label_by_keyboard(page, photos, WANTED)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate(HIDDEN_BY_CLASSES) is False
    assert problems == []
    server.stop()

    found = answers(photos)
    assert len(found) == WANTED
    assert {name: label for name, label in found.items() if name in before} == before
    assert all(name.removesuffix(".png").endswith(label) for name, label in found.items())


def test_the_page_trains_what_the_command_does(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that the page starts and the library give the same model on the file as it is."""
    from selftrain.web.label.final import FinalTraining

    monkeypatch.setenv("SELFTRAIN_CACHE", str(photos.parent / "cache"))
    labels = photos / "labels.csv"
    if not labels.exists():  # otherwise those of the test before this one
        names = sorted(path.name for path in photos.glob("*.png"))[:WANTED]
        rows = [f"{name},{name.removesuffix('.png').split('-')[1]}\n" for name in names]
        labels.write_text("path,label\n" + "".join(rows))
    options = (
        "--set",
        "data.size=32",
        "--set",
        "train.steps=15",
        "--set",
        "regime=frozen",
        "--set",
        "data.engine=torch",
    )
    final = FinalTraining(photos, labels, options)
    final.start(photos.parent / "by-page")
    assert final.wait(600) == 0, final.summary()
    settings = {"data.size": 32, "train.steps": 15, "data.engine": "torch"}
    own = selftrain.train(
        photos, labels=labels, regime="frozen", settings=settings, out=photos.parent / "own", quiet=True
    )
    by_page = Run(photos.parent / "by-page")
    name = "model.safetensors"
    assert (by_page.model / name).read_bytes() == (own.model / name).read_bytes()
