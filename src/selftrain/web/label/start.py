"""``label``: find the photos, start the process that trains, and serve the page until it is stopped.

Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selftrain.console import Reporter
from selftrain.data.images import FileImages
from selftrain.data.sources.photos import photo_names
from selftrain.errors import UserError
from selftrain.files import check_writable
from selftrain.text import plural
from selftrain.web.server import check_installed, run_app

LABELS = "labels.csv"


def label(
    photos: Path,
    *,
    labels: Path | None = None,
    classes: Sequence[str] = (),
    port: int = 0,
    browser: bool = True,
    settings: Mapping[str, Any] | None = None,
    runs: Path = Path("runs"),
    seed: int = 0,
    reporter: Reporter | None = None,
) -> None:
    """Serve the labeling page for a folder of photos until Ctrl-C; answers go to ``labels``, a CSV file."""
    check_installed()
    from selftrain.web.label.background import Background
    from selftrain.web.label.final import FinalTraining
    from selftrain.web.label.session import Session

    reporter, given = reporter or Reporter(quiet=True), dict(settings or {})
    file = labels or photos / LABELS
    if not photos.is_dir():
        raise UserError(f"`photos` {photos}: there is no such folder; give a folder of images.")
    names, remark = photo_names(photos)
    if remark:
        reporter.say(remark)
    check_writable(file)
    session = Session(FileImages(photos, names), file, classes)
    reporter.say(f"{plural(len(names), 'photo')}, {plural(len(session.labels()), 'label')} in {file}")
    background = Background(session, given, seed)
    options = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    final = FinalTraining(photos, file, options)
    try:
        background.start()  # its libraries take seconds to load; those of the page are loaded beside them
        from selftrain.web.label.app import LARGEST, label_app
        from selftrain.web.security import Guarded, new_token

        token = new_token()
        app = Guarded(label_app(session, background, final, runs), token, largest=LARGEST, log=reporter.warn)
        run_app(app, token, port=port, browser=browser, reporter=reporter, what="label your photos at")
    finally:
        background.stop()
        final.stop()
        reporter.say(f"{plural(len(session.labels()), 'label')} in {file}. To train: {final.command}")
