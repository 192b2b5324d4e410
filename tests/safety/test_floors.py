"""The oldest packages that are allowed have the fixes that files of strangers call for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("export", "openvino", "web", "sweep", "hf")
FIXED = {
    "torch": (2, 11), "pillow": (12, 3), "filelock": (3, 20, 3), "jinja2": (3, 1, 6), "onnx": (1, 21),
    "starlette": (1, 5, 1),
}  # fmt: skip
"""the first releases without the advisories that docs/development/safety.md lists"""


def floors() -> dict[str, str]:
    """Return the oldest version of each package that is needed, or of the extras that read files or requests."""
    text = (ROOT / "pyproject.toml").read_text()
    lists = [re.search(rf"^{name} = \[(.*?)\]$", text, re.S | re.M) for name in ("dependencies", *EXTRAS)]
    packages = [package for one in lists if one for package in re.findall(r'"([^"]+)"', one[1])]
    matches = [re.fullmatch(r"([\w-]+)>=([\d.]+)", package) for package in packages]
    assert all(matches), "a package without a floor"
    return {match[1]: match[2] for match in matches if match}


def test_no_floor_is_below_a_fix() -> None:
    found = floors()
    for name, fixed in FIXED.items():
        assert tuple(map(int, found[name].split("."))) >= fixed, name


def test_the_oldest_constraints_are_the_floors() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()[1:]
    assert dict(line.split("==") for line in lines) == floors()
