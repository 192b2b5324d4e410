"""Suggestions as one HTML page with thumbnails, which needs no network.

Knows nothing of how images are chosen.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from selftrain.data.images import Images
from selftrain.data.images.thumbnail import thumbnail_uri
from selftrain.files import write_text
from selftrain.version import __version__

SIDE = 192
"""largest side of a thumbnail in pixels"""


def write_page(items: Sequence[Any], images: Images, labeled: int, path: Path) -> Path:
    """Write the page of suggestions for images, of which some are labeled, and return its path."""
    style = resources.files("selftrain.suggest").joinpath("page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("selftrain.suggest", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    position = {name: i for i, name in enumerate(images.names)}
    text = environment.get_template("page.html").render(
        items=items,
        total=len(images),
        labeled=labeled,
        thumbnails=[thumbnail_uri(images, position[item.path], SIDE) for item in items],
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        version=__version__,
    )
    write_text(path, text.encode("utf-8", "replace").decode())
    return path
