"""Who may ask: only pages of this server, with the secret in their address, and only with small requests.

Every path begins with a secret token, so that an address that another user or another web page guesses is refused.
Foreign origins and hosts are refused as well, which stops other web pages and DNS rebinding. Knows nothing of what is
served.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def new_token() -> str:
    """Return a secret of 128 bits for the address of the page."""
    return secrets.token_urlsafe(16)


class Guarded:
    """An ASGI app behind the checks. The inner app sees paths without the token.

    Parameters
    ----------
    app
        The inner app.
    token
        The first part of every path.
    largest
        Bytes of a request's body.
    log
        Called with a line for each request that is refused.
    """

    def __init__(self, app: ASGIApp, token: str, *, largest: int, log: Callable[[str], None]):
        self.app, self.token, self.largest, self.log = app, token, largest, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        status, why, inside = self._checked(scope, headers)
        if status:
            await self._refuse(scope, receive, send, status, why)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message.get("headers", [])}
                more = {**HEADERS, "cache-control": "no-store"}
                extra = [(k.encode(), v.encode()) for k, v in more.items() if k.encode() not in known]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        await self.app({**scope, "path": inside, "raw_path": None}, self._limited(receive), with_headers)

    def _checked(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str]:
        """Return the status and the reason to refuse a request (0 and "" if there is none), and the inner path."""
        port = (scope.get("server") or ("", 0))[1]
        hosts = {f"{name}:{port}" for name in LOOPBACK}
        if headers.get("host", "") not in hosts:
            return 403, "foreign host", ""
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return 403, "foreign origin", ""
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "request of another site", ""
        given, _, rest = scope["path"].lstrip("/").partition("/")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return 403, "wrong token", ""
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            return 400, "content-length is not a number", ""
        if length > self.largest:
            return 413, f"the body has {length:,} bytes, more than {self.largest:,}", ""
        return 0, "", "/" + rest

    def _limited(self, receive: Receive) -> Receive:
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.largest:
                self.log(f"refused a body of more than {self.largest:,} bytes")
                raise HTTPException(413, f"the body has more than {self.largest:,} bytes")
            return message

        return limited

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
        path: Any = scope["path"].replace(self.token, "TOKEN")
        self.log(f"refused {scope['method']} {path[:200]!r}: {why}")
        response = JSONResponse({"error": why}, status, headers={**HEADERS, "cache-control": "no-store"})
        await response(scope, receive, send)
