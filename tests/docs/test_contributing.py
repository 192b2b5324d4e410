"""The map of the code in CONTRIBUTING.md is the map of the code."""

from __future__ import annotations

import re

from tests.docs.test_docs import ROOT

PACKAGE = ROOT / "src" / "selftrain"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_path_exists() -> None:
    paths = set(re.findall(r"`((?:[\w-]+/)*[\w-]+(?:\.py|\.md|\.html|/))`", PAGE))
    assert len(paths) > 40
    places = (ROOT, PACKAGE, *(folder for folder in PACKAGE.rglob("*") if folder.is_dir()))
    missing = {path for path in paths if not any((place / path).exists() for place in places)}
    assert missing == set()


def test_every_room_is_on_the_map() -> None:
    rooms = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    for name in rooms | modules:
        assert f"`{name}`" in PAGE, name
