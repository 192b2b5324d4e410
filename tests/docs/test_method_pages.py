"""The pages of docs/concepts/methods: every method as the code has it, with the diagrams that the code draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import matplotlib
import pytest

from selftrain.config.regimes import REGIMES
from selftrain.errors import UserError
from selftrain.methods import METHODS, Wrapper, make_method, method_info
from tests.docs.test_docs import ROOT, blocks, rows

FOLDER = ROOT / "docs" / "concepts" / "methods"
PAGES = sorted(FOLDER.glob("*.md"))
AGAIN = "run python docs/draw_methods.py"


@pytest.mark.long
def test_the_diagrams_are_those_that_the_code_draws(tmp_path: Path) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_methods.py"))["draw"](tmp_path)
    kept = {path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "pictures").iterdir()}
    assert {path.name for path in drawn} == set(kept), AGAIN
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 100_000, path.name
        if f"Matplotlib v{matplotlib.__version__}," in kept[path.name]:  # other versions draw other curves
            assert text == kept[path.name], f"{path.name}: {AGAIN}"


def test_every_diagram_is_on_a_page_and_has_an_alt_text() -> None:
    shown = [image for page in PAGES for image in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text("utf-8"))]
    assert {FOLDER / path for _, path in shown} == set((FOLDER / "pictures").iterdir())
    assert all(len(alt) > 40 for alt, _ in shown)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        text = (page.parent / target if target else page).read_text(encoding="utf-8")
        assert anchor in map(slug, re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)), f"{target}#{anchor}"


def test_the_index_has_every_method_as_it_is() -> None:
    found = rows(FOLDER / "README.md")
    assert list(found) == list(METHODS)
    for name, (reference, _, views, base, regimes, page) in found.items():
        cls = METHODS[name]
        assert reference == cls.reference, name
        assert regimes == ("all" if set(cls.regimes) == set(REGIMES) else ", ".join(cls.regimes)), name
        if issubclass(cls, Wrapper):
            continue
        assert base.partition(" ")[0] == ("yes" if cls.can_be_base() else "no:"), name
        assert cls.can_be_base() or base == f"no: {cls.why_no_base}", name
        asked = [view.split("_")[0] for view in make_method(name, cls.regimes[0]).views.unlabeled]
        counts = [f"{asked.count(kind)} {kind}" for kind in ("weak", "strong", "clean") if kind in asked]
        assert views.startswith(", ".join(counts) or "none"), name
        (link,) = re.findall(r"\(([^)#]*)#", page)
        text = " ".join((FOLDER / (link or "README.md")).read_text(encoding="utf-8").split())
        assert f"`{name}`" in text, name
        if link:
            assert f"`{name}`, {cls.reference}" in text, name
            assert cls.can_be_base() or f"cannot wrap it: {cls.why_no_base}." in text, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_method_strings_can_be_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    spelled = [word for block in blocks(page, "sh") for word in re.findall(r'--method "([^"]+)"', block)]
    spelled += re.findall(r"`(dst\([^`.]+\))`", text)
    for words in spelled:
        try:
            make_method(words, method_info(words).regimes[0])
        except UserError as error:
            pytest.fail(str(error))
