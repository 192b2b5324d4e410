"""The whole check on small folders of images: planted problems are found, and no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from selftrain.check.check import Checked, check, check_leaks
from selftrain.cli.app import app
from selftrain.errors import UserError
from tests.browser import DESKTOP, PHONE, Watched, assert_fits

pytestmark = pytest.mark.long
SIDE = 64


def pattern(k: int, rng: np.random.Generator) -> Image.Image:
    """Return stripes or dots of class k with random colours and places."""
    y, x = np.mgrid[:SIDE, :SIDE] + rng.uniform(0, 30, 2)[:, None, None]
    waves = (np.sin(x / 2), np.sin(y / 2), np.sin(x / 3) * np.sin(y / 3), np.sin(np.hypot(x - 40, y - 40) / 2))
    colour = rng.uniform(40, 215, (2, 3))
    share = (waves[k][..., None] + 1) / 2
    return Image.fromarray(
        (colour[0] * share + colour[1] * (1 - share) + rng.normal(0, 6, (SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check") / "patterns"
    rng = np.random.default_rng(0)
    for part, n in (("labeled", 4), ("unlabeled", 10), ("test", 3)):
        for k, name in enumerate(("across", "down", "dots", "rings")):
            place = folder / part / (name if part != "unlabeled" else "")
            place.mkdir(parents=True, exist_ok=True)
            for i in range(n):
                pattern(k, rng).save(place / f"{name}{i}.png")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def checked(folder: Path, cache: Path) -> Checked:
    return check(folder, size=64, settings={"data.cache": str(cache)})


def planted(data: Path, tmp_path: Path) -> Path:
    """Return a copy with leaks, duplicates, a wrong label and odd images."""
    folder = Path(shutil.copytree(data, tmp_path / "patterns"))
    shutil.copy(folder / "test/dots/dots0.png", folder / "unlabeled/copy.png")
    with Image.open(folder / "test/rings/rings1.png") as image:
        image.save(folder / "unlabeled/again.jpg", quality=80)
    shutil.copy(folder / "labeled/across/across0.png", folder / "labeled/down/same.png")
    shutil.move(folder / "labeled/dots/dots1.png", folder / "labeled/rings/wrong.png")
    Image.new("RGB", (300, 40), (9, 9, 9)).save(folder / "unlabeled/long.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(
        folder / "unlabeled/tiny.png"
    )
    (folder / "unlabeled/broken.png").write_bytes(b"no image")
    return folder


def test_nothing_is_found_in_clean_data(data: Path, cache: Path) -> None:
    found = checked(data, cache)
    assert [one for one in found.findings if one.kind in ("leak", "conflict", "duplicate", "unreadable")] == []
    assert sum(one.kind == "label" for one in found.findings) <= 1
    check_leaks(found)


def test_planted_problems_are_found(data: Path, cache: Path, tmp_path: Path) -> None:
    found = checked(planted(data, tmp_path), cache)
    by_kind: dict[str, list[set[str]]] = {}
    for one in found.findings:
        by_kind.setdefault(one.kind, []).append(set(one.images))
    assert sorted(map(sorted, by_kind["leak"])) == [
        ["test/dots/dots0.png", "unlabeled/copy.png"],
        ["test/rings/rings1.png", "unlabeled/again.jpg"],
    ]
    assert [one.details["identical"] for one in found.leaks] == [True, False] or [
        one.details["identical"] for one in found.leaks
    ] == [False, True]
    assert by_kind["conflict"] == [{"labeled/across/across0.png", "labeled/down/same.png"}]
    suspected = [one.images[0] for one in found.findings if one.kind == "label"]
    assert "labeled/rings/wrong.png" in suspected
    assert len(suspected) <= 3
    odd = [one.text for one in found.findings if one.kind == "image"]
    assert [
        words for words in ("smaller than 32 px", "three times", "one colour") if any(words in text for text in odd)
    ]
    assert any("broken.png" in one.text for one in found.findings if one.kind == "unreadable")
    with pytest.raises(UserError, match=r"`strict`: 2 test images .* also in the training data"):
        check_leaks(found)


def test_the_command_writes_a_page_and_json(data: Path, cache: Path, tmp_path: Path) -> None:
    folder = planted(data, tmp_path)
    page = tmp_path / "check.html"
    command = ["check", str(folder), "--size", "64", "--set", f"data.cache={cache}", "-o", str(page)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    values = json.loads(page.with_suffix(".json").read_text())
    assert values["counts"]["leak"] == 2
    assert values["images"]["test"] == 12
    text = page.read_text()
    assert "Test images that training also sees" in text
    assert text.count("data:image/jpeg;base64,") >= 6
    assert "<script" not in text
    assert isinstance(CliRunner().invoke(app, [*command, "--strict"]).exception, UserError)
    done = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "check.txt")])
    assert "the page must end in .html" in str(done.exception)


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_the_page_in_a_browser(
    browser: Any, data: Path, cache: Path, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    place = checked(planted(data, tmp_path), cache).save_page(tmp_path / "check.html")
    with Watched(browser, place, size, scheme) as page:
        assert page.get_by_role("heading", name="Test images that training also sees").is_visible()
        assert page.locator("article.error").count() == 2
        images = page.locator("article img")
        assert images.count() >= 6
        box = images.first.bounding_box()
        assert box["width"] >= 80
        assert box["y"] < 2 * size[1]
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        assert_fits(page, tmp_path / "check.png")
