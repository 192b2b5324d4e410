"""The files of the pages: scripts, styles and HTML, by a fixed list of names.

No path of a request ever reaches the file system.
"""

from __future__ import annotations

from importlib import resources

from starlette.responses import Response

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FILES = (
    "label.html",
    "label.js",
    "api.js",
    "keys.js",
    "grid.js",
    "curve.js",
    "serve.html",
    "serve.js",
    "page.css",
    "icon.svg",
)


def static_file(name: str, version: str) -> Response:
    """Return a file of the pages; 404 for any other name."""
    if name not in FILES:
        return Response("not found", 404, media_type="text/plain")
    text = resources.files("selftrain.web").joinpath("static").joinpath(name).read_text(encoding="utf-8")
    return Response(text.replace("{{ version }}", version), media_type=TYPES[name.rsplit(".", 1)[1]])
