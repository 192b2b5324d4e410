"""The requests of the page that shows a model, and the JSON endpoint.

No path ever comes from a request: an image is the body, and training images are asked for by number.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from selftrain.data.images import UnreadableImage
from selftrain.errors import UserError
from selftrain.version import __version__
from selftrain.web.pixels import Pixels
from selftrain.web.serve.answer import Served
from selftrain.web.static_files import static_file

LARGEST = 25 << 20
"""bytes of an image file"""
SECONDS = 30.0
"""longest time for one answer"""
MOST_WAITING = 8
"""requests that wait at the same time; more are refused"""

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "The answer for one image",
    "type": "object",
    "required": ["label", "guess", "confidence", "unknown", "novelty", "probabilities", "nearest"],
    "properties": {
        "label": {"type": ["string", "null"], "description": "the class; null if the image looks like none of them"},
        "guess": {
            "type": "string",
            "description": "the most probable class, also if the image looks like none of them",
        },
        "confidence": {"type": "number", "minimum": 0, "maximum": 1, "description": "probability of the guess"},
        "unknown": {"type": "boolean", "description": "whether the image looks like none of the classes"},
        "novelty": {"type": ["number", "null"], "description": "0 to 1; null if the model cannot tell"},
        "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
        "nearest": {
            "type": "array",
            "description": "the labeled training images that look most like it",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "name": {"type": "string"},
                    "label": {"type": "string"},
                    "likeness": {"type": "number"},
                },
            },
        },
    },
}


class ServeApp:
    """Joins a model and its page."""

    def __init__(self, model: Served):
        self.model = model
        self.pixels = None if model.labeled is None else Pixels(model.labeled.images)
        self._waiting = 0

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page, methods=["GET"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/api/model", self.about, methods=["GET"]),
            Route("/api/schema", self.schema, methods=["GET"]),
            Route("/api/predict", self.predict, methods=["POST"]),
            Route("/near/{row:int}", self.near, methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        return static_file("serve.html", __version__)

    async def static(self, request: Request) -> Response:
        return static_file(request.path_params["name"], __version__)

    async def about(self, request: Request) -> Response:
        return JSONResponse({"name": self.model.name, "classes": self.model.classes, "selftrain": __version__})

    async def schema(self, request: Request) -> Response:
        return JSONResponse(SCHEMA)

    async def predict(self, request: Request) -> Response:
        if self._waiting >= MOST_WAITING:
            return JSONResponse({"error": f"{MOST_WAITING} images are waiting already"}, 503)
        self._waiting += 1
        try:
            content = await request.body()
            answer = await asyncio.wait_for(run_in_threadpool(self.model.answer, content), SECONDS)
        except UnreadableImage as error:
            return JSONResponse({"error": f"this is not an image that can be read: {error.reason}"}, 422)
        except UserError as error:  # of a stranger's model, for example
            return JSONResponse({"error": str(error).replace("`", "")}, 500)
        except (asyncio.TimeoutError, TimeoutError):
            return JSONResponse({"error": f"no answer within {SECONDS:.0f} seconds"}, 503)
        finally:
            self._waiting -= 1
        return JSONResponse(answer)

    async def near(self, request: Request) -> Response:
        row, found = request.path_params["row"], None
        if self.pixels is not None and row < len(self.pixels.images):
            found = await run_in_threadpool(self.pixels.small, row)
        if found is None:
            return Response("not found", 404, media_type="text/plain")
        return Response(found, media_type="image/jpeg")


def serve_app(model: Served) -> Starlette:
    """Return the app; it is to be put behind ``Guarded``."""
    return Starlette(routes=list(ServeApp(model).routes()))
