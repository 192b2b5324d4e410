"""The requests of the labeling page.

Images are asked for by number. Knows nothing of training.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from selftrain.errors import UserError
from selftrain.version import __version__
from selftrain.web.label.background import Background
from selftrain.web.label.exchange import from_text, to_csv, to_label_studio
from selftrain.web.label.final import FinalTraining
from selftrain.web.label.session import Session
from selftrain.web.pixels import Pixels
from selftrain.web.static_files import static_file

LARGEST = 16 << 20
"""bytes of a request: an import of a few hundred thousand labels"""
MOST_ITEMS = 500
Handler = Callable[[Request], Awaitable[Response]]


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.lstrip("-").isdigit() or not 0 <= int(text) <= most:
        raise UserError(f"{name}={text[:20]!r}: expected a number from 0 to {most}.")
    return int(text)


def _errors(handler: Handler) -> Handler:
    async def wrapped(request: Request) -> Response:
        try:
            return await handler(request)
        except UserError as error:
            return JSONResponse({"error": str(error).replace("`", "")}, 400)

    return wrapped


class LabelApp:
    """Joins the session, the process that trains, and the page."""

    def __init__(self, session: Session, background: Background | None, final: FinalTraining, runs: Path):
        self.session, self.background, self.final, self.runs = session, background, final, runs
        self.pixels = Pixels(session.photos)

    def routes(self) -> list[Route]:
        get, post = ["GET"], ["POST"]
        table: list[tuple[str, Handler, list[str]]] = [
            ("/", self.page, get),
            ("/static/{name}", self.static, get),
            ("/api/state", self.state, get),
            ("/api/next", self.next, get),
            ("/api/class", self.of_class, get),
            ("/api/answers", self.answers, post),
            ("/api/undo", self.undo, post),
            ("/api/classes", self.classes, post),
            ("/api/import", self.import_, post),
            ("/api/export/{name}", self.export, get),
            ("/api/train", self.train, post),
            ("/thumb/{row:int}", self.thumb, get),
            ("/image/{row:int}", self.image, get),
        ]
        return [Route(path, _errors(handler), methods=methods) for path, handler, methods in table]

    async def page(self, request: Request) -> Response:
        return static_file("label.html", __version__)

    async def static(self, request: Request) -> Response:
        return static_file(request.path_params["name"], __version__)

    def _state(self, since: int | None = None) -> dict[str, Any]:
        session = self.session
        problem = None
        try:
            session.refresh()
        except UserError as error:
            problem = str(error)
        if self.background is not None:
            self.background.send_labels()
        found = session.summary()
        found["file"] = str(session.file.path)
        found["file_error"] = problem
        found["final"] = self.final.summary()
        if since is not None:
            with session.lock:
                found["changed"] = [session.item(row) for row in session.changes_since(since)[-2000:]]
        return found

    async def state(self, request: Request) -> Response:
        since = request.query_params.get("since")
        version = None if since is None else _number(request, "since", 0, 1 << 40)
        return JSONResponse(await run_in_threadpool(self._state, version))

    async def next(self, request: Request) -> Response:
        count = _number(request, "n", 24, MOST_ITEMS)
        texts = [text for text in request.query_params.get("without", "").split(",") if text.isdigit()]
        items = await run_in_threadpool(self.session.next_items, count, [int(text) for text in texts[:5000]])
        return JSONResponse({"items": items})

    async def of_class(self, request: Request) -> Response:
        label, kind = request.query_params.get("name", ""), request.query_params.get("kind", "guesses")
        count, offset = _number(request, "n", 24, MOST_ITEMS), _number(request, "offset", 0, 1 << 30)
        find = self.session.labeled if kind == "labeled" else self.session.guessed
        items, total = await run_in_threadpool(find, label, count, offset)
        return JSONResponse({"items": items, "total": total})

    async def answers(self, request: Request) -> Response:
        body = await _json(request)
        given = body.get("answers")
        if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
            raise UserError("answers: expected a list of objects with id and label.")
        ids = [one.get("id") for one in given]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise UserError("answers: each needs an integer id.")
        kind = body.get("kind", "label")
        labels = {int(one["id"]): one.get("label") for one in given}
        if kind == "label" and not all(isinstance(label, str) for label in labels.values()):
            raise UserError("answers: each label must be text.")
        saved = await run_in_threadpool(self.session.answer, labels, str(kind))
        return JSONResponse({"saved": saved, "state": await run_in_threadpool(self._state)})

    async def undo(self, request: Request) -> Response:
        await _json(request)
        rows = await run_in_threadpool(self.session.undo)
        with self.session.lock:
            items = [self.session.item(row) for row in rows]
        return JSONResponse({"items": items, "state": await run_in_threadpool(self._state)})

    async def classes(self, request: Request) -> Response:
        body = await _json(request)
        name = self.session.add_class(str(body.get("name", "")))
        return JSONResponse({"name": name, "state": await run_in_threadpool(self._state)})

    async def import_(self, request: Request) -> Response:
        text = str((await _json(request)).get("text", ""))

        def work() -> dict[str, Any]:
            session = self.session
            labels, unused = from_text(text, session.photos.names)
            new = {session.position[name]: label for name, label in labels.items()}
            saved = session.answer(dict(new)) if new else 0
            return {"saved": saved, "unused": unused, "state": self._state()}

        return JSONResponse(await run_in_threadpool(work))

    async def export(self, request: Request) -> Response:
        name = request.path_params["name"]
        makers = {"labels.csv": (to_csv, "text/csv"), "label-studio.json": (to_label_studio, "application/json")}
        if name not in makers:
            return JSONResponse({"error": "expected labels.csv or label-studio.json"}, 404)
        make, media = makers[name]
        with self.session.lock:
            answers = dict(self.session.answers)
        text = (await run_in_threadpool(make, answers)).encode("utf-8", "replace")
        return Response(text, media_type=media, headers={"content-disposition": f'attachment; filename="{name}"'})

    async def train(self, request: Request) -> Response:
        await _json(request)
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        self.final.start(self.runs / f"labeled-{stamp}")
        return JSONResponse(await run_in_threadpool(self._state))

    async def thumb(self, request: Request) -> Response:
        return await self._pixels(request, self.pixels.small)

    async def image(self, request: Request) -> Response:
        return await self._pixels(request, self.pixels.large)

    async def _pixels(self, request: Request, read: Callable[[int], bytes | None]) -> Response:
        row = request.path_params["row"]
        found = await run_in_threadpool(read, row) if row < len(self.session.photos) else None
        if found is None:
            return Response("not found", 404, media_type="text/plain")
        return Response(found, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


async def _json(request: Request) -> dict[str, Any]:
    """Return the body of a request as an object; other kinds of bodies are refused, as a form of another page sends."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UserError("expected a body of type application/json.")
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError:
        raise UserError("the body is not JSON.") from None
    if not isinstance(body, dict):
        raise UserError("the body must be a JSON object.")
    return body


def label_app(session: Session, background: Background | None, final: FinalTraining, runs: Path) -> Starlette:
    """Return the app; it is to be put behind ``Guarded``."""
    return Starlette(routes=list(LabelApp(session, background, final, runs).routes()))
