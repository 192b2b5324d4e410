"""``selftrain serve``: a page and a JSON endpoint to try a trained model.

Knows nothing of the page: it turns options into the arguments of one call.
"""

from __future__ import annotations

import typer

from selftrain.cli.label import Browser, Port
from selftrain.cli.options import Quiet, RunOrModel, make_reporter, open_model


def serve(
    context: typer.Context, run: RunOrModel, port: Port = 0, browser: Browser = True, quiet: Quiet = False
) -> None:
    """Try a trained model on a page in your browser: drop a photo, see its class and the training images like it.

    An exported model (.onnx) works as well; it has no training images to show.

    Programs send an image as the body of POST ADDRESS/api/predict and get JSON; ADDRESS/api/schema describes it. The
    page can be reached from this machine only.
    """
    from selftrain.web.serve.start import serve as serve_model

    reporter = make_reporter(context, quiet)
    serve_model(open_model(run, reporter), port=port, browser=browser, reporter=reporter)
