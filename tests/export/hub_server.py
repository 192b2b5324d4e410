"""A stand-in for the Hugging Face Hub: a local HTTP server with as much of its API as uploads and downloads need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class Hub:
    """Repositories in memory: each has commits, oldest first, and each commit has files."""

    def __init__(self) -> None:
        self.repositories: dict[str, list[tuple[str, Files]]] = {}
        self.requests: list[str] = []
        self.address = ""

    def commit(self, name: str, files: Files) -> str:
        commits = self.repositories.setdefault(name, [])
        everything = {**(commits[-1][1] if commits else {}), **files}
        sha = hashlib.sha1(repr((len(commits), sorted(everything.items()))).encode()).hexdigest()
        commits.append((sha, everything))
        return sha

    def find(self, name: str, revision: str) -> tuple[str, Files] | None:
        commits = self.repositories.get(name, [])
        if revision == "main":
            return commits[-1] if commits else None
        return next((one for one in commits if one[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._read()

    def do_HEAD(self) -> None:
        self._read()

    def _read(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?", path):
            found = self.hub.find(match[1], match[2] or "main")
            if found is None:
                return self._answer(404, {}, {"X-Error-Code": "RepoNotFound"})
            siblings = [{"rfilename": name, "size": len(data)} for name, data in found[1].items()]
            return self._answer(200, {"id": match[1], "sha": found[0], "siblings": siblings, "tags": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)/tree/([^/]+)/?", path):
            found = self.hub.find(match[1], match[2])
            assert found is not None
            rows = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in found[1].items()
            ]
            return self._answer(200, rows)
        if match := re.fullmatch(r"/([^/]+/[^/]+?)/resolve/([^/]+)/(.+)", path):
            found = self.hub.find(match[1], match[2])
            if found is None or match[3] not in found[1]:
                return self._answer(404, {}, {"X-Error-Code": "EntryNotFound"})
            data = found[1][match[3]]
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": found[0]}
            return self._send(200, data, headers)
        return self._answer(404, {})

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"POST {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "somebody"
            name = f"{owner}/{asked['name']}"
            self.hub.repositories.setdefault(name, [])
            return self._answer(200, {"url": f"{self.hub.address}/{name}", "id": "1", "name": name})
        if path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/[^/]+", path):
            asked = json.loads(body)["files"]
            answer = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]
            return self._answer(200, {"files": answer})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/[^/]+", path):
            files = {}
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            sha = self.hub.commit(match[1], files)
            url = f"{self.hub.address}/{match[1]}/commit/{sha}"
            return self._answer(200, {"commitUrl": url, "commitOid": sha, "hookOutput": "", "success": True})
        return self._answer(404, {})

    def _answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def serve() -> Iterator[Hub]:
    """Run the server on a free port of this machine."""
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
