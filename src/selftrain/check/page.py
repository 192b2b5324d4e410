"""Findings as one HTML page with thumbnails, which needs no network.

Knows nothing of how problems are found.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from selftrain.check.findings import TITLES, Finding
from selftrain.check.pool import Pool
from selftrain.data.images import Images
from selftrain.data.images.thumbnail import thumbnail_uri
from selftrain.files import write_text
from selftrain.version import __version__

SIDE = 128
"""largest side of a thumbnail in pixels"""
MOST_FINDINGS, MOST_IMAGES = 100, 6
"""findings of one kind with thumbnails, and thumbnails of one finding; duplicates show more images as names"""


def write_page(findings: Sequence[Finding], pool: Pool, path: Path) -> Path:
    """Write the page and return its path."""
    folder = resources.files("selftrain.check")
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("selftrain.check", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    sections = []
    for kind, title in TITLES.items():
        own = [one for one in findings if one.kind == kind]
        shown = [(one, _thumbnails(pool.images, one)) for one in own[:MOST_FINDINGS]]
        if own:
            sections.append((title, len(own), shown))
    text = environment.get_template("page.html").render(
        sections=sections,
        name=pool.name,
        parts=[(part, pool.parts.count(part)) for part in ("labeled", "unlabeled", "test")],
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        version=__version__,
    )
    write_text(path, text.encode("utf-8", "replace").decode())
    return path


def _thumbnails(images: Images, finding: Finding) -> list[tuple[str | None, str, str]]:
    """Return the image as a data URI, the name and the caption of each image that is shown."""
    rows = list(zip(finding.rows, finding.captions, strict=True))[:MOST_IMAGES]
    return [(thumbnail_uri(images, i, SIDE), images.names[i], caption) for i, caption in rows]
