"""``serve``: load a run and serve its page until it is stopped.

Knows nothing of requests.
"""

from __future__ import annotations

from pathlib import Path

from selftrain.console import Reporter
from selftrain.web.server import check_installed, run_app


def serve(run: Path, *, port: int = 0, browser: bool = True, reporter: Reporter | None = None) -> None:
    """Serve a page on which the model of a run answers for images, and a JSON endpoint, until Ctrl-C."""
    check_installed()
    from selftrain.web.security import Guarded, new_token
    from selftrain.web.serve.app import LARGEST, serve_app
    from selftrain.web.serve.model import ServedModel

    reporter = reporter or Reporter(quiet=True)
    model = ServedModel(run, reporter)
    token = new_token()
    app = Guarded(serve_app(model), token, largest=LARGEST, log=reporter.warn)
    run_app(app, token, port=port, browser=browser, reporter=reporter, what=f"try {model.name} at")
