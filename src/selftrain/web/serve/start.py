"""``serve``: load a model and serve its page until it is stopped.

Knows nothing of requests.
"""

from __future__ import annotations

from selftrain.console import Reporter
from selftrain.export.exported import ExportedModel
from selftrain.runs.run import Run
from selftrain.web.server import check_installed, run_app


def serve(model: Run | ExportedModel, *, port: int = 0, browser: bool = True, reporter: Reporter | None = None) -> None:
    """Serve a page on which a trained or exported model answers for images, and a JSON endpoint, until Ctrl-C."""
    check_installed()
    from selftrain.web.security import Guarded, new_token
    from selftrain.web.serve.app import LARGEST, serve_app
    from selftrain.web.serve.exported import ServedExport
    from selftrain.web.serve.model import ServedModel

    reporter = reporter or Reporter(quiet=True)
    served = ServedExport(model) if isinstance(model, ExportedModel) else ServedModel(model, reporter)
    token = new_token()
    app = Guarded(serve_app(served), token, largest=LARGEST, log=reporter.warn)
    run_app(app, token, port=port, browser=browser, reporter=reporter, what=f"try {served.name} at")
