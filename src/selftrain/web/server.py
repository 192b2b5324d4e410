"""Run an app on a port of this machine, and open it in the browser.

Knows nothing of what the app does. Uvicorn and Starlette are small, well kept, and need no compiler.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
import webbrowser
from typing import Any

from selftrain.console import Reporter
from selftrain.errors import UserError

HOST = "127.0.0.1"


def check_installed() -> None:
    """Raise a UserError if the packages for pages are missing."""
    if not all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn")):
        raise UserError('this command needs the extra "web": pip install "selftrain[web]".')


def bound_socket(port: int) -> socket.socket:
    """Return a socket on this machine's loopback address; port 0 takes a free one."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen(128)  # requests may come as soon as the address is printed
    except OSError as error:
        found.close()
        raise UserError(f"`port={port}`: cannot be used ({error.strerror}). Choose another one, or 0.") from None
    return found


def run_app(
    app: Any,
    token: str,
    *,
    port: int,
    browser: bool,
    reporter: Reporter,
    what: str,
) -> None:
    """Serve an app until Ctrl-C, and print its address."""
    import uvicorn

    sock = bound_socket(port)
    url = f"http://{HOST}:{sock.getsockname()[1]}/{token}/"
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    print(url, flush=True)  # for programs; people read the line below
    reporter.say(f"{what}: {url} (only on this machine; Ctrl-C stops it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, [url]).start()
    server.run(sockets=[sock])
