"""``selftrain serve``: a page and a JSON endpoint to try a trained model.

Knows nothing of the page: it turns options into the arguments of one call.
"""

from __future__ import annotations

import typer

from selftrain.cli.label import Browser, Port
from selftrain.cli.options import Quiet, RunFolder, make_reporter


def serve(
    context: typer.Context, run: RunFolder, port: Port = 0, browser: Browser = True, quiet: Quiet = False
) -> None:
    """Try a trained model on a page in your browser: drop a photo, see its class and the training images like it.

    Programs send an image as the body of POST ADDRESS/api/predict and get JSON; ADDRESS/api/schema describes it. The
    page can be reached from this machine only.
    """
    from selftrain.web.serve.start import serve as serve_model

    serve_model(run, port=port, browser=browser, reporter=make_reporter(context, quiet))
